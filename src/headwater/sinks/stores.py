"""From a kind of store to the module that keeps it."""

from importlib import import_module
from typing import Final, cast

from headwater import extras
from headwater.config import nearest
from headwater.errors import ConfigError
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings

# kind: module in this package, class, extras it needs. Imported when used. A module's
# OPTIONS are what may stand in [sink.NAME.options], TARGET_OPTIONS what a `flow.write` may give.
_STORES: Final = {
    "postgres": ("postgres", "PostgresStore", ("pipelines", "postgres")),
    "mysql": ("mysql", "MySqlStore", ("pipelines", "mysql")),
    "sqlite": ("sqlite", "SqliteStore", ("pipelines",)),
    "redis": ("redis_hash", "RedisStore", ("pipelines", "redis")),
    "tantivy": ("tantivy_index", "TantivyStore", ("pipelines", "search")),
    "opensearch": ("opensearch", "OpenSearchStore", ("pipelines",)),
    "delta": ("delta", "DeltaStore", ("pipelines", "delta")),
    "parquet": ("parquet", "ParquetStore", ("pipelines",)),
    "topic": ("topic", "TopicStore", ("pipelines",)),
    "webhook": ("webhook", "WebhookStore", ("pipelines",)),
    "email": ("email", "EmailStore", ("pipelines",)),
}


def store_of(settings: SinkSettings, target: Target, log: Log) -> Store:
    """Not connected to anything yet."""
    module_name, class_name, needed = _STORES[settings.kind]
    extras.require(f"sink {settings.name}", *needed)
    module = import_module(f"headwater.sinks.{module_name}")
    _check(f"sink {settings.name}", tuple(settings.options), module.OPTIONS)
    _check(
        f"pipeline {target.owner} writes to {settings.name}",
        tuple(target.options),
        module.TARGET_OPTIONS,
    )
    return cast("Store", getattr(module, class_name)(settings, target, log))


def _check(whose: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    """One that nobody knows does nothing, and its author believes that it does."""
    for name in given:
        if name not in known:
            meant = nearest(name, known)
            raise ConfigError(
                f"{whose}: unknown option {name}",
                hint=f"did you mean {meant}?"
                if meant
                else f"known are: {', '.join(known) or 'none'}",
            )
