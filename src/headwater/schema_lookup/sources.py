"""Where schemas are looked up: the topic `_schemas`, or a registry over HTTP."""

import base64
import threading
from typing import Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

import orjson

from headwater.errors import BrokerUnreachable, RequestRefused, SchemaRefused
from headwater.schema_records import TOPIC
from headwater.schemas import codes
from headwater.schemas.registry.records import Malformed, read_schema
from headwater.schemas.registry.tables import Tables
from headwater.schemas.registry.topic import SchemasTopic
from headwater.schemas.schema import AVRO, Reference, Schema
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings

PATIENCE_S: Final = 3.0  # a person waits
_MAX_ANSWER_BYTES: Final = 8 << 20


class SchemaSource(Protocol):
    """May be used by several threads. Methods raise SchemaRefused for what does not exist (a code
    of 404…), and HeadwaterError if there is no answer.
    """

    def of_id(self, schema_id: int) -> Schema: ...

    def referenced(self, reference: Reference) -> Schema: ...

    def latest(self, subject: str) -> tuple[int, Schema]:
        """The id and the schema of a subject's last version."""
        ...

    def close(self) -> None: ...


def schema_source(settings: SchemasSettings, bootstrap: str, login: ClientSettings) -> SchemaSource:
    """The one that is configured."""
    if settings.url is not None:
        password = settings.password.reveal() if settings.password is not None else ""
        return HttpSource(settings.url, settings.username, password)
    return TopicSource(bootstrap, login)


class TopicSource:
    """The topic `_schemas`, read when something is missing in what was read before."""

    def __init__(self, bootstrap: str, login: ClientSettings) -> None:
        self._tables = Tables()
        self._lock = threading.Lock()
        self._topic = SchemasTopic(
            bootstrap, login, self._apply, self._clear, patience_s=PATIENCE_S
        )

    def close(self) -> None:
        self._topic.close()

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        self._tables.apply(key, value)

    def _clear(self) -> None:
        self._tables = Tables()

    def _read(self) -> None:
        if not self._topic.exists():
            raise RequestRefused("there is no schema registry", detail=f"no topic {TOPIC}")
        self._topic.read()

    def of_id(self, schema_id: int) -> Schema:
        with self._lock:
            entry = self._tables.of_id(schema_id)
            if entry is None:
                self._read()
                entry = self._tables.of_id(schema_id)
        if entry is None:
            raise SchemaRefused(codes.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return entry.schema

    def referenced(self, reference: Reference) -> Schema:
        with self._lock:
            entry = self._tables.entry((reference.subject, reference.version))
            if entry is None:
                self._read()
                entry = self._tables.entry((reference.subject, reference.version))
        if entry is None:
            raise SchemaRefused(
                codes.VERSION_NOT_FOUND,
                f"{reference.subject} version {reference.version} not found",
            )
        return entry.schema

    def latest(self, subject: str) -> tuple[int, Schema]:
        with self._lock:
            self._read()
            entries = self._tables.entries(subject)
        if not entries:
            raise SchemaRefused(codes.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return entries[-1].id, entries[-1].schema


class _NoRedirects(HTTPRedirectHandler):
    """A password must not follow to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpSource:
    """A registry that speaks Confluent's REST API."""

    def __init__(self, url: str, username: str | None, password: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if username is not None:
            given = base64.b64encode(f"{username}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {given}"
        self._opener = build_opener(_NoRedirects())

    def close(self) -> None:
        pass

    def of_id(self, schema_id: int) -> Schema:
        return self._schema(self._get(f"/schemas/ids/{schema_id}"))

    def referenced(self, reference: Reference) -> Schema:
        path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
        return self._schema(self._get(f"{path}?deleted=true"))

    def latest(self, subject: str) -> tuple[int, Schema]:
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        schema_id = found.get("id")
        if not isinstance(schema_id, int):
            raise self._unreadable("a version without an id")
        return schema_id, self._schema(found)

    def register(self, subject: str, schema: Schema) -> int:
        """The schema's id, after it is a version of the subject. Raises as the other methods."""
        members: dict[str, Any] = {"schema": schema.text}
        if schema.type != AVRO:
            members["schemaType"] = schema.type
        if schema.references:
            members["references"] = [reference.as_json() for reference in schema.references]
        path = f"/subjects/{quote(subject, safe='')}/versions"
        schema_id = self._get(path, orjson.dumps(members)).get("id")
        if not isinstance(schema_id, int):
            raise self._unreadable("a version without an id")
        return schema_id

    def _schema(self, found: dict[str, Any]) -> Schema:
        try:
            return read_schema(found)
        except Malformed as error:
            raise self._unreadable(str(error)) from None

    def _get(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        """With a body it is a POST."""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
        request = Request(self._url + path, body, headers)  # noqa: S310 (a checked url)
        try:
            with self._opener.open(request, timeout=PATIENCE_S) as answer:
                data = answer.read(_MAX_ANSWER_BYTES + 1)
        except HTTPError as error:
            raise self._refused(error) from None
        except (URLError, OSError) as error:
            raise BrokerUnreachable(
                f"no schema registry answers at {self._url}",
                detail=str(getattr(error, "reason", error)),
                hint="[schemas] url is its address",
            ) from error
        return self._object(data)

    def _object(self, data: bytes) -> dict[str, Any]:
        if len(data) > _MAX_ANSWER_BYTES:
            raise self._unreadable("it is too long")
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise self._unreadable(str(error)) from None
        if not isinstance(found, dict):
            raise self._unreadable("no JSON object")
        return found

    def _refused(self, error: HTTPError) -> SchemaRefused:
        code, message = error.code * 100, f"{error.code} {error.reason}"
        try:
            found = self._object(error.read(_MAX_ANSWER_BYTES + 1))
            code, message = int(found["error_code"]), str(found["message"])
        except (KeyError, TypeError, ValueError, OSError, SchemaRefused):
            pass  # the status says it
        return SchemaRefused(code, f"the schema registry refuses: {message}", detail=self._url)

    def _unreadable(self, reason: str) -> SchemaRefused:
        return SchemaRefused(
            codes.STORE_FAILED, "the schema registry's answer is none", detail=reason
        )
