"""Requests and answers of the registry, in Confluent's form: content types, errors with codes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headwater.errors import ConfigError, HeadwaterError, SchemaRefused
from headwater.gateway.answers import Refusal, status_of
from headwater.schemas import codes
from headwater.schemas.registry.records import Entry, Malformed, read_schema
from headwater.schemas.registry.tables import guid
from headwater.schemas.schema import AVRO, Schema

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_OTHER_TYPES: Final = ("application/vnd.schemaregistry+json", "application/json")
MAX_BODY_BYTES: Final = 4 << 20

_T = TypeVar("_T")


def answer(request: Request, data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type=_content_type(request))


def text_answer(request: Request, text: str) -> Response:
    """A schema itself, which is JSON or the text of a .proto file."""
    return Response(text, 200, media_type=_content_type(request))


def _content_type(request: Request) -> str:
    accepted = request.headers.get("accept", "*/*")
    if CONTENT_TYPE not in accepted:
        for other in _OTHER_TYPES:
            if other in accepted:
                return other
    return CONTENT_TYPE


def failed(request: Request, error: HeadwaterError) -> Response:
    """{"error_code": 40401, "message": "Subject 'x' not found."}, with the status that belongs to
    it.
    """
    if isinstance(error, SchemaRefused):
        code, status = error.code, error.code // 100
    else:
        status = status_of(error)
        code = codes.INVALID_SCHEMA if isinstance(error, ConfigError) else status
        status = code // 100 if code > 999 else code
    message = str(error) + (f"; {error.hint}" if error.hint else "")
    made = answer(request, {"error_code": code, "message": message}, status)
    if isinstance(error, Refusal):
        made.headers.update(error.headers)
    return made


async def read_body(request: Request) -> dict[str, Any]:
    """Raises Refusal for what is no JSON object, or is too long."""
    parts, size_bytes = [], 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > MAX_BODY_BYTES:
            raise Refusal(413, f"the body has more than {MAX_BODY_BYTES:,} bytes")
        parts.append(part)
    try:
        found = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError as error:
        raise Refusal(
            400, f"the body is no JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return found


def schema_of(body: Mapping[str, Any]) -> Schema:
    """Raises SchemaRefused."""
    if body.get("schema") in (None, ""):
        raise SchemaRefused(codes.INVALID_SCHEMA, "Empty schema")
    try:
        return read_schema(body)
    except Malformed as error:
        raise SchemaRefused(codes.INVALID_SCHEMA, f"Invalid schema: {error}") from None


def whole_number(body: Mapping[str, Any], name: str, default: int) -> int:
    """Raises SchemaRefused for anything else."""
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not -1 <= value < 1 << 31:
        raise SchemaRefused(codes.INVALID_SCHEMA, f"{name} is no whole number")
    return value


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def page(request: Request, items: Sequence[_T]) -> Sequence[_T]:
    """The part that `offset` and `limit` ask for."""
    offset, limit = (_number(request, name, default) for name, default in
                     (("offset", 0), ("limit", -1)))  # fmt: skip
    return items[offset:] if limit < 0 else items[offset : offset + limit]


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    try:
        number = int(text) if text else default
    except ValueError:
        raise Refusal(400, f"{name} is no whole number", detail=text[:100]) from None
    return max(number, default)


def path_number(request: Request, name: str) -> int:
    """Raises Refusal, as for an address that there is not."""
    text: str = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise Refusal(404, "HTTP 404 Not Found")
    return int(text)


def entry_json(entry: Entry, text: str | None = None) -> dict[str, Any]:
    """A version of a subject. `text` replaces the schema's own."""
    made: dict[str, Any] = {
        "subject": entry.subject,
        "version": entry.version,
        "id": entry.id,
        "guid": guid(entry.schema),
        **schema_json(entry.schema, text),
    }
    if entry.is_deleted:
        made["deleted"] = True
    return made


def schema_json(schema: Schema, text: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if schema.type != AVRO:
        made["schemaType"] = schema.type
    if schema.references:
        made["references"] = [reference.as_json() for reference in schema.references]
    if schema.metadata:
        made["metadata"] = schema.metadata
    if schema.rule_set:
        made["ruleSet"] = schema.rule_set
    made["schema"] = schema.text if text is None else text
    return made
