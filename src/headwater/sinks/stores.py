"""The registry of stores: from a kind in [sink.NAME] to its class, imported when used."""

from importlib import import_module
from typing import Final, cast

from headwater import extras
from headwater.errors import ConfigError
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings
from headwater.spelling import nearest

# kind: module in this package, class, extras it needs. Imported when used. A module's
# OPTIONS are what may stand in [sink.NAME.options], TARGET_OPTIONS what a `flow.write` may give.
_STORES: Final = {
    "postgres": ("postgres", "PostgresStore", ("pipelines", "postgres")),
    "mysql": ("mysql", "MySqlStore", ("pipelines", "mysql")),
    "sqlite": ("sqlite", "SqliteStore", ("pipelines",)),
    "redis": ("redis.store", "RedisStore", ("pipelines", "redis")),
    "tantivy": ("tantivy.store", "TantivyStore", ("pipelines", "search")),
    "opensearch": ("opensearch.store", "OpenSearchStore", ("pipelines",)),
    "delta": ("delta.store", "DeltaStore", ("pipelines", "delta")),
    "parquet": ("parquet.store", "ParquetStore", ("pipelines",)),
    "topic": ("topic.store", "TopicStore", ("pipelines",)),
    "webhook": ("notifications.webhook", "WebhookStore", ("pipelines",)),
    "email": ("notifications.email", "EmailStore", ("pipelines",)),
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


def _check(whose: str, given: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    """Raises ConfigError: an unknown option would be ignored without a warning."""
    for name in given:
        if name not in allowed:
            meant = nearest(name, allowed)
            raise ConfigError(
                f"{whose}: unknown option {name}",
                hint=f"did you mean {meant}?"
                if meant
                else f"known are: {', '.join(allowed) or 'none'}",
            )
