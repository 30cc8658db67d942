"""POST /topics/T: one record, a batch, or a stream of lines."""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.errors import BrokerUnreachable, HeadwaterError
from headwater.gateway.access import Access, Topic
from headwater.gateway.answers import Refusal, failed, json_answer
from headwater.gateway.app import gateway_of
from headwater.gateway.budget import Budget
from headwater.gateway.callers import WRITE, caller_of
from headwater.gateway.parameters import check_names, one_of, seconds, whole_number
from headwater.gateway.registry.validation import Check
from headwater.gateway.writing import forms, once, shards
from headwater.gateway.writing.bodies import Body, drain, line_chunks
from headwater.gateway.writing.checks import checked
from headwater.gateway.writing.delivery import Delivered, Delivery, delivery_of
from headwater.gateway.writing.forms import BadRecord, Defaults, LineForm
from headwater.inspect.record_json import Record
from headwater.web import live

_PARAMETERS: Final = (
    "key", "key_field", "header", "partition", "timestamp", "on_error", "progress_s",
)  # fmt: skip
REFUSE, SKIP = "refuse", "skip"
_AT_ONCE: Final = 2000  # records that are handed over without a pause for others
_WINDOW: Final = 4  # chunks of a stream that are not acknowledged yet
_MAX_PROGRESS_S: Final = 60.0
_MAX_ERRORS: Final = 100  # that an answer lists


async def _write(request: Request) -> Response:
    """Writes records: one (application/json), a batch, NDJSON or CSV lines."""
    try:
        answer = await _written(request)
    except HeadwaterError:
        await drain(request)
        raise
    if answer.status_code >= 400:
        await drain(request)
    return answer


async def _written(request: Request) -> Response:
    topic_name = request.path_params["topic"]
    caller = caller_of(request)
    caller.require(WRITE, topic_name)
    check_names(request.query_params, _PARAMETERS)
    on_error = one_of(request.query_params, "on_error", (REFUSE, SKIP))
    content_type = forms.content_type_of(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "compressed bodies are not taken", hint="send it without compression")
    gateway = gateway_of(request)
    access = gateway.access(request)
    topic = await access.topic(topic_name, WRITE)
    defaults = _defaults(request, topic)
    marks = gateway.personal.marked.get(topic_name, ()) if gateway.personal else ()
    if any(defaults.key_field in mark.fields for mark in marks):
        raise Refusal(400, f"field {defaults.key_field} is personal, and keys are not encrypted")
    check = await gateway.validation.check_of(topic_name) if gateway.validation else None
    writing = _Writing(request, access, topic, content_type, defaults, on_error, check)
    access.in_use += 1
    try:
        if "idempotency-key" in request.headers:
            return await writing.once()
        if content_type in forms.LINES:
            return await writing.lines()
        return await writing.whole()
    finally:
        access.in_use -= 1


