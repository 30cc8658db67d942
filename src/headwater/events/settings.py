"""What can be set in [events]. Imported with the configuration, so it stays light."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.settings import Secret, SecretKind, setting, table, text


def _store_url(value: Any) -> str:
    url = text(value)
    if not url.startswith(("sqlite:///", "postgresql://", "postgres://")):
        raise ValueError("sqlite:///file.db or postgresql://user@host/database")
    return url


def _decider(category: str, value: Any) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._]{1,200}", category):
        raise ValueError("the name of a category: letters, digits, dots and underscores")
    reference = text(value)
    if not re.fullmatch(r".+:[^:]+", reference):
        raise ValueError("a file and a name in it, for example bank.py:Account")
    return reference


@dataclass(frozen=True, slots=True)
class EventsSettings:
    """The [events] section."""

    store: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None,
        SecretKind(_store_url),
        "Address of the event store for `headwater events`, the gateway and the console:"
        " `sqlite:///file.db` or `postgresql://user@host/database`.",
    )
    deciders: Mapping[str, str] = table(
        _decider,
        "A table of deciders by category: `FILE.py:NAME`, relative to `headwater.toml`. With them"
        " the console shows the state after each event, and the gateway states as of then.",
    )
