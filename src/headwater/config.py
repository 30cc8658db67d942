"""Settings, and where each of them came from.

A value comes from the first of these places that has one:

    a flag                            --listen 127.0.0.1:9092
    the environment                   HEADWATER_BROKER__LISTEN=127.0.0.1:9092
    headwater.toml                    [broker] listen = "127.0.0.1:9092"
    the default

The file is the one that --config names, else HEADWATER_CONFIG, else ./headwater.toml if there is
one. Nothing is guessed and nothing ignored: an unknown name is a mistake, and all mistakes are
reported together, each with its place.

[broker], [client], [spark] and [console] are there once; of [capture.NAME], [sink.NAME] and
[pipeline.NAME] there may be several, whose names stand in the environment in capitals with "_" for
"-" (HEADWATER_CAPTURE__SHOP__SOURCE). The other sections belong to the parts that will read them,
and are kept as they stand.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from headwater import toml_file
from headwater.capture.settings import CaptureSettings
from headwater.console.settings import ConsoleSettings
from headwater.errors import ConfigError
from headwater.pipelines.settings import PipelineSettings, SparkSettings
from headwater.settings import BrokerSettings, ClientSettings, Secret, SecretKind, nearest
from headwater.sinks.settings import SinkSettings

FILE_NAME: Final = "headwater.toml"
ENVIRONMENT_PREFIX: Final = "HEADWATER_"
SECTIONS: Final = ("broker", "client", "spark", "console", "capture", "sink", "pipeline", "view")

Schema: TypeAlias = type[Any]  # a dataclass whose fields are made by settings.setting and .table
_SINGLE: Final[Mapping[str, Schema]] = {
    "broker": BrokerSettings,
    "client": ClientSettings,
    "spark": SparkSettings,
    "console": ConsoleSettings,
}
_NAMED: Final[Mapping[str, Schema]] = {
    "capture": CaptureSettings,
    "sink": SinkSettings,
    "pipeline": PipelineSettings,
}

# What topics, slots and transactional ids may be called, and what the environment can spell.
_NAME: Final = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")
_MAX_NAME_CHARACTERS: Final = 48


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


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was read. With mistakes, the default stands in each wrong place; a capture
    that lacks what it must have is left out.
    """

    path: Path | None
    broker: BrokerSettings
    client: ClientSettings
    spark: SparkSettings
    console: ConsoleSettings
    captures: Mapping[str, CaptureSettings]
    sinks: Mapping[str, SinkSettings]
    pipelines: Mapping[str, PipelineSettings]
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]

    def bootstrap(self) -> str:
        """Where commands find a broker."""
        return self.broker.bootstrap or self.broker.reached_at(self.broker.listen)


class _Given(NamedTuple):
    """A value that somebody set."""

    section: str  # "broker", "capture.shop"
    key: str
    entry: str  # in a table: "retention.ms"; else ""
    raw: Any
    where: str

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.section, self.key, self.entry)))


@dataclass(slots=True)
class _Reading:
    """What was found so far."""

    schemas: dict[str, Schema] = field(default_factory=lambda: dict(_SINGLE))  # by section
    begins: dict[str, str] = field(default_factory=dict)  # where each named section is first told
    given: list[_Given] = field(default_factory=list)  # weakest first
    mistakes: list[Mistake] = field(default_factory=list)

    def add_named(self, kind: str, name: str, where: str) -> str | None:
        """The section of that name; None (and a mistake) if nothing may be called so."""
        section = f"{kind}.{name}"
        if section in self.schemas:
            return section
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
            expected = f"a-z and 0-9, with single _ or - between, at most {_MAX_NAME_CHARACTERS}"
            self.mistakes.append(Mistake(where, f"the name of [{section}]", expected))
            return None
        for other in self.begins:
            if other.replace("-", "_") == section.replace("-", "_"):  # one slot, one variable
                expected = f"a name that differs from [{other}] in more than _ and -"
                self.mistakes.append(Mistake(where, f"the name of [{section}]", expected))
                return None
        self.schemas[section] = _NAMED[kind]
        self.begins[section] = where
        return section


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
    reading = _Reading()
    file = _find_file(path, environ, cwd or os.getcwd(), reading.mistakes)
    sections = _read_file(file, reading) if file else {}
    _read_environment(environ, reading)
    for name, value in (flags or {}).items():
        if value is not None:
            section, key, *entry = name.split(".", 2)  # an entry of a table may have dots, too
            flag = f"flag --{key.replace('_', '-')}"
            reading.given.append(_Given(section, key, "".join(entry), value, flag))

    settings = _valued(reading)
    made = {
        section: _made(section, schema, settings, reading)
        for section, schema in reading.schemas.items()
    }
    return Config(
        file,
        made["broker"],
        made["client"],
        made["spark"],
        made["console"],
        _of_kind("capture", made),
        _of_kind("sink", made),
        _of_kind("pipeline", made),
        tuple(_shown(setting, reading) for setting in settings.values()),
        sections,
        tuple(reading.mistakes),
    )


