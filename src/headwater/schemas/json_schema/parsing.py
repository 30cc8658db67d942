"""JSON Schemas of drafts 4 to 2020-12: checks, canonical text, and validation of values.

Nothing is ever fetched: a $ref leads into the schema itself or to one of its references. Without a
$schema it is draft 7, as in Confluent's registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs
import orjson

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_SCHEMA
from headwater.schemas.json_schema.differences import differences, is_readable
from headwater.schemas.json_schema.model import Model
from headwater.schemas.json_schema.patterns import PATTERN_OPTIONS

_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}
_DEFAULT_DRAFT: Final = "http://json-schema.org/draft-07/schema"
_LOCAL: Final = "json-schema:///"  # what the validator makes of relative addresses


@dataclass(frozen=True, slots=True, eq=False)
class JsonSchema:
    text: str
    document: Any
    references: Mapping[str, Any]
    model: Model = field(repr=False)
    type: str = "JSON"

    def normalized(self) -> str:
        """Properties in the order of their names."""
        return orjson.dumps(self.document, option=orjson.OPT_SORT_KEYS).decode()

    def why_unreadable(self, older: "JsonSchema", *, is_lenient: bool = False) -> list[str]:
        return [
            f"{{errorType:'{found.kind}', description:'At path '{found.pointer}' the {{new}} schema"
            f" differs from the {{old}} schema: {found.kind.replace('_', ' ').lower()}'}}"
            for found in differences(older.model, self.model, is_lenient=is_lenient)
            if not is_readable(found, is_lenient=is_lenient)
        ]

    def validator(self) -> Callable[[Any], str | None]:
        """A function from a JSON value to what is wrong with it, or None."""
        made = _made(self.document, self.references)

        def check(value: Any) -> str | None:
            for error in made.iter_errors(value):
                path = "/".join(map(str, error.instance_path))
                return f"{error.message} at #/{path}"
            return None

        return check


def parse_json_schema(text: str, references: Mapping[str, str]) -> JsonSchema:
    """Raises SchemaRefused. `references` are texts by name, those that others need first."""
    loaded = {name: _loaded(each, f"reference {name}: ") for name, each in references.items()}
    document = _loaded(text)
    _check(document)
    try:
        model = Model(document, loaded)
    except RecursionError:
        raise SchemaRefused(INVALID_SCHEMA, "the schema is nested too deep") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise SchemaRefused(INVALID_SCHEMA, f"no JSON Schema: {error}") from error
    try:
        _made(document, loaded)  # patterns are checked here
    except ValueError as error:
        reason = getattr(error, "message", "") or str(error)
        raise SchemaRefused(INVALID_SCHEMA, f"no JSON Schema: {reason}") from error
    return JsonSchema(orjson.dumps(document).decode(), document, loaded, model)


def _loaded(text: str, where: str = "") -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SchemaRefused(
            INVALID_SCHEMA,
            f"{where}no JSON: {error.msg} at line {error.lineno} column {error.colno}",
        ) from error


def _check(document: Any) -> None:
    """By the schema of schemas."""
    if not isinstance(document, dict | bool):
        raise SchemaRefused(INVALID_SCHEMA, "a JSON Schema is an object, true or false")
    draft = _draft(document)
    if draft not in _DRAFTS:
        raise SchemaRefused(INVALID_SCHEMA, f"$schema {draft}", hint=f"one of {', '.join(_DRAFTS)}")
    try:
        jsonschema_rs.meta.validate(
            {"$schema": f"{draft}#", **document} if isinstance(document, dict) else document
        )
    except ValueError as error:  # ValidationError is one, and RecursionError's text
        path = "/".join(map(str, getattr(error, "instance_path", ())))
        reason = getattr(error, "message", "") or str(error)
        raise SchemaRefused(INVALID_SCHEMA, f"no JSON Schema: {reason} at #/{path}") from error


def _draft(document: Any) -> str:
    draft = document.get("$schema", _DEFAULT_DRAFT) if isinstance(document, dict) else ""
    return str(draft).removesuffix("#") or _DEFAULT_DRAFT


def _made(document: Any, references: Mapping[str, Any]) -> Any:
    def retrieve(address: str) -> Any:
        for name in (address, address.removeprefix(_LOCAL)):
            if name in references:
                return references[name]
        for referenced in references.values():
            if isinstance(referenced, dict) and referenced.get("$id") == address:
                return referenced
        raise ValueError(f"there is no reference {address}")

    return _DRAFTS[_draft(document)](document, retriever=retrieve, pattern_options=PATTERN_OPTIONS)
