"""Compatibility levels: which of the older versions a new schema is compared with, and which way.

BACKWARD    a reader with the new schema reads what the last version has written
FORWARD     a reader with the last version reads what the new schema writes
FULL        both
…_TRANSITIVE    the same with all versions instead of the last
NONE        nothing is compared
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_COMPATIBILITY
from headwater.schemas.schema import Parsed

LEVELS: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
DEFAULT_LEVEL: Final = "BACKWARD"


class Older(NamedTuple):
    version: int
    schema: Parsed


def level_of(value: object) -> str:
    """Raises SchemaRefused for what is none."""
    if isinstance(value, str) and value.upper() in LEVELS:
        return value.upper()
    raise SchemaRefused(
        INVALID_COMPATIBILITY,
        "Invalid compatibility level. Valid values are none, backward, forward, full,"
        " backward_transitive, forward_transitive, and full_transitive",
    )


def incompatibilities(
    new: Parsed, older: Sequence[Older], level: str, *, is_lenient: bool = False
) -> list[str]:
    """What stands in the way, one message each, and which version it is about. Nothing: the new
    schema is compatible. `older` are the versions in their order. `is_lenient` is for JSON Schema:
    whether properties may be added to and removed from any object.
    """
    if level == "NONE" or not older:
        return []
    candidates = list(reversed(older)) if level.endswith("_TRANSITIVE") else [older[-1]]
    direction = level.removesuffix("_TRANSITIVE")
    for version, schema in candidates:
        messages = []
        if schema.type != new.type:
            messages.append(
                "Incompatible because of different schema type:"
                f" {new.type}, and the old schema is {schema.type}"
            )
        else:
            if direction in ("BACKWARD", "FULL"):
                messages += _said(new.why_unreadable(schema, is_lenient=is_lenient), "new", "old")
            if direction in ("FORWARD", "FULL"):
                messages += _said(schema.why_unreadable(new, is_lenient=is_lenient), "old", "new")
        if messages:
            return [
                *dict.fromkeys(messages),
                f"{{oldSchemaVersion: {version}}}",
                f"{{oldSchema: '{schema.text}'}}",
                f"{{compatibility: '{level}'}}",
            ]
    return []


def _said(messages: Sequence[str], reader: str, writer: str) -> list[str]:
    return [text.replace("{new}", reader).replace("{old}", writer) for text in messages]
