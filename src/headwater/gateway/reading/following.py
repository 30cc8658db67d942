"""A thread that follows the end of one topic, and hands what is new to the event loop.

Feeds and live tables are followed by it (`Followed`). Topics do not share a thread, so that one
that is deleted, or moves to another broker, does not hold up the others. It ends when nobody has
needed the topic for a while, when the topic can no longer be followed, and at an error; then what
was followed is broken off, on the event loop, and its clients ask again.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from headwater.client.reading.fetching import Fetcher
from headwater.client.reading.tailing import Tail
from headwater.errors import HeadwaterError
from headwater.gateway.access import Access
from headwater.protocol.records import Record, records_of
from headwater.web.login_access import PATIENCE_S

log = logging.getLogger(__name__)

_WAIT_S: Final = 0.5

_T = TypeVar("_T")


class Followed(Protocol):
    """What is made of a topic's records. `break_off` is called on the event loop."""

    @property
    def topic(self) -> str: ...
    @property
    def clients(self) -> int: ...
    @property
    def idle_since_s(self) -> float: ...
    @property
    def is_broken(self) -> bool: ...
    def break_off(self) -> None: ...


class TopicFollower(Generic[_T]):
    """`decode` makes something of each record, in the thread; it gets the positions behind that
    record. `apply` takes all that is new with the positions behind it, on the event loop.
    """

    def __init__(
        self,
        access: Access,
        followed: Followed,
        positions: Mapping[int, int],
        loop: asyncio.AbstractEventLoop,
        *,
        decode: Callable[[int, Record, Mapping[int, int]], _T],
        apply: Callable[[list[_T], dict[int, int]], None],
        ended: Callable[[], None],
        held_bytes: int,
        idle_s: float,
        reads_log: bool,
    ) -> None:
        """`held_bytes` of fetched records are held until they are decoded. If more comes at once,
        it is read from the log (`reads_log`), or ends the following.
        """
        self._followed = followed
        self._loop = loop
        self._decode, self._apply, self._ended = decode, apply, ended
        self._idle_s = idle_s
        self._at = dict(positions)
        self._tail = Tail(access.bootstrap, access.login, held_bytes=held_bytes)
        self._fetcher = (
            Fetcher(access.bootstrap, access.login, patience_s=PATIENCE_S) if reads_log else None
        )
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, name="gateway-follower", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()
        self._tail.close()
        if self._fetcher is not None:
            self._fetcher.close()

    def _run(self) -> None:
        topic = self._followed.topic
        try:
            self._follow()
        except HeadwaterError as error:  # who asks again is answered with it
            log.debug("topic %s is no longer followed: %s", topic, error)
        except Exception:
            log.exception("topic %s is no longer followed", topic)
        self.close()
        self._call(self._end)

    def _follow(self) -> None:
        followed = self._followed
        self._tail.follow({(followed.topic, number): at for number, at in self._at.items()})
        version = -1
        while not self._is_closed.is_set() and not followed.is_broken:
            version = self._tail.wait(version, _WAIT_S)
            if not followed.clients and time.monotonic() - followed.idle_since_s > self._idle_s:
                return
            before = dict(self._at)
            made = self._pull()
            if made is None:
                return
            if self._at != before:
                self._call(self._apply, made, dict(self._at))

    def _pull(self) -> list[_T] | None:
        """What is new; None if the topic can no longer be followed."""
        topic, at = self._followed.topic, self._at
        ends = self._tail.ends([(topic, number) for number in at])
        if len(ends) < len(at):
            return None
        made: list[_T] = []
        for (_, partition), (complete, _) in ends.items():
            if complete <= at[partition]:
                continue
            found = self._records(partition, at[partition], complete)
            if found is None:
                return None
            for record in found:
                at[partition] = record.offset + 1
                made.append(self._decode(partition, record, at))
            at[partition] = complete
        return made

    def _records(self, partition: int, start: int, end: int) -> Iterable[Record] | None:
        """None: more came at once than is held."""
        topic = self._followed.topic
        chunks = self._tail.chunks(topic, partition, start, end)
        if chunks is None:
            if self._fetcher is None:
                return None
            return self._fetcher.records(topic, partition, start, end)
        return (
            record
            for chunk in chunks
            for header, position in chunk.batches
            for record in records_of(chunk.data[position : position + header.size_bytes])
            if start <= record.offset < end
        )

    def _end(self) -> None:
        self._followed.break_off()
        self._ended()

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        """On the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._is_closed.set()  # the loop has ended
