"""From a kind of store to the module that keeps it."""

from importlib import import_module
from typing import Final, cast

from headwater.errors import ConfigError
from headwater.settings import nearest
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings

# kind: module in this package, class. Imported when used: each brings its driver. A module's
# OPTIONS are what may stand in [sink.NAME.options], TARGET_OPTIONS what a `flow.write` may give.
_STORES: Final = {
    "postgres": ("postgres", "PostgresStore"),
    "mysql": ("mysql", "MySqlStore"),
    "sqlite": ("sqlite", "SqliteStore"),
    "redis": ("redis_hash", "RedisStore"),
    "tantivy": ("tantivy_index", "TantivyStore"),
    "opensearch": ("opensearch", "OpenSearchStore"),
    "delta": ("delta", "DeltaStore"),
    "parquet": ("parquet", "ParquetStore"),
    "topic": ("topic", "TopicStore"),
    "webhook": ("webhook", "WebhookStore"),
    "email": ("email", "EmailStore"),
}


def store_of(settings: SinkSettings, target: Target, log: Log) -> Store:
    """Not connected to anything yet."""
    module_name, class_name = _STORES[settings.kind]
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
