"""The connector's configuration: [capture.NAME] as Debezium's properties.

Everything in `options` is Debezium's own and stands as it is, but for what would break the
delivery: what RESERVED names belongs to the capture.
"""

import os
import re
from collections.abc import Collection, Mapping
from fnmatch import translate
from pathlib import Path
from typing import Final

from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, SourceRefused

PACKAGE: Final = "io.debezium.connector"
CONNECTORS: Final = {
    "cassandra": f"{PACKAGE}.cassandra.Cassandra5Connector",
    "db2": f"{PACKAGE}.db2.Db2Connector",
    "informix": f"{PACKAGE}.informix.InformixConnector",
    "mariadb": f"{PACKAGE}.mariadb.MariaDbConnector",
    "mongodb": f"{PACKAGE}.mongodb.MongoDbConnector",
    "mysql": f"{PACKAGE}.mysql.MySqlConnector",
    "oracle": f"{PACKAGE}.oracle.OracleConnector",
    "postgresql": f"{PACKAGE}.postgresql.PostgresConnector",
    "spanner": f"{PACKAGE}.spanner.SpannerConnector",
    "sqlserver": f"{PACKAGE}.sqlserver.SqlServerConnector",
    "vitess": f"{PACKAGE}.vitess.VitessConnector",
}
OURS: Final = "jvm."  # options that are about the JVM and not the connector's

RESERVED: Final = frozenset(
    {
        "name", "connector.class", "topic.prefix", "tasks.max", "errors.max.retries",
        "provide.transaction.metadata", "topic.transaction", "topic.heartbeat.prefix",
    }
)  # fmt: skip
RESERVED_KINDS: Final = ("offset.storage", "key.converter", "value.converter", "header.converter")
HISTORY: Final = "schema.history.internal"

TRANSACTION_TOPIC: Final = "transaction"
HEARTBEAT_PREFIX: Final = "__debezium-heartbeat"


def connector_class(source: str) -> str:
    """The class behind "debezium:NAME"; a name with dots is the class itself."""
    name = source.removeprefix("debezium:").strip("/")
    if "." in name:
        return name
    if name not in CONNECTORS:
        raise ConfigError(
            f"no Debezium connector is called {name!r}",
            hint=f"one of {', '.join(CONNECTORS)}, or the name of its class",
        )
    return CONNECTORS[name]


def properties(
    settings: CaptureSettings, documented: Collection[str], bootstrap: str | None
) -> dict[str, str]:
    """All properties. `documented` are the names that the connector itself documents; `bootstrap`
    is where its schema history goes, if it needs one. Raises ConfigError and SourceRefused.
    """
    options = {
        name: value for name, value in revealed(settings).items() if not name.startswith(OURS)
    }
    _refuse_what_is_not_applied(settings, options)
    fixed = {
        "name": settings.name,
        "connector.class": connector_class(settings.source.reveal()),
        "topic.prefix": settings.name,
        "tasks.max": "1",
        # Transactions are delimited by their BEGIN and END.
        "provide.transaction.metadata": "true",
        "topic.transaction": TRANSACTION_TOPIC,
        "topic.heartbeat.prefix": HEARTBEAT_PREFIX,
        # A connector that restarts by itself would do so from a position that is not ours.
        "errors.max.retries": "0",
    }
    given = {**_defaults(settings), **options}
    if HISTORY in documented and HISTORY not in options:
        given = {**_history(settings.name, options, bootstrap), **given}
    return {**{name: given[name] for name in given if _is_for(name, documented, options)}, **fixed}


def _is_for(name: str, documented: Collection[str], options: Mapping[str, str]) -> bool:
    return name in options or name in documented or name.startswith(HISTORY)


