"""What can be set in [subjects] and [subject.NAME]. Imported with the configuration, so it stays
light.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from headwater.settings import setting, text

MARKER = "subjects.json"  # in the data directory: which key store belongs to it
_EXPECTED = 'a table such as { "shop.public.customers" = { id = "id", personal = ["name"] } }'


@dataclass(frozen=True, slots=True)
class TopicFields:
    """Which field of a topic's values names the subject, and which fields are personal. Fields are
    members of the value; in a change event those of the row before and after it.
    """

    id: str
    personal: tuple[str, ...]


def _topics(value: Any) -> Mapping[str, TopicFields]:
    if isinstance(value, str):  # of the environment
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"{_EXPECTED}, in JSON") from None
    if not isinstance(value, Mapping) or not value:
        raise ValueError(_EXPECTED)
    found: dict[str, TopicFields] = {}
    _collect((), value, found)
    return found


def _collect(path: tuple[str, ...], value: Any, found: dict[str, TopicFields]) -> None:
    """A topic's name without quotes is a path of tables."""
    if not isinstance(value, Mapping):
        raise ValueError(_EXPECTED)  # noqa: TRY004 (what was read is data, not an argument)
    if "personal" not in value and "id" not in value:
        for name, inner in value.items():
            _collect((*path, str(name)), inner, found)
        return
    found[".".join(path)] = _fields(".".join(path), value)


def _fields(topic: str, value: Mapping[str, Any]) -> TopicFields:
    unknown = sorted(value.keys() - {"id", "personal"})
    if not topic or unknown:
        raise ValueError(f"{_EXPECTED}; not {unknown[0]}" if unknown else _EXPECTED)
    name, personal = value.get("id"), value.get("personal")
    if not isinstance(name, str) or not name:
        raise ValueError(f'for {topic} the field that names the subject: id = "id"')
    if (
        not isinstance(personal, list)
        or not personal
        or not all(isinstance(field, str) and field for field in personal)
    ):
        raise ValueError(f'for {topic} a list of fields: personal = ["name"]')
    if name in personal:
        raise ValueError(
            f"for {topic} an id that is not personal: {name} stays readable, for it says whose key"
            " opens the rest"
        )
    return TopicFields(name, tuple(dict.fromkeys(personal)))


@dataclass(frozen=True, slots=True)
class SubjectsSettings:
    """The [subjects] section: where the keys are."""

    key_store: str | None = setting(
        None,
        text,
        "Directory of the key store, relative to the config file. `headwater backup` leaves it out:"
        " back it up apart. Default: `subjects` in the data directory.",
    )
    key_file: str | None = setting(
        None,
        text,
        "File with the root key, which wraps all other keys; created with mode 0600 at first use."
        " Better on another disk than the key store. Default: `root.key` in the key store.",
    )
    key_command: str | None = setting(
        None,
        text,
        "Instead of `key_file`: a command of an external KMS. It is run with `wrap` or `unwrap`"
        " behind it, reads base64 from stdin and writes base64 to stdout.",
    )


@dataclass(frozen=True, slots=True)
class SubjectSettings:
    """One [subject.NAME] section: a kind of subject, such as customer."""

    name: str
    topics: Mapping[str, TopicFields] = setting(
        MISSING,
        _topics,
        "A table from topics to the field that names the subject (`id`) and the fields that are"
        ' personal: `{ "shop.public.customers" = { id = "id", personal = ["name", "email"] } }`.',
    )


@dataclass(frozen=True, slots=True)
class KeyPlaces:
    """The settings with absolute paths, as they are handed to other processes."""

    key_store: str
    key_file: str
    key_command: str | None
    marker: str  # a file that remembers which key store belongs to the data directory


def places(settings: SubjectsSettings, base: str, data_dir: str) -> KeyPlaces:
    """`base`: where relative paths of the file begin; `data_dir`: of the broker."""
    from pathlib import Path

    directory = (Path(base) / (settings.key_store or Path(data_dir) / "subjects")).resolve()
    file = Path(base) / settings.key_file if settings.key_file else directory / "root.key"
    marker = (Path(base) / data_dir / MARKER).resolve()
    return KeyPlaces(str(directory), str(file.resolve()), settings.key_command, str(marker))
