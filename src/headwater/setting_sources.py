"""Values that headwater.toml and the environment give, with their location, before any check."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from headwater import toml_file
from headwater.spelling import nearest

FILE_NAME: Final = "headwater.toml"
ENVIRONMENT_PREFIX: Final = "HEADWATER_"
Schema: TypeAlias = type[Any]  # a dataclass whose fields are made by settings.setting and .table


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections that a file may have. One inside of another has a dot: "gateway.statsd"."""

    single: Mapping[str, Schema]
    named: Mapping[str, Schema]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.single, *self.named)

    def inside(self, kind: str) -> tuple[str, ...]:
        """The sections inside of this one, by their last names."""
        return tuple(
            name.removeprefix(f"{kind}.") for name in self.names if name.startswith(f"{kind}.")
        )


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


class Given(NamedTuple):
    """A value that a source gives."""

    section: str  # "broker", "capture.shop"
    key: str
    entry: str  # in a table: "retention.ms"; else ""
    raw: Any
    where: str

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.section, self.key, self.entry)))


@dataclass(slots=True)
class Reading:
    """What was found so far."""

    sections: Sections
    schemas: dict[str, Schema]  # by section
    begins: dict[str, str] = field(default_factory=dict)  # where each named section begins
    given: list[Given] = field(default_factory=list)  # weakest first
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
        self.schemas[section] = self.sections.named[kind]
        self.begins[section] = where
        return section


def fields_of(schema: Schema) -> "tuple[dataclasses.Field[Any], ...]":
    """What can be set in such a section."""
    return tuple(found for found in dataclasses.fields(schema) if "doc" in found.metadata)


def key_of(field: "dataclasses.Field[Any]") -> str:
    """Its name in the file. Where that is a word of Python's, the field has "_" behind it."""
    return field.name.removesuffix("_")


def _unknown(where: str, what: str, name: str, names: tuple[str, ...]) -> Mistake:
    meant = nearest(name, names)
    expected = f"{meant} (the nearest name)" if meant else "one of " + ", ".join(names)
    return Mistake(where, f"unknown {what} {name}", expected)


