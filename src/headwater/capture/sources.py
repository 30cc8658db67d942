"""The registry of sources: from the address of a database to the source that follows it."""

from importlib import import_module
from typing import Final, cast

from headwater import extras
from headwater.capture.contract import Source
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError
from headwater.spelling import nearest

# scheme: module in this package, class, extra with its driver. Imported when used.
_SOURCES: Final = {
    "postgresql": ("postgres.source", "PostgresSource", "postgres"),
    "postgres": ("postgres.source", "PostgresSource", "postgres"),
    "mysql": ("mysql.source", "MySqlSource", "mysql"),
    "mariadb": ("mysql.source", "MySqlSource", "mysql"),
    "sqlite": ("sqlite.source", "SqliteSource", None),
    "mongodb": ("mongo.source", "MongoSource", "mongo"),
    "mongodb+srv": ("mongo.source", "MongoSource", "mongo"),
    "debezium": ("debezium.source", "DebeziumSource", "debezium"),
}
SCHEMES: Final = tuple(_SOURCES)
_OPTIONS: Final = {
    "postgres.source": ("slot", "publication"),
    "mysql.source": ("server_id", "include_query"),
    "sqlite.source": (),
    "mongo.source": (),
}  # Debezium's connectors have their own
_OPTIONS_OF_ALL: Final = ("hash_salt",)


def source_of(settings: CaptureSettings, bootstrap: str | None = None) -> Source:
    """The source for `settings.source`, not yet connected to anything. `bootstrap` is for
    Debezium's connectors, some of which store the history of schemas in a topic of their own.
    """
    scheme = settings.source.reveal().partition(":")[0]
    if scheme not in _SOURCES:
        raise ConfigError(
            f"capture {settings.name}: no source for {scheme}://",
            hint="source begins with one of " + ", ".join(f"{name}:" for name in SCHEMES),
        )
    module, name, extra = _SOURCES[scheme]
    if scheme != "sqlite" and settings.source.reveal().partition("?")[0].count("@") > 1:
        # Drivers would take a part of the password for the host, and show it.
        raise ConfigError(
            f"capture {settings.name}: the source has more than one @",
            hint=f"{scheme}://user@host/database, and the password in `password_file` (within the"
            " address its special characters are %-encoded)",
        )
    _check_options(settings, scheme, module)
    if extra is not None:
        extras.require(f"capture {settings.name}", extra)
    source = getattr(import_module(f"headwater.capture.{module}"), name)
    arguments = (settings, bootstrap) if scheme == "debezium" else (settings,)
    return cast("Source", source(*arguments))


def _check_options(settings: CaptureSettings, scheme: str, module: str) -> None:
    """An unknown option would be ignored silently."""
    if module not in _OPTIONS:
        return
    options = (*_OPTIONS[module], *_OPTIONS_OF_ALL)
    for option in settings.options:
        if option not in options:
            meant = nearest(option, options)
            raise ConfigError(
                f"capture {settings.name}: {scheme} has no option {option}",
                hint=f"did you mean {meant}?" if meant else "there are " + ", ".join(options),
            )