class _Writing:
    """One request."""

    def __init__(
        self,
        request: Request,
        access: Access,
        topic: Topic,
        content_type: str,
        defaults: Defaults,
        on_error: str,
        check: Check | None,
    ) -> None:
        self._request = request
        self._gateway = gateway_of(request)
        self._access = access
        self._topic = topic
        self._content_type = content_type
        self._defaults = defaults
        self._on_error = on_error
        self._check = check  # by the topic's schema
        self._max_bytes = self._gateway.config.gateway.max_request_bytes
        self._progress_s: float | None = None
        if "progress_s" in request.query_params:
            self._progress_s = seconds(request.query_params, "progress_s", 1.0, _MAX_PROGRESS_S)
        self._failure: HeadwaterError | None = None
        self._errors: list[dict[str, Any]] = []
        self._refused = 0

    @property
    def _delivery(self) -> Delivery:
        return delivery_of(self._access, self._max_bytes)

    @property
    def _budget(self) -> Budget:
        return self._gateway.budget

    # A body as a whole

    async def whole(self) -> Response:
        body = Body(self._budget)
        try:
            records = self._parsed(bytes(await body.read(self._request, self._max_bytes)))
            await self._gateway.store_keys(self._topic.name)
            delivered = await self._send(records)
        finally:
            body.release()
        self._count(delivered)
        return self._answer(delivered)

    async def once(self) -> Response:
        """With an Idempotency-Key: all of it or nothing, in one transaction."""
        key = self._request.headers["idempotency-key"]
        if not 1 <= len(key) <= once.MAX_KEY_CHARACTERS:
            raise Refusal(400, f"an Idempotency-Key has 1 to {once.MAX_KEY_CHARACTERS} characters")
        login = self._gateway.authentication.require_own_login()
        if self._access.login != login and not self._topic.has_operations:
            raise Refusal(503, "the broker does not say what a user may do, so keys do not work")
        body = Body(self._budget)
        try:
            data = bytes(await body.read(self._request, self._max_bytes))
            asked = f"{self._content_type}?{self._request.url.query}".encode()
            records = self._parsed(data)
            wanted = shards.Request(
                once.identity_of(caller_of(self._request).name, self._topic.name, key),
                hashlib.sha256(asked + b"\0" + data).hexdigest(),
                self._topic.name,
                self._topic.partitions,
                records,
            )
            await self._gateway.store_keys(self._topic.name)
            delivered, is_repeated = await self._gateway.once.write(wanted)
        finally:
            body.release()
        if not is_repeated:
            self._count(delivered)
        answer = self._answer(delivered)
        if is_repeated:
            answer.headers["Idempotent-Replayed"] = "true"
        return answer

    def _parsed(self, data: bytes) -> list[Record]:
        if self._content_type not in forms.LINES:
            try:
                return [
                    self._checked(number, record)
                    for number, record in enumerate(
                        forms.records_of_body(self._content_type, data, self._defaults), 1
                    )
                ]
            except BadRecord as bad:
                raise self._refusal(bad, written=0) from None
        form = LineForm(self._content_type, self._defaults, self._max_bytes)
        try:
            records = self._good(form, data.split(b"\n"))
            self._check_end(form)
        except BadRecord as bad:
            raise self._refusal(bad, written=0) from None
        return records

    # Lines

    async def lines(self) -> Response:
        """As they come. A body that is not longer than what is taken as a whole, and says so, is
        checked before any of it is written.
        """
        declared = self._request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) <= self._max_bytes:
            return await self.whole()
        total = Delivered()
        if self._progress_s is not None:
            self._access.in_use += 1
            return live.DuplexStream(
                self._reported(total, self._progress_s), self._release,
                media_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"},
            )  # fmt: skip
        async for _ in self._taken(total):
            pass
        return self._ended(total)

    async def _reported(self, total: Delivered, progress_s: float) -> AsyncIterator[bytes]:
        """How much was written until now, while lines come; the last line is the answer."""
        next_s = time.monotonic() + progress_s
        async for _ in self._taken(total):
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + progress_s
                yield orjson.dumps({"written": total.written}) + b"\n"
        if self._failure is not None:
            await drain(self._request)
        try:
            answer = self._ended(total)
        except Refusal as refusal:
            answer = failed(refusal)
        yield bytes(answer.body)

    def _release(self) -> None:
        self._access.in_use -= 1

    async def _taken(self, total: Delivered) -> AsyncIterator[None]:
        """Writes the lines as they come; `self._failure` is what has ended it, if anything."""
        form = LineForm(self._content_type, self._defaults, self._max_bytes)
        pending: deque[asyncio.Future[Delivered]] = deque()
        failure: HeadwaterError | None = None
        try:
            async for lines in line_chunks(self._request, self._max_bytes):
                size_bytes = sum(map(len, lines))
                await self._budget.take(size_bytes)
                records: list[Record] = []
                try:
                    records = self._good(form, lines)
                except BadRecord as bad:
                    failure = bad
                await self._gateway.store_keys(self._topic.name)
                sent = self._delivery.send(self._topic.name, records)
                sent.add_done_callback(self._giver(size_bytes))
                pending.append(sent)
                while pending and (len(pending) > _WINDOW or pending[0].done()):
                    total.merge(await pending.popleft())
                failure = failure or total.error
                if failure is not None:
                    break
                yield
            if failure is None:
                self._check_end(form)
        except (BadRecord, Refusal) as error:
            failure = error
        finally:
            while pending:
                total.merge(await pending.popleft())
        self._failure = failure or total.error

    def _ended(self, total: Delivered) -> Response:
        """The answer. Raises Refusal for a line that cannot be taken."""
        self._count(total)
        if isinstance(self._failure, BadRecord):
            raise self._refusal(self._failure, written=total.written)
        if self._failure is not None:
            return self._failed(self._failure, total)
        return self._answer(total)

    def _giver(self, size_bytes: int) -> "Callable[[asyncio.Future[Delivered]], None]":
        return lambda _: self._budget.give(size_bytes)

    def _good(self, form: LineForm, lines: list[bytes]) -> list[Record]:
        """The records of the lines. Raises the first BadRecord if one refuses all."""
        records = []
        for record in form.records(lines):
            try:
                if isinstance(record, BadRecord):
                    raise record
                records.append(self._checked(form.line, record))
            except BadRecord as bad:
                self._pass_over(bad)
        return records

    def _check_end(self, form: LineForm) -> None:
        bad = form.end()
        if bad is not None:
            self._pass_over(bad)

    def _pass_over(self, bad: BadRecord) -> None:
        if self._on_error == REFUSE:
            raise bad
        self._refused += 1
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append({"line": bad.line, "error": bad.what})

    def _checked(self, number: int, record: Record) -> Record:
        return checked(number, record, self._topic, self._check, self._gateway.personal)

    # Answers

    async def _send(self, records: list[Record]) -> Delivered:
        """All of a request, a part at a time: others are served in between."""
        parts = [records[at : at + _AT_ONCE] for at in range(0, len(records), _AT_ONCE)]
        futures = []
        for part in parts:
            futures.append(self._delivery.send(self._topic.name, part))
            await asyncio.sleep(0)
        total = Delivered()
        for future in futures:
            delivered = await future
            total.positions += delivered.positions
            total.merge(delivered)
        return total

    def _count(self, delivered: Delivered) -> None:
        self._gateway.written += delivered.written
        self._gateway.refused += self._refused

    def _answer(self, delivered: Delivered) -> Response:
        if delivered.error is not None:
            return self._failed(delivered.error, delivered)
        topic = self._topic.name
        headers = {}
        if delivered.stretches:
            headers["Headwater-Position"] = delivered.token(topic)
        if self._content_type in (forms.JSON, *forms.BYTES):
            ((partition, stretch),) = delivered.stretches.items()
            one = {"topic": topic, "partition": partition, "offset": stretch.last}
            return json_answer(one, headers=headers)
        return json_answer({"topic": topic, **self._summary(delivered)}, headers=headers)

    def _summary(self, delivered: Delivered) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "written": delivered.written,
            "partitions": [
                {"partition": partition, "records": stretch.records}
                | ({"first": stretch.first} if stretch.first >= 0 else {})
                | {"last": stretch.last}
                for partition, stretch in sorted(delivered.stretches.items())
            ],
        }
        if self._content_type == forms.RECORDS and delivered.positions:
            summary["records"] = [
                {"partition": partition, "offset": offset} if offset >= 0 else None
                for partition, offset in delivered.positions
            ]
        if self._on_error == SKIP:
            summary |= {"refused": self._refused, "errors": self._errors}
        return summary

    def _refusal(self, bad: BadRecord, *, written: int) -> Refusal:
        is_line = self._content_type in forms.LINES
        place = "line" if is_line else "record"
        more = "" if not is_line else "on_error=skip leaves such lines out"
        return Refusal(
            400,
            f"{place} {bad.line} cannot be taken",
            detail=bad.what,
            hint=bad.hint or more,
            fields={place: bad.line, "written": written},
        )

    def _failed(self, error: HeadwaterError, delivered: Delivered) -> Response:
        answer = failed(error)
        refusal = Refusal(
            answer.status_code,
            error.what,
            detail=error.detail,
            hint=error.hint,
            headers={"Retry-After": "1"} if isinstance(error, BrokerUnreachable) else {},
            fields=self._summary(delivered),
        )
        return failed(refusal)


