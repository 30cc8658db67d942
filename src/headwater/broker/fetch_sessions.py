"""Incremental fetch sessions (KIP-227): the broker stores what a consumer is reading.

A consumer of a thousand partitions then sends and receives only what changed since its last fetch.
A session's epoch counts its requests; a request out of turn is refused, and the client begins a new
one.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from uuid import UUID

from headwater.broker.security.authorizer import ANONYMOUS, Principal
from headwater.clock import Clock
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.fetch import FetchRequest, FetchRequestFetchPartition

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_SESSIONS = 1000  # max.incremental.fetch.session.cache.slots
# Over all sessions. Kafka bounds only their number, so a few thousand requests could fill a heap.
MAX_PARTITIONS = 500_000
EVICTABLE_AFTER_S = 120.0

TopicKey = str | UUID  # ids from version 13 on


@dataclass(slots=True)
class FetchedPartition:
    """What a consumer wants of one partition, and what the last answer reported of it."""

    topic: TopicKey
    wanted: FetchRequestFetchPartition
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1


@dataclass(slots=True)
class FetchSession:
    """`partitions` are in the order in which they are served."""

    id: int
    owner: Principal = ANONYMOUS
    by_id: bool = False  # whether its client names topics by id
    epoch: int = 0
    used_at_s: float = 0.0
    partitions: OrderedDict[tuple[TopicKey, int], FetchedPartition] = field(
        default_factory=OrderedDict
    )

    @property
    def is_incremental(self) -> bool:
        """Whether the response may leave out what has not changed."""
        return self.epoch > INITIAL_EPOCH

    def served_last(self, key: tuple[TopicKey, int]) -> None:
        """Behind the others the next time, so that one busy partition starves none."""
        if key in self.partitions:
            self.partitions.move_to_end(key)


class FetchSessions:
    """All sessions, least recently used first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._ids = itertools.count(1)
        self._partitions_held = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def session_for(
        self, request: FetchRequest, *, by_id: bool, owner: Principal = ANONYMOUS
    ) -> FetchSession:
        """The session with what the request wants now. A request without one gets one of id 0.

        A session of another client is treated as missing: it would show what that client reads.
        """
        existing = self._sessions.get(request.session_id)
        if existing is not None and existing.owner != owner:
            existing = None
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if existing is not None:
                self._end(existing.id)
            session = FetchSession(NO_SESSION, owner, by_id)
            if request.session_epoch == INITIAL_EPOCH:
                session = self._begin(owner, by_id=by_id)
        else:
            session = self._go_on(existing, request.session_epoch, by_id=by_id)
        held_before = len(session.partitions)
        _update(session, request, by_id=by_id)
        if session.id != NO_SESSION:
            self._partitions_held += len(session.partitions) - held_before
            if self._partitions_held > MAX_PARTITIONS:
                self._end(session.id)
                if session.is_incremental:  # the client begins a new session, and gets none then
                    raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                session.id = NO_SESSION
        return session

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions_held -= len(session.partitions)

    def _begin(self, owner: Principal, *, by_id: bool) -> FetchSession:
        if len(self._sessions) >= MAX_SESSIONS:
            oldest = next(iter(self._sessions.values()))
            if self._clock.monotonic_s() - oldest.used_at_s < EVICTABLE_AFTER_S:
                return FetchSession(
                    NO_SESSION, owner, by_id
                )  # the client goes on without a session
            self._end(oldest.id)
        session = FetchSession(next(self._ids) & 0x7FFFFFFF, owner, by_id)
        session.used_at_s = self._clock.monotonic_s()
        self._sessions[session.id] = session
        return session

    def _go_on(self, session: FetchSession | None, epoch: int, *, by_id: bool) -> FetchSession:
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        expected = 1 if session.epoch == 0x7FFFFFFF else session.epoch + 1
        if epoch != expected:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if by_id != session.by_id:  # the client has changed its version in between
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = epoch
        session.used_at_s = self._clock.monotonic_s()
        self._sessions.move_to_end(session.id)
        return session


def _update(session: FetchSession, request: FetchRequest, *, by_id: bool) -> None:
    for topic in request.topics:
        name: TopicKey = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            existing = session.partitions.get((name, wanted.partition))
            if existing is None:
                session.partitions[name, wanted.partition] = FetchedPartition(name, wanted)
            else:
                existing.wanted = wanted
    for forgotten in request.forgotten_topics_data:
        name = forgotten.topic_id if by_id else forgotten.topic
        for index in forgotten.partitions:
            session.partitions.pop((name, index), None)
