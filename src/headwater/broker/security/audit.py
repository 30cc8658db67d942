"""The audit log: one JSON object per login, denial or change, in a file rotated by size.

    denied           a client may not do what it asked for
    authentication   a client proved its identity, or did not
    change           topics, settings, ACLs, users, quotas, groups or records were changed; or not,
                     for another reason than a missing right (`error`)

What did not happen repeats as fast as a client can ask, and so do logins, and offsets that a client
commits for a group without being a member of it (a seek, or a consumer by itself). The first of its
kind is written at once, the rest of its minute is counted (`repeated`), and a minute writes no more
than DISTINCT_PER_WINDOW kinds of one user's denials and of its seeks, of failed logins and of
logins; so a flood can neither fill the disk, nor push the log's past out of it, nor hide what
another user does, nor the login that succeeds at last. Other changes that happened are all written.

Lines are written by a thread. What it cannot write in time, or not at all, is dropped and counted;
no request waits for it. Text that a client chose is cut. No password, key or value of a setting is
ever written.
"""

import asyncio
import logging
import os
from collections import Counter, deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from headwater.broker.security.acls import Operation, ResourceType
from headwater.clock import Clock, Timer
from headwater.log.disk.workers import Workers
from headwater.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from headwater.broker.api.registry import RequestContext

log = logging.getLogger(__name__)

WINDOW_S = 60.0
DISTINCT_PER_WINDOW = 500
MAX_WAITING_LINES = 10_000
MAX_TEXT_CHARS = 256
MAX_FILE_BYTES = 32 << 20
OLD_FILES = 4  # audit.jsonl.1 is the youngest of them
_Share = tuple[str, bool, str]  # event, allowed, principal: they have a minute's lines in common


class Change(NamedTuple):
    """One thing that an administrative request did, or was refused."""

    operation: Operation
    resource_type: str
    resource: str
    error_code: int
    detail: str = ""


