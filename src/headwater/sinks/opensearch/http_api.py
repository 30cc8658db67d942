"""A client of OpenSearch's HTTP API, as far as the sink needs it."""

import base64
import http.client
import time
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson

from headwater.errors import StoreRefused, StoreUnreachable
from headwater.sinks.notifications.delivery import (
    refuse_clear_credentials,
    split_address,
    tls_context,
)

_TIMEOUT_S: Final = 60
_IDLE_S: Final = 5  # a longer idle connection may have been closed by a proxy


class OpenSearchApi:
    """One connection, for one thread."""

    def __init__(self, whose: str, url: str, tls_ca: str | None) -> None:
        hint = 'it is one such as "https://user@host:9200"'
        parts = split_address(whose, url, ("http", "https"), hint)
        assert parts.hostname is not None
        self._whose = whose
        self._at = (parts.scheme, parts.hostname, parts.port or 9200, parts.path.rstrip("/"))
        self._headers = {"Content-Type": "application/json"}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
            if parts.scheme == "http":
                refuse_clear_credentials(whose, parts.hostname, "https:// encrypts it")
        self._tls = tls_context(tls_ca) if parts.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def ask(
        self, method: str, path: str, body: Any = None, *, allow: tuple[int, ...] = ()
    ) -> tuple[int, Any]:
        """Status and answer. `body` is made JSON; bytes are sent as they are. Raises
        StoreUnreachable (a retry may help) and StoreRefused, but not for a status of `allow`.
        """
        content = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        status, answer = self._send(method, path, content)
        try:
            read = orjson.loads(answer) if answer else {}
        except orjson.JSONDecodeError:
            read = {"error": answer[:200].decode(errors="replace")}
        if status < 300 or status in allow:
            return status, read
        detail = reason_of(read) or f"status {status}"
        if status in (401, 403):
            raise StoreRefused(
                f"{self._whose}: OpenSearch refuses the user or what it does",
                detail=detail,
                hint="the user comes from url, its password from there or from password_file",
            )
        if status == 429 or status >= 500:
            raise StoreUnreachable(f"{self._whose}: OpenSearch accepts nothing now", detail=detail)
        raise StoreRefused(f"{self._whose}: OpenSearch refuses {method} {path}", detail=detail)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        if time.monotonic() - self._used_s > _IDLE_S:
            self.close()
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request(method, self._at[3] + path, content, self._headers)
            with self._connection.getresponse() as response:
                answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            # Not retried here: only the position can decide whether it was done.
            self.close()
            raise StoreUnreachable(
                f"{self._whose}: OpenSearch does not answer",
                detail=f"{type(error).__name__}: {error}",
            ) from None
        self._used_s = time.monotonic()
        return response.status, answer

    def _connected(self) -> http.client.HTTPConnection:
        scheme, host, port, _ = self._at
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._tls)


def reason_of(answer: Any) -> str:
    """The innermost cause of an error, as OpenSearch reports it."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return str(error or "")
    reasons = []
    while isinstance(error, dict):
        reasons.append(str(error.get("reason", error.get("type"))))
        error = error.get("caused_by")
    return "; ".join(reasons)


def path_of(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)