def find_file(
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


def read_file(file: Path, reading: Reading) -> Mapping[str, Any]:
    try:
        sections, lines = toml_file.read(file)
    except toml_file.Unreadable as error:
        if error.line is None:
            wrong = Mistake(str(file), f"cannot be read ({error})", "a readable UTF-8 file")
        else:
            location = f"{file.name}:{error.line}"
            wrong = Mistake(location, f"not TOML: {error}", "TOML (https://toml.io)")
        reading.mistakes.append(wrong)
        return {}

    def where(*path: str) -> str:
        return f"{file.name}:{lines.get(path, 1)}"

    for kind, content in sections.items():
        _read_kind(kind, content, where, reading)
    return sections


def _read_kind(kind: str, content: Any, where: Callable[..., str], reading: Reading) -> None:
    path = kind.split(".")
    if kind not in reading.sections.names:
        _unknown_sections(kind, content, where, reading)
        return
    if not isinstance(content, Mapping):
        reading.mistakes.append(Mistake(where(*path), f"{kind} = {content!r}", f"[{kind}]"))
        return
    inside = reading.sections.inside(kind)
    for name in inside:
        if name in content:
            _read_kind(f"{kind}.{name}", content[name], where, reading)
    if kind in reading.sections.single:
        own = {name: value for name, value in content.items() if name not in inside}
        _read_section(kind, own, where, reading)
        return
    for name, named in content.items():
        location = where(*path, name)
        if not isinstance(named, Mapping):
            expected = f"a section [{kind}.NAME]"
            reading.mistakes.append(Mistake(location, f"{name} in [{kind}]", expected))
        elif section := reading.add_named(kind, name, location):
            _read_section(section, named, where, reading)


def _unknown_sections(kind: str, content: Any, where: Callable[..., str], reading: Reading) -> None:
    """[pipelines.a] and [pipelines.b] are two mistakes, each with its line and what was meant."""
    meant = nearest(kind, reading.sections.names)
    named = [
        name
        for name, inner in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(inner, Mapping)
    ]
    if meant in reading.sections.named and named:
        reading.mistakes += [
            Mistake(where(kind, name), f"unknown section [{kind}.{name}]", f"[{meant}.{name}]")
            for name in named
        ]
        return
    names = tuple(f"[{name}]" for name in reading.sections.names)
    reading.mistakes.append(_unknown(where(kind), "section", f"[{kind}]", names))


def _read_section(
    section: str, content: Mapping[str, Any], where: Callable[..., str], reading: Reading
) -> None:
    fields = {key_of(found): found for found in fields_of(reading.schemas[section])}
    path = section.split(".")
    for key, value in content.items():
        location = where(*path, key)
        if key not in fields:
            names = (*fields, *reading.sections.inside(section))
            reading.mistakes.append(_unknown(location, f"setting in [{section}]:", key, names))
        elif "entry" not in fields[key].metadata:
            reading.given.append(Given(section, key, "", value, location))
        elif isinstance(value, Mapping):
            for entry, leaf in toml_file.leaves(value):
                # "retention.ms" is the same with and without quotes.
                location = where(*path, key, *entry)
                reading.given.append(Given(section, key, ".".join(entry), leaf, location))
        else:
            expected = f"a table [{section}.{key}]"
            reading.mistakes.append(Mistake(location, f"{key} = {value!r}", expected))


def read_environment(environ: Mapping[str, str], reading: Reading) -> None:
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        kind, *path = variable.removeprefix(ENVIRONMENT_PREFIX).split("__")
        where = f"environment {variable}"
        names = tuple(name.upper() for name in reading.sections.names if "." not in name)
        if kind not in names:
            reading.mistakes.append(_unknown(where, "section", kind, names))
            continue
        found = kind.lower()
        while path and path[0].lower() in reading.sections.inside(found):
            found, path = f"{found}.{path[0].lower()}", path[1:]
        section: str | None = found
        if found in reading.sections.named:
            if not path:
                expected = "__ and a name behind it"
                reading.mistakes.append(Mistake(where, f"names no [{found}.NAME]", expected))
                continue
            name, *path = path
            spelt = _spelt(found, name, reading)
            section = reading.add_named(found, spelt, where)
        if section is not None:
            _read_variable(section, path, value, where, reading)


def _spelt(kind: str, name: str, reading: Reading) -> str:
    """Capitals have no "-": a section of the file may be meant that has one."""
    for section in reading.begins:
        if section.replace("-", "_").upper() == f"{kind}.{name}".upper():
            return section.removeprefix(f"{kind}.")
    return name.lower()


def _read_variable(
    section: str, path: Sequence[str], value: str, where: str, reading: Reading
) -> None:
    fields = {key_of(field).upper(): field for field in fields_of(reading.schemas[section])}
    if not path:
        reading.mistakes.append(Mistake(where, "names no setting", "__ and its name behind it"))
        return
    key, *entry = path
    about = fields[key].metadata if key in fields else {}
    if "kind" in about and not entry:
        reading.given.append(Given(section, key.lower(), "", value, where))
    elif about.get("underscore") and len(entry) == 1 and entry[0]:
        name = entry[0].lower().replace("_", about["underscore"])
        reading.given.append(Given(section, key.lower(), name, value, where))
    elif "entry" in about and not about["underscore"]:
        expected = f"[{section}.{key.lower()}] in {FILE_NAME}"
        reading.mistakes.append(Mistake(where, f"{key} cannot be set here", expected))
    else:
        names = tuple(name for name, found in fields.items() if "kind" in found.metadata)
        reading.mistakes.append(_unknown(where, "setting", "__".join(path), names))
