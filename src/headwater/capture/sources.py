"""From the address of a database to the source that follows it."""

from importlib import import_module
from typing import Final, cast

from headwater.capture.contract import Source
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError

# scheme: module in this package, class. Imported when used: each brings its driver.
_SOURCES: Final = {
    "postgresql": ("postgres.source", "PostgresSource"),
    "postgres": ("postgres.source", "PostgresSource"),
    "mysql": ("mysql.source", "MySqlSource"),
    "mariadb": ("mysql.source", "MySqlSource"),
    "sqlite": ("sqlite.source", "SqliteSource"),
    "mongodb": ("mongo.source", "MongoSource"),
    "mongodb+srv": ("mongo.source", "MongoSource"),
    "debezium": ("debezium.source", "DebeziumSource"),
}
SCHEMES: Final = tuple(_SOURCES)


def source_of(settings: CaptureSettings, bootstrap: str | None = None) -> Source:
    """The source for `settings.source`, not yet connected to anything. `bootstrap` is for
    Debezium's connectors, some of which keep the history of schemas in a topic of their own.
    """
    scheme = settings.source.reveal().partition(":")[0]
    if scheme not in _SOURCES:
        raise ConfigError(
            f"capture {settings.name}: no source for {scheme}://",
            hint="source begins with one of " + ", ".join(f"{each}:" for each in SCHEMES),
        )
    module, name = _SOURCES[scheme]
    source = getattr(import_module(f"headwater.capture.{module}"), name)
    arguments = (settings, bootstrap) if scheme == "debezium" else (settings,)
    return cast("Source", source(*arguments))
