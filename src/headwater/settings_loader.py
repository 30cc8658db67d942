"""Reads settings from flags, the environment and headwater.toml, and where each came from.

A value comes from the first of these sources that has one:

    a flag                            --listen 127.0.0.1:9092
    the environment                   HEADWATER_BROKER__LISTEN=127.0.0.1:9092
    headwater.toml                    [broker] listen = "127.0.0.1:9092"
    the default

The file is the one that --config names, else HEADWATER_CONFIG, else ./headwater.toml if there is
one. Nothing is guessed and nothing ignored: an unknown name is a mistake, and all mistakes are
reported together, each with its file and line.

A single section, such as [broker], occurs once. A named section, such as [capture.NAME], may occur
several times; in the environment its name is written in capitals with "_" for "-"
(HEADWATER_CAPTURE__SHOP__SOURCE). This module knows no section: its caller passes them.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headwater.errors import ConfigError
from headwater.setting_sources import (
    Given,
    Mistake,
    Reading,
    Schema,
    Sections,
    fields_of,
    find_file,
    key_of,
    read_environment,
    read_file,
)
from headwater.settings import Secret, SecretKind

_USER_IN_URL: Final = re.compile(r"://[^/?#]*@")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value, and where it came from."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read. With mistakes, the default stands for each wrong value; a named section that
    lacks a required setting is left out.
    """

    path: Path | None
    single: Mapping[str, Any]
    named: Mapping[str, Mapping[str, Any]]
    settings: tuple[Setting, ...]
    raw_sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]


def read(
    sections: Sections,
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Loaded:
    """The settings of all sections. Mistakes are returned, not raised.

    `flags` has the values given on the command line by setting name ("broker.listen"); None
    stands for a flag that was not given.
    """
    environ = os.environ if environ is None else environ
    reading = Reading(sections, dict(sections.single))
    file = find_file(path, environ, cwd or os.getcwd(), reading.mistakes)
    raw_sections = read_file(file, reading) if file else {}
    read_environment(environ, reading)
    for name, value in (flags or {}).items():
        if value is not None:
            section, key, *entry = name.split(".", 2)  # an entry of a table may have dots, too
            flag = f"flag --{key.replace('_', '-')}"
            reading.given.append(Given(section, key, "".join(entry), value, flag))

    settings = _valued(reading)
    made = {
        section: _made(section, schema, settings, reading)
        for section, schema in reading.schemas.items()
    }
    return Loaded(
        file,
        {section: made[section] for section in sections.single},
        {kind: _of_kind(kind, made) for kind in sections.named},
        tuple(_shown(setting, reading) for setting in settings.values()),
        raw_sections,
        tuple(reading.mistakes),
    )


def check(mistakes: Sequence[Mistake]) -> None:
    """Raises ConfigError that names every mistake, if there are any."""
    if mistakes:
        count = len(mistakes)
        raise ConfigError(
            "the configuration is wrong"
            if count == 1
            else f"{count} mistakes in the configuration",
            detail="\n".join(str(mistake) for mistake in mistakes),
            hint="docs/configuration.md lists every setting; `headwater doctor` shows what is set",
        )


def _valued(reading: Reading) -> dict[str, Setting]:
    """Every setting by its name: the strongest value that was given, else the default."""
    fields = {
        f"{section}.{key_of(found)}": found
        for section, schema in reading.schemas.items()
        for found in fields_of(schema)
    }
    settings = {
        name: Setting(name, found.default, "default")
        for name, found in fields.items()
        if "kind" in found.metadata
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
    return {name: made for name, made in settings.items() if made.value is not dataclasses.MISSING}


def _made(section: str, schema: Schema, settings: Mapping[str, Setting], reading: Reading) -> Any:
    """The section as an object; None (and a mistake) if it lacks what it must have."""
    values: dict[str, Any] = {}
    is_whole = True
    for found in fields_of(schema):
        name = f"{section}.{key_of(found)}"
        if "entry" in found.metadata:
            values[found.name] = MappingProxyType(
                {
                    key.removeprefix(f"{name}."): setting.value
                    for key, setting in settings.items()
                    if key.startswith(f"{name}.")
                }
            )
        elif name in settings:
            values[found.name] = settings[name].value
        else:
            is_whole = False
            if not any(
                given.name == name for given in reading.given
            ):  # else it is reported as wrong
                where = reading.begins[section]
                doc = found.metadata["doc"]
                reading.mistakes.append(Mistake(where, f"[{section}] has no {key_of(found)}", doc))
    if section in reading.begins:
        values["name"] = section.rpartition(".")[2]
    return schema(**values) if is_whole else None


def _of_kind(kind: str, made: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            section.removeprefix(f"{kind}."): values
            for section, values in made.items()
            if section.startswith(f"{kind}.") and values is not None
        }
    )


def _shown(setting: Setting, reading: Reading) -> Setting:
    """An entry of a table is a text, and yet may be a password."""
    for given in reading.given:
        if given.name == setting.name and given.entry and _is_secret(given, reading):
            return dataclasses.replace(setting, value=Secret(setting.value))
    return setting


def _is_secret(given: Given, reading: Reading) -> bool:
    (about,) = (
        found.metadata
        for found in fields_of(reading.schemas[given.section])
        if key_of(found) == given.key
    )
    if given.entry:
        return bool(about["hides"](given.entry, given.raw))
    has_password = _USER_IN_URL.search(str(given.raw))  # where none belongs
    return isinstance(about["kind"], SecretKind) or has_password is not None
