"""The receiver's side: packets into messages, in order, each once; gaps are requested or reported.

Each session of a sender is a stream of packets with sequences:

    delivered │ next: missing │ pending (arrived, behind a gap) │ highest: the last one sent, as
                                                                  a packet or heartbeat showed

A gap is requested from the sender after a short random pause (the packet may only be late, and
another receiver may ask first), then again, at growing intervals. It is lost if the sender has
forgotten it (`oldest`), or if it has not been repaired within `patience_s`. Every sequence is
delivered as part of a message or reported in a range of `Lost`, never both, never neither.

Packets for which there is no room are dropped, and requested again when there is.
"""

import heapq
import itertools
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.direct.multicast.packets import (
    DATA,
    END,
    FIRST,
    LAST,
    MAX_RANGES,
    REQUEST,
    Packet,
    Range,
    decode,
    encode_request,
)

Address = tuple[str, int]

_FIRST_PAUSE_S: Final = (0.002, 0.01)
_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_SILENT_AFTER_S: Final = 30.0  # heartbeats come every second at least
_FORGOTTEN_AFTER_S: Final = 600.0
_MAX_STREAMS: Final = 256
_MAX_ENDED: Final = 1024
_OVERHEAD_BYTES: Final = 200  # of Python's objects for one packet
_REQUESTED: Final = 256  # packets of one request: more would be another flood


class Joined(NamedTuple):
    """A session was found; its packets count from this sequence on."""

    session: int
    sequence: int
    oldest: int


class Message(NamedTuple):
    session: int
    first: int
    last: int
    data: bytes


class Lost(NamedTuple):
    """These packets, and the messages that they were part of, are not delivered."""

    session: int
    first: int
    last: int
    reason: str


class Silent(NamedTuple):
    """Nothing has been heard of a session that has not ended: what followed is unknown."""

    session: int
    last: int


class Ended(NamedTuple):
    """The sender has ended the session, and all of it was delivered or reported."""

    session: int
    last: int


Event = Joined | Message | Lost | Silent | Ended
FORGOTTEN, NOT_REPAIRED, STOPPED, TOO_LARGE, DROPPED = (
    "the sender no longer has them",
    "not repaired in time",
    "the receiver stopped",
    "the message is too large",
    "too many sessions",
)


class Receiver:
    """All sessions of a group. Not thread-safe; knows no sockets."""

    def __init__(
        self,
        *,
        from_oldest: bool = False,
        patience_s: float = 5.0,
        buffer_bytes: int = 16 << 20,
        max_message_bytes: int = 16 << 20,
        chance: random.Random | None = None,
    ) -> None:
        self.malformed = 0
        self.duplicates = 0
        self.without_room = 0
        self.held_bytes = 0  # behind gaps, of all streams
        self.begun_bytes = 0  # of messages that are not complete, of all streams
        self.from_oldest = from_oldest
        self.patience_s = patience_s
        self.buffer_bytes = buffer_bytes
        self.max_message_bytes = max_message_bytes
        self.chance = chance or random.Random()  # noqa: S311 (pauses are no secrets)
        self._streams: dict[int, _Stream] = {}
        self._ended: dict[int, None] = {}  # sessions, the oldest first

    def take(self, datagram: bytes, sender: Address, now_s: float) -> list[Event]:
        """What follows from one datagram."""
        packet = decode(datagram)
        if packet is None or packet.kind == REQUEST:
            self.malformed += 1
            return []
        if packet.session in self._ended:
            return []
        events: list[Event] = []
        stream = self._streams.get(packet.session)
        if stream is None:
            events += self._make_room()
            stream = _Stream(self, packet, now_s)
            self._streams[packet.session] = stream
            events.append(Joined(packet.session, stream.next, packet.oldest))
        stream.sender = sender
        events += stream.take(packet, now_s)
        return [*events, *self._end(stream)]

    def tick(self, now_s: float) -> tuple[list[Event], list[tuple[Address, bytes]]]:
        """What follows from the time: ranges given up, and requests to be sent to senders."""
        events: list[Event] = []
        requests: list[tuple[Address, bytes]] = []
        for session, stream in list(self._streams.items()):
            events += stream.give_up(now_s)
            if (request := stream.request(now_s)) is not None:
                requests.append((stream.sender, request))
            if stream.is_silent(now_s):
                events.append(Silent(session, stream.next - 1))
            if now_s - stream.heard_s > _FORGOTTEN_AFTER_S:
                events += self._drop(session)
            else:
                events += self._end(stream)
        return events, requests

    def wait_s(self, now_s: float) -> float:
        """How long `tick` has nothing to do."""
        moments = [stream.next_s() for stream in self._streams.values()]
        return max(0.0, min(moments, default=now_s + 1.0) - now_s)

    def close(self) -> list[Event]:
        """What is missing at the end is reported."""
        return [event for session in list(self._streams) for event in self._drop(session)]

    def _make_room(self) -> list[Event]:
        if len(self._streams) < _MAX_STREAMS:
            return []
        quietest = min(self._streams, key=lambda session: self._streams[session].heard_s)
        return self._drop(quietest, DROPPED)

    def _drop(self, session: int, reason: str = STOPPED) -> list[Event]:
        return list(self._streams.pop(session).drop(reason))

    def _end(self, stream: "_Stream") -> list[Event]:
        """If it is over."""
        if not stream.is_over:
            return []
        self._ended[stream.session] = None
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return [*self._drop(stream.session), Ended(stream.session, stream.next - 1)]


