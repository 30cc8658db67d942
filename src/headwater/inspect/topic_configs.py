"""Configs of topics and groups as a user gives them, checked before the broker sees them."""

from collections.abc import Iterable

from headwater.errors import UsageError
from headwater.settings import topic_config


def configs_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The configs as the broker expects them. Raises UsageError."""
    configs = {}
    for name, value in pairs:
        try:
            configs[name] = topic_config(name, value)
        except ValueError as error:
            raise UsageError(
                f"config {name} has a wrong value", detail=f"read {value!r}, expected {error}"
            ) from error
    return configs
