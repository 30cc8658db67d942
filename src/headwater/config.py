"""Settings, and where each of them came from.

A value comes from the first of these places that has one:

    a flag                            --listen 127.0.0.1:9092
    the environment                   HEADWATER_BROKER__LISTEN=127.0.0.1:9092
    headwater.toml                    [broker] listen = "127.0.0.1:9092"
    the default

The file is the one that --config names, else HEADWATER_CONFIG, else ./headwater.toml if there is
one. Nothing is guessed and nothing ignored: an unknown name is a mistake, and all mistakes are
reported together, each with its place. [broker] and [client] are checked here; the other sections
belong to the parts that read them, and are kept as they stand.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from headwater.errors import ConfigError
from headwater.settings import (
    IN_TABLES,
    SECRET_KINDS,
    TABLES,
    BrokerSettings,
    ClientSettings,
    topic_config_text,
)

FILE_NAME: Final = "headwater.toml"
ENVIRONMENT_PREFIX: Final = "HEADWATER_"
SECTIONS: Final = ("broker", "client", "spark", "console", "capture", "sink", "pipeline", "view")

_CHECKED: Final[Mapping[str, type]] = {"broker": BrokerSettings, "client": ClientSettings}


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong in the configuration, and where."""

    where: str
    read: str
    expected: str

    def __str__(self) -> str:
        return f"{self.where}: {self.read}; expected {self.expected}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and where it came from."""

    name: str
    value: Any
    source: str


class _Given(NamedTuple):
    name: str
    raw: Any
    where: str


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was read. With mistakes, the default stands in each wrong place."""

    path: Path | None
    broker: BrokerSettings
    client: ClientSettings
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]

    def bootstrap(self) -> str:
        """Where commands find a broker."""
        return self.broker.bootstrap or self.broker.reached_at(self.broker.listen)


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """The configuration, whole and right. Raises ConfigError that names every mistake in it.

    `flags` has the values given on the command line by setting name ("broker.listen"); None
    stands for a flag that was not given.
    """
    config = read(flags, path=path, environ=environ, cwd=cwd)
    if config.mistakes:
        count = len(config.mistakes)
        raise ConfigError(
            "the configuration is wrong"
            if count == 1
            else f"{count} mistakes in the configuration",
            detail="\n".join(str(mistake) for mistake in config.mistakes),
            hint="docs/configuration.md lists every setting; `headwater doctor` shows what is set",
        )
    return config


def read(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """As `load`, but mistakes are returned instead of raised."""
    environ = os.environ if environ is None else environ
    mistakes: list[Mistake] = []
    file = _find_file(path, environ, cwd or os.getcwd(), mistakes)
    sections, lines = _read_file(file, mistakes) if file else ({}, {})

    given: list[_Given] = []  # weakest first
    if file:
        given += _from_file(file, sections, lines, mistakes)
    given += _from_environment(environ, mistakes)
    for name, value in (flags or {}).items():
        if value is not None:
            flag = name.split(".")[1].replace("_", "-")
            given.append(_Given(name, value, f"flag --{flag}"))

    kinds = {
        f"{section}.{each.name}": each
        for section, schema in _CHECKED.items()
        for each in dataclasses.fields(schema)
    }
    settings = {
        name: Setting(name, each.default, "default")
        for name, each in kinds.items()
        if name.removeprefix("broker.") not in TABLES
    }
    for name, raw, where in given:
        _, table, config = name.split(".", 2) if name.startswith(IN_TABLES) else ("", "", name)
        try:
            # Also what a stronger source overrides is checked: it would fail the day after.
            value = topic_config_text(config, raw) if table else kinds[name].metadata["kind"](raw)
            settings[name] = Setting(name, value, where)
        except ValueError as error:
            shown = _secret_shown(kinds.get(name), raw)
            mistakes.append(Mistake(where, f"{name} = {shown}", str(error)))

    values: dict[str, dict[str, Any]] = {
        section: {
            each.name: settings[f"{section}.{each.name}"].value
            for each in dataclasses.fields(schema)
            if f"{section}.{each.name}" in settings
        }
        for section, schema in _CHECKED.items()
    }
    for table in TABLES:
        prefix = f"broker.{table}."
        values["broker"][table] = MappingProxyType(
            {
                name.removeprefix(prefix): setting.value
                for name, setting in settings.items()
                if name.startswith(prefix)
            }
        )
    return Config(
        file,
        BrokerSettings(**values["broker"]),
        ClientSettings(**values["client"]),
        tuple(settings.values()),
        sections,
        tuple(mistakes),
    )


def _secret_shown(setting: "dataclasses.Field[Any] | None", raw: Any) -> str:
    is_secret = setting is not None and setting.metadata.get("kind") in SECRET_KINDS
    return "(hidden)" if is_secret else repr(raw)


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, or ""."""
    import difflib

    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return matches[0] if matches else ""