class _Pending(NamedTuple):
    flags: int
    payload: bytes
    arrived_s: float


class _Stream:
    def __init__(self, receiver: Receiver, first: Packet, now_s: float) -> None:
        self.session = first.session
        self.sender: Address = ("", 0)
        self.heard_s = now_s
        if receiver.from_oldest:
            self.next = max(first.oldest, 1)
        else:
            self.next = first.sequence if first.kind == DATA else first.sequence + 1
        self._receiver = receiver
        self._highest = self.next - 1
        self._highest_s = now_s  # when we learnt of it
        self._last: int | None = None  # of the session, once it has ended
        self._pending: dict[int, _Pending] = {}
        self._order: list[int] = []  # heap of their sequences
        self._request_s: float | None = None
        self._pause_s = _PAUSE_S
        self._is_reported_silent = False
        # The message that is being put together.
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._from: int | None = None  # its first sequence
        self._skipped_from: int | None = None  # packets of a message whose beginning is lost
        self._is_joining = not receiver.from_oldest  # in the middle of a message, perhaps
        self._reason = NOT_REPAIRED

    @property
    def is_over(self) -> bool:
        return self._last is not None and self.next > self._last

    def take(self, packet: Packet, now_s: float) -> Iterator[Event]:
        self.heard_s = now_s
        self._is_reported_silent = False
        sequence = packet.sequence
        if sequence > self._highest:
            behind = self._highest + (1 if packet.kind == DATA else 0)
            self._highest, self._highest_s = sequence, now_s
            if sequence > behind:
                self._ask_soon(now_s)
        if packet.kind == DATA:
            self._hold(packet, now_s)
        elif packet.flags & END:
            self._last = sequence
        yield from self._drain()
        yield from self._lose_forgotten(packet.oldest)

    def _hold(self, packet: Packet, now_s: float) -> None:
        sequence, receiver = packet.sequence, self._receiver
        if sequence < self.next or sequence in self._pending:
            receiver.duplicates += 1
            return
        size_bytes = len(packet.payload) + _OVERHEAD_BYTES
        if sequence != self.next and receiver.held_bytes + size_bytes > receiver.buffer_bytes:
            receiver.without_room += 1
            self._ask_soon(now_s)
            return
        self._pending[sequence] = _Pending(packet.flags, packet.payload, now_s)
        heapq.heappush(self._order, sequence)
        receiver.held_bytes += size_bytes
        if sequence < self._highest:
            self._pause_s = _PAUSE_S  # repairs come

    def _drain(self) -> Iterator[Event]:
        while (found := self._pending.pop(self.next, None)) is not None:
            self._receiver.held_bytes -= len(found.payload) + _OVERHEAD_BYTES
            yield from self._put(self.next, found)
            self.next += 1
        while self._order and self._order[0] < self.next:
            heapq.heappop(self._order)
        if self._highest < self.next:
            self._request_s = None

    # Messages

    def _put(self, sequence: int, packet: _Pending) -> Iterator[Event]:
        if packet.flags & FIRST:
            yield from self._end_skipped(sequence - 1)
            self._is_joining = False
            self._from = sequence
        if self._from is None:
            if not self._is_joining and self._skipped_from is None:
                self._skipped_from = sequence
        else:
            self._add_piece(packet.payload)
        if packet.flags & LAST:
            if self._from is not None:
                yield Message(self.session, self._from, sequence, b"".join(self._pieces))
                self._forget_begun()
            else:
                yield from self._end_skipped(sequence)

    def _add_piece(self, piece: bytes) -> None:
        receiver = self._receiver
        self._pieces.append(piece)
        self._pieces_bytes += len(piece)
        receiver.begun_bytes += len(piece)
        limit_bytes = receiver.max_message_bytes
        if self._pieces_bytes > limit_bytes or receiver.begun_bytes > 2 * limit_bytes:
            begun = self._from
            self._forget_begun()
            self._skipped_from = begun
            self._reason = TOO_LARGE

    def _forget_begun(self) -> None:
        self._receiver.begun_bytes -= self._pieces_bytes
        self._from, self._pieces, self._pieces_bytes, self._skipped_from = None, [], 0, None

    def _end_skipped(self, last: int) -> Iterator[Event]:
        """Reports packets that are there, but of no use: up to `last`."""
        begun = self._from if self._from is not None else self._skipped_from
        if begun is not None and begun <= last:
            yield Lost(self.session, begun, last, self._reason)
        self._forget_begun()

    # Gaps

    def _lose_forgotten(self, oldest: int) -> Iterator[Event]:
        while self.next < min(oldest, self._highest + 1):
            yield from self._lose(min(self._gap_end(), oldest - 1), FORGOTTEN)

    def give_up(self, now_s: float) -> Iterator[Event]:
        while self.next <= self._highest and now_s >= self._lost_s():
            yield from self._lose(self._gap_end(), NOT_REPAIRED)

    def _lose(self, last: int, reason: str) -> Iterator[Event]:
        """The packets from `next` on: they are missing. A message that they are part of is, too."""
        begun = self._from if self._from is not None else self._skipped_from
        first = self.next if begun is None else begun
        self._forget_begun()
        self._is_joining = False
        self._reason = reason
        yield Lost(self.session, first, last, reason)
        self.next = last + 1
        yield from self._drain()

    def _gap_end(self) -> int:
        return self._order[0] - 1 if self._order else self._highest

    def _lost_s(self) -> float:
        """When the gap in front is given up."""
        since_s = self._pending[self._order[0]].arrived_s if self._order else self._highest_s
        return since_s + self._receiver.patience_s

    def request(self, now_s: float) -> bytes | None:
        if self.next > self._highest:
            return None
        if self._request_s is None:
            self._ask_soon(now_s)
        if self._request_s is None or now_s < self._request_s:
            return None
        self._request_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return encode_request(self.session, list(itertools.islice(self._missing(), MAX_RANGES)))

    def _missing(self) -> Iterator[Range]:
        """The first gaps, as many as one request may have."""
        first, left = self.next, _REQUESTED
        for sequence in sorted(self._pending):
            if sequence > first:
                last = min(sequence - 1, first + left - 1)
                yield first, last
                left -= last - first + 1
                if not left:
                    return
            first = sequence + 1
        if first <= self._highest:
            yield first, min(self._highest, first + left - 1)

    def _ask_soon(self, now_s: float) -> None:
        soon_s = now_s + self._receiver.chance.uniform(*_FIRST_PAUSE_S)
        self._request_s = soon_s if self._request_s is None else min(self._request_s, soon_s)
        self._pause_s = _PAUSE_S

    # Time

    def next_s(self) -> float:
        moments = [self.heard_s + _SILENT_AFTER_S]
        if self._is_reported_silent:
            moments = [self.heard_s + _FORGOTTEN_AFTER_S]
        if self.next <= self._highest:
            moments.append(self._lost_s())
            if self._request_s is not None:
                moments.append(self._request_s)
        return min(moments)

    def is_silent(self, now_s: float) -> bool:
        """Once for each silence."""
        if self._is_reported_silent or now_s - self.heard_s < _SILENT_AFTER_S:
            return False
        self._is_reported_silent = True
        return True

    def drop(self, reason: str) -> Iterator[Event]:
        """Nothing more is expected: what is missing is lost."""
        while self.next <= self._highest:
            yield from self._lose(self._gap_end(), reason)
        self._reason = reason
        yield from self._end_skipped(self.next - 1)