def _defaults(request: Request, topic: Topic) -> Defaults:
    """Raises Refusal."""
    query = request.query_params
    keys = _header_texts(request, "headwater-key")
    key = query.get("key", keys[0] if keys else None)
    partition = whole_number(query, "partition", 0, 2**31 - 1)
    if partition is not None and partition >= topic.partitions:
        raise Refusal(
            400, f"topic {topic.name} has no partition {partition}", detail=f"{topic.partitions}"
        )
    if key is not None and "key_field" in query:
        raise Refusal(400, "key and key_field exclude each other")
    return Defaults(
        None if key is None else key.encode(),
        query.get("key_field"),
        tuple(_headers(request)),
        partition,
        whole_number(query, "timestamp", 0, 2**62),
    )


def _headers(request: Request) -> Iterator[tuple[str, bytes | None]]:
    """`?header=name:value` and `Headwater-Header: name: value`."""
    given = _header_texts(request, "headwater-header")
    for text in (*request.query_params.getlist("header"), *given):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise Refusal(400, "a header is of the form name:value", detail=text[:200])
        yield name.strip(), value.strip().encode()


def _header_texts(request: Request, name: str) -> list[str]:
    """HTTP headers are bytes; ours are UTF-8."""
    try:
        return [text.encode("latin-1").decode() for text in request.headers.getlist(name)]
    except UnicodeDecodeError:
        raise Refusal(400, f"{name} is not UTF-8") from None


ROUTES: Final = [Route("/topics/{topic}", _write, methods=["POST"])]