def _defaults(settings: CaptureSettings) -> dict[str, str]:
    tables = table_list(settings.tables, settings.exclude)
    return {
        "table.include.list": tables,
        "collection.include.list": tables,
        "snapshot.mode": "initial" if settings.snapshot == "initial" else "no_data",
        "tombstones.on.delete": str(settings.tombstones).lower(),
        "decimal.handling.mode": settings.decimals,
        "time.precision.mode": (
            "isostring" if settings.times == "iso" else "adaptive_time_microseconds"
        ),
        "skipped.operations": "none",  # truncates too
        "extended.headers.enabled": "false",  # four in every record that are not needed
        "heartbeat.interval.ms": str(round(settings.heartbeat_s * 1000)),
        "poll.interval.ms": "50",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "max.queue.size.in.bytes": str(64 << 20),
        # PostgreSQL: its slot can hold one consumer, and shows when it was created again.
        "plugin.name": "pgoutput",
        "slot.name": re.sub(r"\W", "_", f"headwater_{settings.name}".lower())[:63],
        "publication.name": re.sub(r"\W", "_", f"headwater_{settings.name}".lower())[:63],
        "publication.autocreate.mode": "filtered",
        "offset.mismatch.strategy": "trust_offset",
        "slot.retry.delay.ms": "1000",
    }


def table_list(tables: Collection[str], exclude: Collection[str]) -> str:
    """Shell patterns as Debezium's list of Java patterns. It takes either tables to follow or
    tables to leave out, so the second are written into each of the first.
    """
    unwanted = "|".join(_java_pattern(pattern) for pattern in exclude)
    lookahead = f"(?!(?:{unwanted})$)" if unwanted else ""
    return ",".join(lookahead + _java_pattern(pattern) for pattern in tables)


def _java_pattern(shell: str) -> str:
    """As `fnmatch` has it, as a regular expression of Java. A comma would end the list's item."""
    return re.sub(r"\\[zZ]$", "", translate(shell)).replace(",", r"\x2c")


def _history(name: str, options: Mapping[str, str], bootstrap: str | None) -> dict[str, str]:
    """Where a connector that follows DDL stores it: a topic beside the others. It is written before
    the changes that need it and read up to the position, so it may be ahead but never behind.
    """
    servers = options.get(f"{HISTORY}.kafka.bootstrap.servers", bootstrap)
    if servers is None:
        raise SourceRefused(
            "this connector stores a history of the tables' schemas, and has no topic for it",
            hint=f'options "{HISTORY}.kafka.bootstrap.servers" = "host:9092"',
        )
    return {
        f"{HISTORY}.kafka.bootstrap.servers": servers,
        f"{HISTORY}.kafka.topic": f"__headwater_schema_history.{name}",
    }


def revealed(settings: CaptureSettings) -> dict[str, str]:
    """The options with what ${env:NAME} and NAME_file stand for in their places."""
    result = {}
    for name, value in settings.options.items():
        where = f"capture.{settings.name}.options.{name}"
        if name.endswith("_file") and "." in name:
            try:
                text = Path(value).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "no UTF-8"
                raise ConfigError(f"{where} cannot be read", detail=f"{value}: {reason}") from error
            result[name.removesuffix("_file")] = text
            continue
        result[name] = _with_environment(value, where)
    return result


def _with_environment(value: str, where: str) -> str:
    def looked_up(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(f"{where} needs the environment variable {match[1]}")
        return found

    return re.sub(r"\$\{env:(\w+)\}", looked_up, value)


def _refuse_what_is_not_applied(settings: CaptureSettings, options: Mapping[str, str]) -> None:
    """A setting that would be without effect is an error, not a surprise."""
    instead = {
        "columns": "column.exclude.list, column.mask.with.N.chars, column.mask.hash.v2.…",
        "rows": "snapshot.select.statement.overrides, transforms",
        "outbox": "transforms with io.debezium.transforms.outbox.EventRouter",
    }
    for name, option in instead.items():
        if getattr(settings, name):
            raise ConfigError(
                f"capture.{settings.name}.{name} does not apply to a capture through Debezium",
                hint=f"use Debezium's own in options: {option}",
            )
    for name in options:
        if name in RESERVED or name.startswith(RESERVED_KINDS):
            raise ConfigError(
                f"capture.{settings.name}.options: {name} is set by the capture itself",
                hint="leave it out",
            )
