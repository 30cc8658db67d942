"""Settings of [capture.NAME]. Imported with the configuration, so it stays light."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final

from headwater.settings import (
    Secret,
    SecretKind,
    address,
    boolean,
    integer,
    list_of,
    one_of,
    option_text,
    parse_duration_ms,
    setting,
    table,
    text,
    topic_config_text,
    url_with_password,
)

SCHEMES: Final = (
    "postgresql://", "postgres://", "mysql://", "mariadb://", "sqlite:///", "mongodb://",
    "mongodb+srv://", "debezium:",
)  # fmt: skip


def _database_url(value: Any) -> str:
    if not text(value).startswith(SCHEMES):
        raise ValueError("an address that begins with " + ", ".join(SCHEMES))
    return str(value)


def _table_pattern(value: Any) -> str:
    """Everything is a pattern, as the shell has them; yet without a schema it matches nothing."""
    if not re.fullmatch(r"[^.\s]+\.\S(.*\S)?", text(value)):
        raise ValueError('a pattern of schema.table such as "public.*"')
    return str(value)


def _seconds(value: Any) -> float:
    expected = 'a number of seconds above 0, or a duration such as "10s"'
    if isinstance(value, bool):
        raise ValueError(expected)  # noqa: TRY004 (what was read is data, not an argument)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = parse_duration_ms(str(value)) / 1000
    if not 0 < seconds <= 86_400:
        raise ValueError(expected)
    return seconds


def _column_rule(pattern: str, value: Any) -> str:
    """The rules of rules/transforms.py."""
    if not re.fullmatch(r"drop|null|mask(:\d+)?|hash(:.*)?|truncate:\d+", text(value), re.DOTALL):
        raise ValueError('"drop", "null", "mask", "mask:8", "hash", "hash:salt" or "truncate:20"')
    return str(value)


def _condition(pattern: str, value: Any) -> str:
    """Understood when the capture starts: SQL's parser is nothing for a broker to load."""
    return text(value)


def _is_salted(pattern: str, value: Any) -> bool:
    return str(value).startswith("hash:")


def _is_secret(name: str, value: Any) -> bool:
    return bool(re.search("password|secret|token|credential|salt", name, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """One [capture.NAME] section."""

    name: str
    source: Secret = setting(  # noqa: RUF009 (a Secret does not change)
        MISSING,
        SecretKind(_database_url),
        "Address of the database: `postgresql://user@host/database`, `mysql://`, `mariadb://`,"
        " `sqlite:///file`, `mongodb://`, `debezium:`.",
    )
    password_file: str | None = setting(
        None, text, "File that holds the password of the user in `source`, and nothing else."
    )
    tables: tuple[str, ...] = setting(
        ("*.*",),
        list_of(",", _table_pattern),
        "Tables to follow: patterns of schema.table, as the shell has them.",
    )
    exclude: tuple[str, ...] = setting(
        (), list_of(",", _table_pattern), "Tables not to follow, though `tables` names them."
    )
    snapshot: str = setting(
        "initial",
        one_of("initial", "never"),
        "What the topics begin with: the rows that the tables have (initial), or only changes from"
        " the first start on (never).",
    )
    chunk_rows: int = setting(
        20_000, integer(1, 10_000_000), "Rows that a snapshot reads at a time."
    )
    partitions: int = setting(
        1, integer(1, 100_000), "Partitions of the topics that the capture creates."
    )
    topic_config: Mapping[str, str] = table(
        topic_config_text,
        "A table of Kafka topic configs for the topics that the capture creates.",
        underscore=".",
    )
    format: str = setting(
        "json",
        one_of("json", "avro"),
        "Keys and values as JSON, or as Avro by the schema registry (`[schemas]`).",
    )
    schemas: bool = setting(
        False, boolean, "Write a Kafka Connect schema beside every key and value (JSON only)."
    )
    tombstones: bool = setting(
        True, boolean, "Follow every delete with a record of that key without a value."
    )
    transactions: bool = setting(
        False,
        boolean,
        "Write the topic `NAME.transaction`, and the transaction into every value.",
    )
    decimals: str = setting(
        "string",
        one_of("string", "double", "precise"),
        "Exact numbers as text (string), as floating point (double) or as Kafka Connect's bytes"
        " (precise).",
    )
    times: str = setting(
        "adaptive",
        one_of("adaptive", "iso"),
        "Dates and times as Debezium's numbers (adaptive) or as ISO 8601 text (iso).",
    )
    columns: Mapping[str, str] = table(
        _column_rule,
        "A table from patterns of schema.table.column to what happens to the column.",
        hides=_is_salted,
    )
    rows: Mapping[str, str] = table(
        _condition, "A table from patterns of schema.table to the condition that a row must meet."
    )
    outbox: str | None = setting(
        None, _table_pattern, "Table whose rows are events. Default: none."
    )
    heartbeat_s: float = setting(
        10.0, _seconds, "How often the position is stored when nothing changes, in seconds."
    )
    metrics_listen: str | None = setting(
        None, address, "Address for Prometheus metrics, readiness and liveness. Default: none."
    )
    allow_insecure_network: bool = setting(
        False,
        boolean,
        "Allow `metrics_listen` on a network, where any client can read the names of tables and"
        " their errors.",
    )
    options: Mapping[str, str] = table(
        option_text,
        "A table of options for this kind of source.",
        underscore="_",
        hides=_is_secret,
    )

    @property
    def shown_source(self) -> str:
        """Its address without secrets: no password, no parameters. A password
        that is not %-encoded may hold any character, so all up to the last "@" is left out.
        """
        url = re.sub(r"^([a-z+]+://[^:@/]*):.*@", r"\1@", self.source.reveal())
        return url.partition("?")[0]


def with_password(settings: CaptureSettings) -> CaptureSettings:
    """The settings with the password of `password_file` in `source`. Raises ConfigError."""
    if settings.password_file is None:
        return settings
    where = f"capture.{settings.name}"
    url = url_with_password(settings.source, settings.password_file, where, "source")
    return dataclasses.replace(settings, source=url)