def _valued(reading: _Reading) -> dict[str, Setting]:
    """Every setting by its name: the strongest value that was given, else the default."""
    fields = {
        f"{section}.{each.name}": each
        for section, schema in reading.schemas.items()
        for each in fields_of(schema)
    }
    settings = {
        name: Setting(name, each.default, "default")
        for name, each in fields.items()
        if "kind" in each.metadata
    }
    for given in reading.given:
        about = fields[f"{given.section}.{given.key}"].metadata
        try:
            # Also what a stronger source overrides is checked: it would fail the day after.
            value = (
                about["entry"](given.entry, given.raw) if given.entry else about["kind"](given.raw)
            )
            settings[given.name] = Setting(given.name, value, given.where)
        except ValueError as error:
            shown = "(hidden)" if _is_secret(given, reading) else repr(given.raw)
            reading.mistakes.append(Mistake(given.where, f"{given.name} = {shown}", str(error)))
    return {name: each for name, each in settings.items() if each.value is not dataclasses.MISSING}


def _made(section: str, schema: Schema, settings: Mapping[str, Setting], reading: _Reading) -> Any:
    """The section as an object; None (and a mistake) if it lacks what it must have."""
    values: dict[str, Any] = {}
    is_whole = True
    for each in fields_of(schema):
        name = f"{section}.{each.name}"
        if "entry" in each.metadata:
            values[each.name] = MappingProxyType(
                {
                    key.removeprefix(f"{name}."): setting.value
                    for key, setting in settings.items()
                    if key.startswith(f"{name}.")
                }
            )
        elif name in settings:
            values[each.name] = settings[name].value
        else:
            is_whole = False
            if not any(given.name == name for given in reading.given):  # else told as wrong
                where = reading.begins[section]
                doc = each.metadata["doc"]
                reading.mistakes.append(Mistake(where, f"[{section}] has no {each.name}", doc))
    if section in reading.begins:
        values["name"] = section.partition(".")[2]
    return schema(**values) if is_whole else None


def _of_kind(kind: str, made: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            section.removeprefix(f"{kind}."): each
            for section, each in made.items()
            if section.startswith(f"{kind}.") and each is not None
        }
    )


def _shown(setting: Setting, reading: _Reading) -> Setting:
    """An entry of a table is a text, and yet may be a password."""
    for given in reading.given:
        if given.name == setting.name and given.entry and _is_secret(given, reading):
            return dataclasses.replace(setting, value=Secret(setting.value))
    return setting


def _is_secret(given: _Given, reading: _Reading) -> bool:
    (about,) = (
        each.metadata
        for each in fields_of(reading.schemas[given.section])
        if each.name == given.key
    )
    if given.entry:
        return bool(about["hides"](given.entry, given.raw))
    return isinstance(about["kind"], SecretKind)


def fields_of(schema: Schema) -> "tuple[dataclasses.Field[Any], ...]":
    """What can be set in such a section."""
    return tuple(each for each in dataclasses.fields(schema) if "doc" in each.metadata)


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


