"""Schemas as the registry stores them: a type, a text, and references to other schemas.

`parse` is the way in: it gives a `Parsed` schema of any type, which has its canonical text and can
compare itself with an older one. A reference is a name in the text (an Avro type, the $id of a JSON
Schema, the file of a Protobuf import) that stands for a version of a subject.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headwater.errors import SchemaRefused
from headwater.extras import require
from headwater.schemas.codes import INVALID_SCHEMA

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
TYPES: Final = (JSON, PROTOBUF, AVRO)

MAX_TEXT_BYTES: Final = 1_000_000  # a record of `_schemas` has to hold it
MAX_REFERENCED: Final = 1000  # schemas that one refers to, directly or not
_MAX_REFERENCED_BYTES: Final = 10 << 20


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a schema's text that stands for a version of a subject."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True, slots=True)
class Schema:
    """What is registered. `metadata` and `rule_set` are stored and returned as they were given."""

    text: str
    type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None


class Parsed(Protocol):
    """A schema that was understood."""

    @property
    def type(self) -> str: ...

    @property
    def text(self) -> str:
        """Canonical: the same for all texts that differ in white space or spelling only."""
        ...

    def normalized(self) -> str:
        """Canonical, and without what has no meaning, such as the order of properties."""
        ...

    def why_unreadable(self, older: Any, *, is_lenient: bool = False) -> list[str]:
        """Why a reader that has this schema cannot read what was written by the older one, which
        is of the same type. Nothing: it can. The words "new" and "old" are written as {new} and
        {old}, for the caller knows which is which.
        """
        ...


Resolve = Callable[[Reference], Schema]


def referenced(schema: Schema, resolve: Resolve) -> dict[str, str]:
    """The texts of all schemas that this one refers to, by name; those that others need come
    first. `resolve` raises SchemaRefused for one that does not exist.
    """
    texts: dict[str, str] = {}
    _add_referenced(schema, resolve, texts, set())
    return texts


def _add_referenced(
    schema: Schema, resolve: Resolve, texts: dict[str, str], around: set[Reference]
) -> None:
    for reference in schema.references:
        if reference in around:
            raise SchemaRefused(INVALID_SCHEMA, f"reference {reference.name} refers to itself")
        if reference.name in texts:
            continue
        found = resolve(reference)
        if found.type != schema.type:
            raise SchemaRefused(
                INVALID_SCHEMA,
                f"reference {reference.name} is of another type",
                detail=f"{found.type}, and this schema is {schema.type}",
            )
        _add_referenced(found, resolve, texts, around | {reference})
        texts[reference.name] = found.text
        if (
            len(texts) > MAX_REFERENCED
            or sum(map(len, texts.values())) > _MAX_REFERENCED_BYTES
            or len(around) > MAX_REFERENCED // 10
        ):
            raise SchemaRefused(INVALID_SCHEMA, "it refers to too many schemas, or too large ones")


def parse(schema: Schema, resolve: Resolve) -> Parsed:
    """Raises SchemaRefused, which says what is wrong with it and where."""
    if len(schema.text) > MAX_TEXT_BYTES:
        raise SchemaRefused(
            INVALID_SCHEMA,
            "the schema is too large",
            detail=f"{len(schema.text):,} characters, at most {MAX_TEXT_BYTES:,}",
        )
    if not schema.text.strip():
        raise SchemaRefused(INVALID_SCHEMA, "the schema is empty")
    texts = referenced(schema, resolve)
    # Imported here: each brings a library that takes a while, and most processes need one.
    if schema.type in (JSON, PROTOBUF):
        require(f"a schema of type {schema.type}", "schemas")
    match schema.type:
        case "AVRO":
            from headwater.schemas.avro.parsing import parse_avro

            return parse_avro(schema.text, texts)
        case "JSON":
            from headwater.schemas.json_schema.parsing import parse_json_schema

            return parse_json_schema(schema.text, texts)
        case "PROTOBUF":
            from headwater.schemas.protobuf.schema import parse_protobuf

            return parse_protobuf(schema.text, texts)
    raise SchemaRefused(
        INVALID_SCHEMA, f"schema type {schema.type}", hint=f"types are {', '.join(TYPES)}"
    )