def _unknown(where: str, what: str, name: str, known: tuple[str, ...]) -> Mistake:
    meant = nearest(name, known)
    expected = f"{meant} (the nearest name)" if meant else "one of " + ", ".join(known)
    return Mistake(where, f"unknown {what} {name}", expected)


def _find_file(
    path: str | None, environ: Mapping[str, str], cwd: str, mistakes: list[Mistake]
) -> Path | None:
    named_by = "--config" if path else "HEADWATER_CONFIG"
    named = path or environ.get("HEADWATER_CONFIG")
    if not named:
        default = Path(cwd, FILE_NAME)
        return default if default.is_file() else None
    if Path(cwd, named).is_file():
        return Path(cwd, named)
    mistakes.append(Mistake(named_by, f"no file {named}", "a file that exists"))
    return None


def _read_file(
    file: Path, mistakes: list[Mistake]
) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    import tomllib

    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), _line_numbers(text)
    except (OSError, UnicodeDecodeError) as error:
        mistakes.append(Mistake(str(file), f"cannot be read ({error})", "a readable UTF-8 file"))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = line[1] if line else len(text.splitlines())  # "at end of document"
        mistakes.append(
            Mistake(f"{file.name}:{number}", f"not TOML: {error}", "TOML (https://toml.io)")
        )
    return {}, {}


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each key of a valid TOML file stands. tomllib keeps no positions, so the
    file is parsed statement by statement: a statement is as many lines as it takes to parse.
    """
    import tomllib

    lines = text.splitlines()
    numbers: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    first = 0
    while first < len(lines):
        for last in range(first, len(lines)):
            try:
                statement = tomllib.loads("\n".join(lines[first : last + 1]))
                break
            except tomllib.TOMLDecodeError:
                continue
        else:  # unreachable for a file that parses as a whole
            break
        if lines[first].lstrip().startswith("["):
            table = _innermost(statement)
            numbers.setdefault(table, first + 1)
        else:
            for path in _paths(statement):
                numbers.setdefault(table + path, first + 1)
        first = last + 1
    return numbers


def _innermost(statement: Any) -> tuple[str, ...]:
    path: tuple[str, ...] = ()
    while statement:
        if isinstance(statement, list):
            statement = statement[0]
            continue
        ((name, statement),) = statement.items()
        path += (name,)
    return path


def _paths(statement: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in statement.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (((name, *path), leaf) for path, leaf in _leaves(value))
        else:
            yield (name,), value


def _from_file(
    file: Path,
    sections: Mapping[str, Any],
    lines: Mapping[tuple[str, ...], int],
    mistakes: list[Mistake],
) -> Iterator[_Given]:
    def where(*path: str) -> str:
        return f"{file.name}:{lines.get(path, 1)}"

    for section, content in sections.items():
        if section not in SECTIONS:
            known = tuple(f"[{name}]" for name in SECTIONS)
            mistakes.append(_unknown(where(section), "section", f"[{section}]", known))
        elif not isinstance(content, Mapping):
            mistakes.append(Mistake(where(section), f"{section} = {content!r}", f"[{section}]"))
    for section, schema in _CHECKED.items():
        keys = tuple(each.name for each in dataclasses.fields(schema))
        content = sections.get(section, {})
        for key, value in content.items() if isinstance(content, Mapping) else ():
            place = where(section, key)
            if key not in keys:
                mistakes.append(_unknown(place, f"setting in [{section}]:", key, keys))
            elif key not in TABLES:
                yield _Given(f"{section}.{key}", value, place)
            elif isinstance(value, Mapping):
                for path, each in _leaves(value):
                    config = ".".join(path)  # "retention.ms" is the same with and without quotes
                    place = where(section, key, *path)
                    yield _Given(f"broker.{key}.{config}", each, place)
            else:
                expected = f"a table [broker.{key}]"
                mistakes.append(Mistake(place, f"{key} = {value!r}", expected))


def _from_environment(environ: Mapping[str, str], mistakes: list[Mistake]) -> Iterator[_Given]:
    known = tuple(section.upper() for section in SECTIONS)
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
        where = f"environment {variable}"
        if section not in known:
            mistakes.append(_unknown(where, "section", section, known))
            continue
        schema = _CHECKED.get(section.lower())
        if schema is None:
            continue  # belongs to the part that reads that section
        keys = tuple(each.name.upper() for each in dataclasses.fields(schema))
        table, _, config = key.lower().partition("__")
        if section == "BROKER" and table in TABLES and config:
            yield _Given(f"broker.{table}.{config.replace('_', '.')}", value, where)
        elif key not in keys or table in TABLES:
            mistakes.append(_unknown(where, "setting", key, keys))
        else:
            yield _Given(f"{section.lower()}.{key.lower()}", value, where)
