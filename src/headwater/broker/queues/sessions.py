"""Share sessions (KIP-932): what a member fetches, and the epoch of its next request.

A session's epoch counts the member's requests, ShareFetch and ShareAcknowledge alike; one out of
turn is refused, and the client begins a new one. A session ends with epoch -1 or with its
connection; what the member still holds then goes back to the group.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headwater.broker.api.registry import ClientConnection
from headwater.broker.queues.share_partition import Key
from headwater.protocol.error_codes import ApiError, ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_SESSIONS = 2_000  # group.share.max.share.sessions
MAX_PARTITIONS = 500_000  # over all sessions: what bounds the memory
_LAST_EPOCH = 2**31 - 1


@dataclass(slots=True)
class ShareSession:
    """`partitions` are in the order in which they are served."""

    group_id: str
    member_id: str
    connection_id: int
    epoch: int = 1  # of the next request
    partitions: OrderedDict[Key, None] = field(default_factory=OrderedDict)

    def served_last(self, key: Key) -> None:
        """Behind the others the next time, so that one busy partition starves none."""
        if key in self.partitions:
            self.partitions.move_to_end(key)


class ShareSessions:
    """All sessions, by group and member."""

    def __init__(self, ended: Callable[[ShareSession], None]) -> None:
        self._ended = ended  # called when a session is over that its client did not close
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, set[tuple[str, str]]] = {}
        self._partitions_held = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, group_id: str, member_id: str, wanted: Iterable[Key], connection: ClientConnection
    ) -> ShareSession:
        """A new session. One that the member had is over, but its records stay acquired."""
        self.end(group_id, member_id)
        if len(self._sessions) >= MAX_SESSIONS:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(group_id, member_id, connection.id)
        self._update(session, wanted, ())
        self._sessions[group_id, member_id] = session
        self._bind(session, connection)
        return session

    def _bind(self, session: ShareSession, connection: ClientConnection) -> None:
        """The session ends with the connection on which its member was last heard."""
        name = (session.group_id, session.member_id)
        if session.connection_id != connection.id:
            self._by_connection.get(session.connection_id, set()).discard(name)
            session.connection_id = connection.id
        if connection.id not in self._by_connection:
            self._by_connection[connection.id] = set()
            connection.when_lost(lambda: self._lost(connection.id))
        self._by_connection[connection.id].add(name)

    def go_on(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        connection: ClientConnection,
        wanted: Iterable[Key] = (),
        forgotten: Iterable[Key] = (),
    ) -> ShareSession:
        session = self.get(group_id, member_id)
        if epoch != session.epoch:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        self._update(session, wanted, forgotten)
        self._bind(session, connection)
        session.epoch = 1 if session.epoch == _LAST_EPOCH else session.epoch + 1
        return session

    def get(self, group_id: str, member_id: str) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def end(self, group_id: str, member_id: str) -> ShareSession | None:
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            self._partitions_held -= len(session.partitions)
            of_connection = self._by_connection.get(session.connection_id)
            if of_connection is not None:
                of_connection.discard((group_id, member_id))
        return session

    def _update(
        self, session: ShareSession, wanted: Iterable[Key], forgotten: Iterable[Key]
    ) -> None:
        before = len(session.partitions)
        for key in wanted:
            session.partitions.setdefault(key)
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partitions_held += len(session.partitions) - before
        if self._partitions_held > MAX_PARTITIONS:
            self._partitions_held -= len(session.partitions)
            session.partitions.clear()
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)

    def _lost(self, connection_id: int) -> None:
        for group_id, member_id in self._by_connection.pop(connection_id, ()):
            session = self._sessions.get((group_id, member_id))
            if session is not None and session.connection_id == connection_id:
                self.end(group_id, member_id)
                self._ended(session)
