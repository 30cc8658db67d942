"""Whether values have Confluent's wire format: the id of a schema before each."""

from collections.abc import Mapping
from typing import Final

from headwater.errors import ConfigError
from headwater.schemas.wire_format import message_indexes, unframed

__all__ = ["OPTION", "behind_indexes", "has_framing", "unframed"]

OPTION: Final = "framing"


def has_framing(options: Mapping[str, str]) -> bool:
    """Whether the option says so: "confluent", or by default "none"."""
    framing = options.get(OPTION, "none")
    if framing not in ("none", "confluent"):
        raise ConfigError(f"option {OPTION}: {framing}", hint="none or confluent")
    return framing == "confluent"


def behind_indexes(value: bytes, at: int) -> int:
    """The index after Protobuf's message indexes. Raises ValueError."""
    return message_indexes(value, at)[1]
