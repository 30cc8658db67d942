"""Server-sent events and NDJSON of a read, and how long a client may go on."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headwater.errors import HeadwaterError
from headwater.gateway.answers import error_fields
from headwater.gateway.app import gateway_of
from headwater.gateway.callers import READ, caller_of
from headwater.gateway.events.pages import Page, event_json, read_page
from headwater.gateway.events.parameters import SSE, Asked
from headwater.gateway.events.rights import Rights
from headwater.web import live

_PAGE_EVENTS: Final = 500
_PAGE_BYTES: Final = 1 << 20
_HEARTBEAT_S: Final = 10.0


class Streaming:
    """One client."""

    def __init__(self, request: Request, asked: Asked, rights: Rights) -> None:
        self._gateway = gateway_of(request)
        self._store = self._gateway.event_store
        self._caller = caller_of(request)
        self._asked = asked
        self._rights = rights
        self._left = asked.limit
        self._allowed: set[str] = set()  # categories, for a moment
        self._checked_s = time.monotonic()
        self._has_joined = False
        self._is_open = False
        self._has_budget = False  # for a page that the client has not taken yet

    async def answer(self) -> Response:
        """Raises what is to be answered instead of a stream."""
        self._gateway.streams.acquire(self._caller.name)
        self._is_open = True
        try:
            if self._asked.form != SSE:
                return live.Stream(
                    self._lines(), self._end, media_type="application/x-ndjson",
                    headers={"X-Accel-Buffering": "no"},
                )  # fmt: skip
            await self._store.feed.join()
            self._has_joined = True
            return live.events(self._events(), self._end)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._give_budget()
        if self._is_open:
            self._is_open = False
            self._gateway.streams.release(self._caller.name)
        if self._has_joined:
            self._has_joined = False
            self._store.feed.leave()

    async def _take_budget(self) -> None:
        """Waits while slow clients hold too much."""
        if not self._has_budget:
            await self._gateway.readers.backlog.take(_PAGE_BYTES)
            self._has_budget = True

    def _give_budget(self) -> None:
        if self._has_budget:
            self._has_budget = False
            self._gateway.readers.backlog.give(_PAGE_BYTES)

    async def _lines(self) -> AsyncIterator[bytes]:
        """What there is, page by page."""
        asked = self._asked
        try:
            while not self._gateway.is_stopping:
                await self._check()
                page = await self._page(asked)
                if page.entries:
                    yield b"".join(entry.text + b"\n" for entry in page.entries)
                self._give_budget()
                if page.is_end or page.next is None or self._left == 0:
                    return
                asked = asked.going_on(page.next)
        except HeadwaterError as error:
            yield orjson.dumps(error_fields(error)) + b"\n"

    async def _events(self) -> AsyncIterator[bytes]:
        """Old ones, then new ones as they are committed, without a gap."""
        feed = self._store.feed
        position = feed.head if self._asked.starts_at_end else self._asked.from_position - 1
        yield b"retry: 1000\nid: %d\n\n" % position
        sent_s = time.monotonic()
        try:
            while not self._gateway.is_stopping and self._left != 0:
                await self._check()
                if position < feed.floor:
                    position, parts = await self._of_store(position, feed.head)
                elif position < feed.head:
                    position, parts = await self._of_feed(position)
                else:
                    feed.check()
                    await feed.wait(position, _HEARTBEAT_S)
                    parts = []
                if parts:
                    yield b"".join(parts)
                self._give_budget()
                if parts:
                    sent_s = time.monotonic()
                elif time.monotonic() - sent_s >= _HEARTBEAT_S:
                    yield b": still here\nid: %d\n\n" % position
                    sent_s = time.monotonic()
        except HeadwaterError as error:
            yield live.event("error", error_fields(error))

    async def _of_store(self, position: int, head: int) -> tuple[int, list[bytes]]:
        asked = replace(self._asked, from_position=position + 1, until_position=head)
        page = await self._page(asked)
        return page.position, [_sse(entry.position, entry.text) for entry in page.entries]

    async def _page(self, asked: Asked) -> Page:
        await self._take_budget()
        limit = _PAGE_EVENTS if self._left is None else min(self._left, _PAGE_EVENTS)
        page = await self._store.read(lambda store: read_page(store, asked, limit, _PAGE_BYTES))
        for entry in page.entries:
            await self._allow(entry.category)
        self._count(len(page.entries))
        return page

    async def _of_feed(self, position: int) -> tuple[int, list[bytes]]:
        await self._take_budget()
        parts: list[bytes] = []
        size_bytes = 0
        for event in self._store.feed.behind(position):
            position = event.position
            if self._asked.matches(event):
                await self._allow(event.category)
                parts.append(_sse(event.position, event_json(event)))
                size_bytes += len(parts[-1])
                self._count(1)
                if self._left == 0 or len(parts) == _PAGE_EVENTS or size_bytes >= _PAGE_BYTES:
                    break
        return position, parts

    def _count(self, events: int) -> None:
        self._gateway.sent_events += events
        if self._left is not None:
            self._left -= events

    async def _allow(self, category: str) -> None:
        """A category may be new, or a right taken away. Raises Refusal."""
        if category not in self._allowed:
            if self._asked.stream is None and self._asked.category is None:
                await self._rights.require_all((category,))
            else:
                await self._rights.require(READ, category)
            self._allowed.add(category)

    async def _check(self) -> None:
        """Every few seconds. Raises Refusal."""
        if time.monotonic() - self._checked_s >= _HEARTBEAT_S:
            await self._gateway.authentication.check_still_good(self._caller)
            self._allowed.clear()
            if self._asked.stream is not None or self._asked.category is not None:
                await self._allow(
                    (self._asked.stream or self._asked.category or "").partition("-")[0]
                )
            self._checked_s = time.monotonic()


def _sse(position: int, text: bytes) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (position, text)
