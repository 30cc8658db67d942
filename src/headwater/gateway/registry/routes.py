"""The addresses of the schema registry, as Confluent's clients expect them."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import HeadwaterError, SchemaRefused
from headwater.gateway.registry import exchange
from headwater.gateway.registry.exchange import answer, entry_json, flag, page, path_number
from headwater.gateway.registry.serving import READ, WRITE, RegistryServing
from headwater.schemas import codes
from headwater.schemas.registry.records import Entry
from headwater.schemas.registry.registry import Registry, read_version
from headwater.schemas.registry.tables import guid
from headwater.schemas.schema import PROTOBUF, TYPES, Schema

if TYPE_CHECKING:
    from starlette.routing import Match
    from starlette.types import Scope

Handler = Callable[[RegistryServing, Request], Awaitable[Response]]

_CONTEXT: Final = "."


def registry_routes(serving: RegistryServing) -> list[Route]:
    """All of them."""
    version = "/subjects/{subject}/versions/{version}"
    return [
        _route(serving, path, method, handler, operation)
        for path, method, handler, operation in (
            ("/subjects", "GET", _subjects, READ),
            (f"{version}/referencedby", "GET", _referenced_by, READ),
            (f"{version}/schema", "GET", _version_schema, READ),
            (version, "GET", _version, READ),
            (version, "DELETE", _delete_version, WRITE),
            ("/subjects/{subject}/versions", "GET", _versions, READ),
            ("/subjects/{subject}/versions", "POST", _register, WRITE),
            ("/subjects/{subject}", "POST", _look_up, READ),
            ("/subjects/{subject}", "DELETE", _delete_subject, WRITE),
            ("/schemas", "GET", _schemas, READ),
            ("/schemas/types", "GET", _types, READ),
            ("/schemas/ids/{id}", "GET", _schema_of_id, READ),
            ("/schemas/ids/{id}/schema", "GET", _text_of_id, READ),
            ("/schemas/ids/{id}/subjects", "GET", _subjects_of_id, READ),
            ("/schemas/ids/{id}/versions", "GET", _versions_of_id, READ),
            ("/schemas/guids/{guid}", "GET", _schema_of_guid, READ),
            ("/schemas/guids/{guid}/ids", "GET", _ids_of_guid, READ),
            (f"/compatibility{version}", "POST", _compatibility, READ),
            (
                "/compatibility/subjects/{subject}/versions",
                "POST",
                _compatibility_with_all,
                READ,
            ),
            ("/config", "GET", _config, READ),
            ("/config", "PUT", _set_config, WRITE),
            ("/config", "DELETE", _delete_config, WRITE),
            ("/config/{subject}", "GET", _config, READ),
            ("/config/{subject}", "PUT", _set_config, WRITE),
            ("/config/{subject}", "DELETE", _delete_config, WRITE),
            ("/mode", "GET", _mode, READ),
            ("/mode", "PUT", _set_mode, WRITE),
            ("/mode/{subject}", "GET", _mode, READ),
            ("/mode/{subject}", "PUT", _set_mode, WRITE),
            ("/mode/{subject}", "DELETE", _delete_mode, WRITE),
            ("/contexts", "GET", _contexts, READ),
        )
    ]


def _route(
    serving: RegistryServing, path: str, method: str, handler: Handler, operation: str
) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            await serving.authorise(request, operation)
            return await handler(serving, request)
        except HeadwaterError as error:
            return exchange.failed(request, error)

    endpoint.__doc__ = handler.__doc__
    return _EncodedRoute(path, endpoint, methods=[method])


class _EncodedRoute(Route):
    """Subjects may have slashes, which are encoded in addresses ("a%2Fb"): the parts of an address
    are found before they are decoded.
    """

    def matches(self, scope: "Scope") -> "tuple[Match, Scope]":
        raw = scope.get("raw_path")
        if scope["type"] != "http" or not raw:
            return super().matches(scope)
        path = raw.partition(b"?")[0].decode("latin-1")
        match, found = super().matches({**scope, "path": path})
        for name, value in found.get("path_params", {}).items():
            found["path_params"][name] = unquote(value) if isinstance(value, str) else value
        return match, found


def _subject(request: Request) -> str:
    subject: str = request.path_params["subject"]
    return subject


def _subject_or_all(request: Request) -> str | None:
    subject = request.path_params.get("subject")
    return None if subject in (None, ":.:") else str(subject)


def _in_format(registry: Registry, request: Request, schema: Schema) -> str:
    """The text, in the format that is asked for. Raises SchemaRefused."""
    form = request.query_params.get("format", "")
    if form in ("", "default", "ignore_extensions"):
        return schema.text
    if form == "serialized" and schema.type == PROTOBUF:
        text: str = registry.parsed(schema).serialized()  # type: ignore[attr-defined]
        return text
    raise SchemaRefused(
        codes.INVALID_SCHEMA,
        f"format {form[:50]} is not supported for {schema.type}",
        hint="serialized is, for Protobuf",
    )


async def _shown(serving: RegistryServing, request: Request, entry: Entry) -> dict[str, Any]:
    return entry_json(entry, await serving.call(_in_format, request, entry.schema))


# Subjects


async def _subjects(serving: RegistryServing, request: Request) -> Response:
    """Subjects of the schema registry."""
    found = await serving.call(
        Registry.subjects,
        request.query_params.get("subjectPrefix", "").removeprefix(":*:"),
        deleted=flag(request, "deleted"),
        deleted_only=flag(request, "deletedOnly"),
    )
    return answer(request, list(page(request, found)))


async def _versions(serving: RegistryServing, request: Request) -> Response:
    """Versions of a subject."""
    is_deleted_only = flag(request, "deletedOnly")
    entries = await serving.call(
        Registry.versions, _subject(request), deleted=flag(request, "deleted") or is_deleted_only
    )
    found = [entry.version for entry in entries if not is_deleted_only or entry.is_deleted]
    return answer(request, list(page(request, found)))


async def _version(serving: RegistryServing, request: Request) -> Response:
    """A version of a subject; `latest` is the last."""
    return answer(request, await _shown(serving, request, await _asked(serving, request)))


async def _asked(serving: RegistryServing, request: Request) -> Entry:
    version = read_version(request.path_params["version"])
    deleted = flag(request, "deleted")
    return await serving.call(Registry.version, _subject(request), version, deleted=deleted)


async def _version_schema(serving: RegistryServing, request: Request) -> Response:
    """The schema of a version, and nothing else."""
    entry = await _asked(serving, request)
    return exchange.text_answer(request, await serving.call(_in_format, request, entry.schema))


async def _referenced_by(serving: RegistryServing, request: Request) -> Response:
    """Ids of the schemas that refer to a version."""
    found = await serving.call(
        Registry.references_to,
        _subject(request),
        read_version(request.path_params["version"]),
        deleted=flag(request, "deleted"),
    )
    return answer(request, list(page(request, found)))


async def _register(serving: RegistryServing, request: Request) -> Response:
    """Register a schema: a new version of the subject, unless it is there already."""
    body = await exchange.read_body(request)
    entry = await serving.call(
        Registry.register,
        _subject(request),
        exchange.schema_of(body),
        normalize=flag(request, "normalize"),
        schema_id=exchange.whole_number(body, "id", -1),
        version=exchange.whole_number(body, "version", 0),
    )
    # Without the text: clients remember theirs, which may be in another form (Protobuf).
    shown = {"id": entry.id, "version": entry.version, "guid": guid(entry.schema)}
    return answer(request, shown)


async def _look_up(serving: RegistryServing, request: Request) -> Response:
    """The version of a subject that is the schema of the request."""
    body = await exchange.read_body(request)
    entry = await serving.call(
        Registry.look_up,
        _subject(request),
        exchange.schema_of(body),
        normalize=flag(request, "normalize"),
        deleted=flag(request, "deleted"),
    )
    return answer(request, await _shown(serving, request, entry))


async def _delete_version(serving: RegistryServing, request: Request) -> Response:
    """Delete a version; for good with ?permanent=true."""
    version = read_version(request.path_params["version"])
    permanent = flag(request, "permanent")
    found = await serving.call(
        Registry.delete_version, _subject(request), version, is_permanent=permanent
    )
    return answer(request, found)


async def _delete_subject(serving: RegistryServing, request: Request) -> Response:
    """Delete a subject; for good with ?permanent=true."""
    permanent = flag(request, "permanent")
    found = await serving.call(Registry.delete_subject, _subject(request), is_permanent=permanent)
    return answer(request, found)


# Schemas


async def _schemas(serving: RegistryServing, request: Request) -> Response:
    """Versions of all subjects."""
    entries = await serving.call(
        Registry.entries,
        request.query_params.get("subjectPrefix", "").removeprefix(":*:"),
        deleted=flag(request, "deleted"),
    )
    if flag(request, "latestOnly"):
        entries = list({entry.subject: entry for entry in entries}.values())
    return answer(request, [entry_json(entry) for entry in page(request, entries)])


async def _types(serving: RegistryServing, request: Request) -> Response:
    """Types of schemas."""
    return answer(request, TYPES)


async def _of_id(serving: RegistryServing, request: Request) -> Entry:
    schema_id = path_number(request, "id")
    if serving.opened is not None:
        found = serving.opened.known_id(schema_id)
        if found is not None:
            return found
    return await serving.call(Registry.of_id, schema_id)


async def _schema_of_id(serving: RegistryServing, request: Request) -> Response:
    """The schema with an id."""
    entry = await _of_id(serving, request)
    text = None
    if request.query_params.get("format"):
        text = await serving.call(_in_format, request, entry.schema)
    shown = exchange.schema_json(entry.schema, text)
    if flag(request, "fetchMaxId"):
        shown["maxId"] = await serving.call(lambda registry: registry.max_id)
    return answer(request, shown)


async def _text_of_id(serving: RegistryServing, request: Request) -> Response:
    """The schema with an id, and nothing else."""
    entry = await _of_id(serving, request)
    return exchange.text_answer(request, await serving.call(_in_format, request, entry.schema))


async def _places(serving: RegistryServing, request: Request) -> list[Entry]:
    entries = await serving.call(
        Registry.places_of, path_number(request, "id"), deleted=flag(request, "deleted")
    )
    subject = request.query_params.get("subject")
    return [entry for entry in entries if subject in (None, "", entry.subject)]


async def _subjects_of_id(serving: RegistryServing, request: Request) -> Response:
    """Subjects that have the schema with an id."""
    found = list(dict.fromkeys(entry.subject for entry in await _places(serving, request)))
    return answer(request, list(page(request, found)))


async def _versions_of_id(serving: RegistryServing, request: Request) -> Response:
    """Versions of subjects that are the schema with an id."""
    found = [
        {"subject": entry.subject, "version": entry.version}
        for entry in await _places(serving, request)
    ]
    return answer(request, list(page(request, found)))


async def _schema_of_guid(serving: RegistryServing, request: Request) -> Response:
    """The schema with a globally unique id."""
    entry = await serving.call(Registry.of_guid, request.path_params["guid"])
    text = await serving.call(_in_format, request, entry.schema)
    return answer(request, exchange.schema_json(entry.schema, text))


async def _ids_of_guid(serving: RegistryServing, request: Request) -> Response:
    """The ids that a globally unique id stands for."""
    entry = await serving.call(Registry.of_guid, request.path_params["guid"])
    return answer(request, [{"context": _CONTEXT, "id": entry.id}])


# Compatibility


async def _compatibility(serving: RegistryServing, request: Request) -> Response:
    """Whether a schema is compatible with a version."""
    return await _compared(serving, request, read_version(request.path_params["version"]))


async def _compatibility_with_all(serving: RegistryServing, request: Request) -> Response:
    """Whether a schema could be registered."""
    return await _compared(serving, request, None)


async def _compared(serving: RegistryServing, request: Request, version: int | None) -> Response:
    body = await exchange.read_body(request)
    is_verbose = flag(request, "verbose")
    try:
        messages = await serving.call(
            Registry.why_incompatible,
            _subject(request),
            exchange.schema_of(body),
            version,
            normalize=flag(request, "normalize"),
        )
    except SchemaRefused as error:
        if error.code != codes.INVALID_SCHEMA or not is_verbose:
            raise
        messages = [str(error)]
    shown: dict[str, Any] = {"is_compatible": not messages}
    if is_verbose:
        shown["messages"] = messages
    return answer(request, shown)


# Settings


async def _config(serving: RegistryServing, request: Request) -> Response:
    """Settings of all subjects, or of one."""
    in_scope = flag(request, "defaultToGlobal")
    found = await serving.call(Registry.config, _subject_or_all(request), in_scope=in_scope)
    return answer(request, _shown_config(found))


async def _set_config(serving: RegistryServing, request: Request) -> Response:
    """Set the compatibility level and more."""
    body = await exchange.read_body(request)
    await serving.call(Registry.set_config, _subject_or_all(request), body)
    return answer(request, {name: value for name, value in body.items() if value is not None})


async def _delete_config(serving: RegistryServing, request: Request) -> Response:
    """Return to the defaults."""
    found = await serving.call(Registry.delete_config, _subject_or_all(request))
    return answer(request, _shown_config(found))


def _shown_config(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "subject"}


async def _mode(serving: RegistryServing, request: Request) -> Response:
    """The mode of all subjects, or of one."""
    in_scope = flag(request, "defaultToGlobal")
    found = await serving.call(Registry.mode, _subject_or_all(request), in_scope=in_scope)
    return answer(request, {"mode": found})


async def _set_mode(serving: RegistryServing, request: Request) -> Response:
    """Set the mode: READWRITE, READONLY, IMPORT."""
    body = await exchange.read_body(request)
    found = await serving.call(
        Registry.set_mode,
        _subject_or_all(request),
        body.get("mode"),
        is_forced=flag(request, "force"),
    )
    return answer(request, {"mode": found})


async def _delete_mode(serving: RegistryServing, request: Request) -> Response:
    """Return to the mode of all subjects."""
    found = await serving.call(Registry.delete_mode, _subject_or_all(request))
    return answer(request, {"mode": found})


async def _contexts(serving: RegistryServing, request: Request) -> Response:
    """Contexts: the default one."""
    return answer(request, [_CONTEXT])
