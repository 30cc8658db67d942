"""Settings and modes of subjects and of all: checks, the value that applies, and their records."""

from collections.abc import Mapping
from typing import Any, Final

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_MODE, INVALID_SUBJECT, NOT_PERMITTED
from headwater.schemas.compatibility import DEFAULT_LEVEL, level_of
from headwater.schemas.registry.tables import Tables

READWRITE, READONLY, READONLY_OVERRIDE = "READWRITE", "READONLY", "READONLY_OVERRIDE"
IMPORT: Final = "IMPORT"
MODES: Final = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT)
_POLICIES: Final = ("STRICT", "LENIENT")
_MAX_SUBJECT_CHARACTERS: Final = 1000


def checked_subject(subject: str) -> str:
    """Raises SchemaRefused for what cannot be one."""
    if not subject or len(subject) > _MAX_SUBJECT_CHARACTERS or not subject.isprintable():
        raise SchemaRefused(
            INVALID_SUBJECT, f"The specified subject '{subject[:100]}' is not a valid."
        )
    if subject.startswith(":."):
        raise SchemaRefused(
            INVALID_SUBJECT,
            f"The specified subject '{subject[:100]}' is not a valid.",
            detail="contexts other than the default are not supported",
        )
    return subject


def read_config(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a request sets. Raises SchemaRefused for values that cannot be, and for settings that
    would not have an effect here.
    """
    found: dict[str, Any] = {}
    for name, value in request.items():
        if value is None:
            continue
        match name:
            case "compatibility" | "compatibilityLevel":
                found["compatibilityLevel"] = level_of(value)
            case "normalize" if isinstance(value, bool):
                found[name] = value
            case "compatibilityPolicy" if str(value).upper() in _POLICIES:
                found[name] = str(value).upper()
            case "validateFields" | "validateNewSchemas" | "validateRules" if value is False:
                pass
            case _:
                raise SchemaRefused(
                    NOT_PERMITTED,
                    f"{name}: {str(value)[:100]} is not supported",
                    hint="compatibility, normalize and compatibilityPolicy (STRICT, LENIENT) are",
                )
    return found


def config_in_scope(tables: Tables, subject: str | None) -> dict[str, Any]:
    """The subject's own settings over those of all, over the defaults."""
    found = {"compatibilityLevel": DEFAULT_LEVEL, **tables.configs.get(None, {})}
    if subject is not None:
        found |= tables.configs.get(subject, {})
    return found


def read_mode(value: object) -> str:
    """Raises SchemaRefused for what is none."""
    if isinstance(value, str) and value.upper() in MODES:
        return value.upper()
    raise SchemaRefused(
        INVALID_MODE,
        "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE and IMPORT.",
    )


def mode_in_scope(tables: Tables, subject: str | None) -> str:
    everywhere = tables.modes.get(None, READWRITE)
    if everywhere == READONLY_OVERRIDE:
        return everywhere
    return tables.modes.get(subject, everywhere) if subject is not None else everywhere


def check_writable(tables: Tables, subject: str | None) -> None:
    """Raises SchemaRefused in a mode that lets nothing be changed."""
    if mode_in_scope(tables, subject) in (READONLY, READONLY_OVERRIDE):
        raise SchemaRefused(
            NOT_PERMITTED, f"Subject {subject or ''} in context . is in read-only mode"
        )


def check_registrable(tables: Tables, subject: str, *, has_id: bool) -> None:
    """Whether schemas can be registered: with an id in mode IMPORT only, without one not there."""
    check_writable(tables, subject)
    mode = mode_in_scope(tables, subject)
    if has_id and mode != IMPORT:
        raise SchemaRefused(NOT_PERMITTED, f"Subject {subject} in context . is not in import mode")
    if not has_id and mode != READWRITE:
        raise SchemaRefused(
            NOT_PERMITTED, f"Subject {subject} in context . is not in read-write mode"
        )