class AuditLog:
    """See the module. Without a `path` nothing is written. Used on the event loop."""

    def __init__(
        self, path: str | None, clock: Clock, *, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self.dropped = 0
        self._path = path
        self._clock = clock
        self._max_file_bytes = max_file_bytes
        self._waiting: deque[bytes] = deque()
        self._is_writing = False
        self._is_failing = False
        self._workers = Workers("audit", 1)
        # This minute's events that repeat, by what they have in common.
        self._seen: dict[tuple[object, ...], dict[str, Any]] = {}
        self._repeated: Counter[tuple[object, ...]] = Counter()
        self._kinds: Counter[_Share] = Counter()  # of them, written
        self._unlisted: Counter[_Share] = Counter()  # of further ones
        self._window: Timer | None = None

    async def close(self) -> None:
        """Writes what is queued and ends the thread. It may be used again."""
        self._end_window()
        await asyncio.to_thread(self._workers.close)

    # ── events ────────────────────────────────────────────────────────────────────────────────

    def denied(
        self,
        context: "RequestContext",
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> None:
        if self._path is not None:
            self._repeatable(
                "denied",
                (context.principal, context.client_host, operation, resource_type, _cut(name)),
                {
                    **_who(context),
                    "operation": operation.name,
                    "resource_type": resource_type.name,
                    "resource": _cut(name),
                    "allowed": False,
                },
            )

    def authentication(self, principal: str, host: str, mechanism: str, *, error: str = "") -> None:
        """`principal` is who was proved, or merely claimed if there is an `error`."""
        if self._path is not None:
            self._repeatable(
                "authentication",
                (_cut(principal), host, mechanism, error),
                {
                    "principal": _cut(principal),
                    "host": host,
                    "mechanism": mechanism,
                    "allowed": not error,
                    **({"error": _cut(error)} if error else {}),
                },
            )

    def changed(self, context: "RequestContext", change: Change) -> None:
        if self._path is None or change.error_code in _REFUSALS:
            return  # a denial has its own line
        fields: dict[str, Any] = {
            **_who(context),
            "operation": change.operation.name,
            "resource_type": change.resource_type,
            "resource": _cut(change.resource),
            "allowed": True,
        }
        if change.detail:
            fields["detail"] = _cut(change.detail)
        if change.error_code == ErrorCode.NONE:
            self._write("change", fields)
        else:
            fields["error"] = _error_name(change.error_code)
            self._repeatable("change", (context.principal, *change), fields)

    def moved(
        self, context: "RequestContext", group_id: str, topic: str, detail: str, *, is_seek: bool
    ) -> None:
        """Somebody who is no member of the group has committed offsets for it. A seek (to before
        what was committed) is distinguished from other seeks; else that may be a consumer without a
        group protocol, which does it all the time.
        """
        if self._path is not None:
            text = _cut(detail)
            self._repeatable(
                "change",
                (context.principal, group_id, topic, text if is_seek else ""),
                {
                    **_who(context),
                    "operation": Operation.ALTER.name,
                    "resource_type": "GROUP",
                    "resource": _cut(group_id),
                    "allowed": True,
                    "detail": _cut(f"offsets in {topic}: {text}"),
                },
            )

    # ── what repeats ──────────────────────────────────────────────────────────────────────────

    def _repeatable(self, event: str, key: tuple[object, ...], fields: dict[str, Any]) -> None:
        key = (event, *key)
        # Who logs in in vain is a mere claim, and there could be any number of them.
        share = (event, fields["allowed"], "" if event == "authentication" else fields["principal"])
        if key in self._seen:
            self._repeated[key] += 1
        elif self._kinds[share] < DISTINCT_PER_WINDOW:
            self._kinds[share] += 1
            self._seen[key] = {"event": event, **fields}
            self._write(event, fields)
        else:
            self._unlisted[share] += 1
        if self._window is None:
            self._window = self._clock.call_later(WINDOW_S, self._end_window)

    def _end_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
            self._window = None
        for key, count in self._repeated.items():
            fields = dict(self._seen[key])
            self._write(fields.pop("event"), {**fields, "repeated": count})
        for (event, allowed, principal), count in self._unlisted.items():
            who = {"principal": principal} if principal else {}
            rest = {"repeated": count, "detail": "of other kinds, not listed"}
            self._write(event, {**who, "allowed": allowed, **rest})
        self._seen.clear()
        self._repeated.clear()
        self._kinds.clear()
        self._unlisted.clear()

    # ── the file ──────────────────────────────────────────────────────────────────────────────

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if len(self._waiting) >= MAX_WAITING_LINES:
            self.dropped += 1
            return
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line = {"time": at.isoformat(timespec="milliseconds"), "event": event, **fields}
        self._waiting.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        if not self._is_writing:
            self._is_writing = True
            self._workers.submit(self._write_waiting)

    def _write_waiting(self) -> None:
        """(worker)"""
        self._is_writing = False  # a line that comes from now on starts the next round
        while self._waiting:
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                self._append(b"".join(lines))
            except OSError as error:
                self.dropped += len(lines)
                if not self._is_failing:
                    log.error("the audit log cannot be written: %s", error)
                self._is_failing = True
            else:
                self._is_failing = False

    def _append(self, data: bytes) -> None:
        """(worker) The file is opened each time, so that others may move it away, too."""
        assert self._path is not None
        # It shows who uses what: only the owner may read it.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size + len(data) <= self._max_file_bytes:
                _write_all(fd, data)
                return
        finally:
            os.close(fd)
        for number in range(OLD_FILES, 0, -1):
            older = f"{self._path}.{number}"
            younger = f"{self._path}.{number - 1}" if number > 1 else self._path
            if os.path.exists(younger):
                os.replace(younger, older)
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, data)
        finally:
            os.close(fd)


_REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def _who(context: "RequestContext") -> dict[str, Any]:
    return {
        "principal": str(context.principal),
        "host": context.client_host,
        "client_id": _cut(context.client_id or ""),
        "api": context.api_name,
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