def _read_file(file: Path, reading: _Reading) -> Mapping[str, Any]:
    try:
        sections, lines = toml_file.read(file)
    except toml_file.Unreadable as error:
        if error.line is None:
            wrong = Mistake(str(file), f"cannot be read ({error})", "a readable UTF-8 file")
        else:
            place = f"{file.name}:{error.line}"
            wrong = Mistake(place, f"not TOML: {error}", "TOML (https://toml.io)")
        reading.mistakes.append(wrong)
        return {}

    def where(*path: str) -> str:
        return f"{file.name}:{lines.get(path, 1)}"

    for kind, content in sections.items():
        if kind not in SECTIONS:
            _unknown_sections(kind, content, where, reading)
        elif not isinstance(content, Mapping):
            reading.mistakes.append(Mistake(where(kind), f"{kind} = {content!r}", f"[{kind}]"))
        elif kind in _SINGLE:
            _read_section(kind, content, where, reading)
        for name, named in content.items() if kind in _NAMED else ():
            place = where(kind, name)
            if not isinstance(named, Mapping):
                expected = f"a section [{kind}.NAME]"
                reading.mistakes.append(Mistake(place, f"{name} in [{kind}]", expected))
            elif section := reading.add_named(kind, name, place):
                _read_section(section, named, where, reading)
    return sections


def _unknown_sections(
    kind: str, content: Any, where: Callable[..., str], reading: _Reading
) -> None:
    """[pipelines.a] and [pipelines.b] are two mistakes, each with its line and what was meant."""
    meant = nearest(kind, SECTIONS)
    named = [
        name
        for name, each in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(each, Mapping)
    ]
    if meant in _NAMED and named:
        reading.mistakes += [
            Mistake(where(kind, name), f"unknown section [{kind}.{name}]", f"[{meant}.{name}]")
            for name in named
        ]
        return
    known = tuple(f"[{name}]" for name in SECTIONS)
    reading.mistakes.append(_unknown(where(kind), "section", f"[{kind}]", known))


def _read_section(
    section: str, content: Mapping[str, Any], where: Callable[..., str], reading: _Reading
) -> None:
    fields = {each.name: each for each in fields_of(reading.schemas[section])}
    path = section.split(".")
    for key, value in content.items():
        place = where(*path, key)
        if key not in fields:
            known = tuple(fields)
            reading.mistakes.append(_unknown(place, f"setting in [{section}]:", key, known))
        elif "entry" not in fields[key].metadata:
            reading.given.append(_Given(section, key, "", value, place))
        elif isinstance(value, Mapping):
            for entry, each in toml_file.leaves(value):
                # "retention.ms" is the same with and without quotes.
                place = where(*path, key, *entry)
                reading.given.append(_Given(section, key, ".".join(entry), each, place))
        else:
            expected = f"a table [{section}.{key}]"
            reading.mistakes.append(Mistake(place, f"{key} = {value!r}", expected))


def _read_environment(environ: Mapping[str, str], reading: _Reading) -> None:
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        kind, *path = variable.removeprefix(ENVIRONMENT_PREFIX).split("__")
        where = f"environment {variable}"
        if kind not in map(str.upper, SECTIONS):
            known = tuple(map(str.upper, SECTIONS))
            reading.mistakes.append(_unknown(where, "section", kind, known))
            continue
        section: str | None = kind.lower()
        if kind.lower() in _NAMED:
            name, *path = path
            spelt = _spelt(kind.lower(), name, reading)
            section = reading.add_named(kind.lower(), spelt, where)
        if section is not None and section in reading.schemas:  # others: of parts to come
            _read_variable(section, path, value, where, reading)


def _spelt(kind: str, name: str, reading: _Reading) -> str:
    """Capitals have no "-": a section of the file may be meant that has one."""
    for section in reading.begins:
        if section.replace("-", "_").upper() == f"{kind}.{name}".upper():
            return section.partition(".")[2]
    return name.lower()


def _read_variable(
    section: str, path: Sequence[str], value: str, where: str, reading: _Reading
) -> None:
    fields = {each.name.upper(): each for each in fields_of(reading.schemas[section])}
    if not path:
        reading.mistakes.append(Mistake(where, "names no setting", "__ and its name behind it"))
        return
    key, *entry = path
    about = fields[key].metadata if key in fields else {}
    if "kind" in about and not entry:
        reading.given.append(_Given(section, key.lower(), "", value, where))
    elif about.get("underscore") and len(entry) == 1 and entry[0]:
        name = entry[0].lower().replace("_", about["underscore"])
        reading.given.append(_Given(section, key.lower(), name, value, where))
    elif "entry" in about and not about["underscore"]:
        expected = f"[{section}.{key.lower()}] in {FILE_NAME}"
        reading.mistakes.append(Mistake(where, f"{key} cannot be set here", expected))
    else:
        known = tuple(name for name, each in fields.items() if "kind" in each.metadata)
        reading.mistakes.append(_unknown(where, "setting", "__".join(path), known))
