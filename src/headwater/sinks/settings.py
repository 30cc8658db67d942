"""What can be set in [sink.NAME]. Imported with the configuration, so it stays light."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from headwater.settings import (
    Secret,
    SecretKind,
    one_of,
    option_text,
    setting,
    table,
    text,
    url_with_password,
)

KINDS: Final = (
    "postgres", "mysql", "sqlite", "redis", "tantivy", "opensearch", "delta", "parquet", "topic",
    "webhook", "email",
)  # fmt: skip


def _is_secret(name: str, value: Any) -> bool:
    return bool(re.search("password|secret|token|credential|key", name, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """One [sink.NAME] section."""

    name: str
    kind: str = setting(MISSING, one_of(*KINDS), "What it is: " + ", ".join(KINDS) + ".")
    url: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None,
        SecretKind(text),
        "Where it is: `postgresql://user@host/database`, `mysql://…`, `sqlite:///file`,"
        " `redis://…`, a directory, `https://…`, `smtp://…`; a topic needs none.",
    )
    password_file: str | None = setting(
        None, text, "File that holds the password of the user in `url`, and nothing else."
    )
    options: Mapping[str, str] = table(
        option_text,
        "A table of options for this kind of store; docs/sinks.md.",
        hides=_is_secret,
    )


def with_password(settings: SinkSettings) -> SinkSettings:
    """The settings with the password of `password_file` in `url`. Raises ConfigError."""
    if settings.password_file is None or settings.url is None:
        return settings
    where = f"sink.{settings.name}"
    url = url_with_password(settings.url, settings.password_file, where, "url")
    return dataclasses.replace(settings, url=url)
