"""Registration of schemas before records are written by them: in `_schemas`, or over HTTP."""

import threading
from typing import Final, Protocol

from headwater.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    HeadwaterError,
    SchemaRefused,
)
from headwater.schema_lookup.sources import HttpSource
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Schema
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings

_REFUSED: Final = frozenset({404, 409, 422})  # what the registry says about the schema itself
_FORBIDDEN: Final = frozenset({401, 403})


class SchemaRegistration(Protocol):
    """May be used by several threads."""

    def register(self, subject: str, schema: Schema) -> int:
        """The id of the schema, which is a version of the subject then: a new one, unless it was
        one before. Raises SchemaRefused if the registry does not take the schema,
        AuthenticationFailed if it does not take it from us, and BrokerUnreachable if it does not
        answer or cannot store it now.
        """
        ...

    def close(self) -> None: ...


def schema_registration(
    settings: SchemasSettings, bootstrap: str, login: ClientSettings
) -> SchemaRegistration:
    """At the registry that is configured. Nothing is asked until the first schema."""
    if settings.url is not None:
        password = settings.password.reveal() if settings.password is not None else ""
        return HttpRegistration(settings.url, settings.username, password)
    return TopicRegistration(bootstrap, login)


class HttpRegistration:
    """At a registry that speaks Confluent's REST API."""

    def __init__(self, url: str, username: str | None, password: str) -> None:
        self._registry = HttpSource(url, username, password)

    def close(self) -> None:
        self._registry.close()

    def register(self, subject: str, schema: Schema) -> int:
        try:
            return self._registry.register(subject, schema)
        except SchemaRefused as error:
            raise _sorted_out(error) from error


class TopicRegistration:
    """In the topic `_schemas`, as the gateway's registry does it, whether a gateway runs or not."""

    def __init__(self, bootstrap: str, login: ClientSettings) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._lock = threading.Lock()
        self._registry: Registry | None = None

    def close(self) -> None:
        with self._lock:
            if self._registry is not None:
                self._registry.close()
                self._registry = None

    def register(self, subject: str, schema: Schema) -> int:
        try:
            return self._opened().register(subject, schema).id
        except SchemaRefused as error:
            raise _sorted_out(error) from error

    def _opened(self) -> Registry:
        with self._lock:
            if self._registry is None:
                registry = Registry(self._bootstrap, self._login)
                try:
                    registry.open()
                except BaseException:
                    registry.close()
                    raise
                self._registry = registry
            return self._registry


def _sorted_out(error: SchemaRefused) -> HeadwaterError:
    """Whether it is about the schema, about us, or about the registry."""
    status = error.code // 100 if error.code >= 1000 else error.code
    if status in _REFUSED:
        return error
    if status in _FORBIDDEN:
        return AuthenticationFailed(
            error.what,
            detail=error.detail,
            hint="[schemas] username and password are those of a user that may register schemas",
        )
    return BrokerUnreachable(
        "the schema registry cannot store a schema now",
        detail=f"{error.what} {error.detail}".strip(),
        hint=error.hint,
    )
