"""A caller's way to the broker: every request uses that caller's login.

So the broker's ACLs hold for a user here as for any other client of that user. Callers with the
same login (all tokens, and all requests where nobody signs in) share connections and readings.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from headwater.errors import BrokerUnreachable, RequestRefused
from headwater.gateway.answers import Refusal
from headwater.gateway.callers import Caller
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headwater.settings import ClientSettings
from headwater.web.listener import require_listener
from headwater.web.login_access import LoginAccess

_MOST_LOGINS: Final = 64  # with connections of their own
_TOPIC_AGE_S: Final = 2.0
_AWAY_S: Final = 0.5  # a broker that does not answer is not asked again for so long
_MOST_TOPICS: Final = 1000
_OPERATION_BITS: Final = {"read": 3, "write": 4}  # AclOperation of Kafka


_T = TypeVar("_T")


class Topic:
    """What the broker says of a topic to one login."""

    __slots__ = ("exists", "name", "operations", "partitions", "read_s")

    def __init__(self, name: str, partitions: int, operations: int, *, exists: bool = True) -> None:
        self.name = name
        self.exists = exists
        self.partitions = partitions
        self.operations = operations
        self.read_s = time.monotonic()

    @property
    def has_operations(self) -> bool:
        """Whether the broker has said what the login may do."""
        return self.operations >= 0

    def allows(self, operation: str) -> bool:
        """Brokers without ACLs, and those that do not say, allow everything until they refuse."""
        return self.operations < 0 or bool(self.operations >> _OPERATION_BITS[operation] & 1)


class Access(LoginAccess):
    """For all callers of one login. Methods are called on the event loop; what blocks runs in
    threads.
    """

    def __init__(self, bootstrap: str, login: ClientSettings, threads: ThreadPoolExecutor) -> None:
        super().__init__(bootstrap, login, threads)
        self.in_use = 0
        self._topics: OrderedDict[str, Topic] = OrderedDict()
        self._away = BrokerUnreachable("the broker does not answer")
        self._away_until_s = 0.0

    async def ask(self, function: Callable[..., _T], *args: Any) -> _T:
        """`function(cluster, *args)` in a thread, one at a time."""

        def asked() -> _T:
            with self._lock:
                return function(self._cluster, *args)

        return await self.call(asked)

    async def topic(self, name: str, operation: str) -> Topic:
        """As it was a moment ago. Raises Refusal: 403 if the login may not do it, whether there is
        such a topic or not, 404 if it may and there is none.
        """
        found = await self._topic(name, is_needed=True)
        if not found.allows(operation):
            raise no_right(operation, name)
        if not found.exists:
            raise Refusal(404, f"there is no topic {name}", hint=f"`headwater topic create {name}`")
        return found

    async def require(self, name: str, operation: str) -> None:
        """For what is not in the broker, and has the rights of a topic: there need not be such a
        topic. Raises Refusal unless the broker has said that the login may do it.
        """
        found = await self._topic(name, is_needed=False)
        if not found.has_operations or not found.allows(operation):
            raise no_right(operation, name)

    async def _topic(self, name: str, *, is_needed: bool) -> Topic:
        """As it was a moment ago; one that is needed may have been created meanwhile."""
        found = self._topics.get(name)
        if (
            found is None
            or time.monotonic() - found.read_s > _TOPIC_AGE_S
            or (is_needed and not found.exists)
        ):
            found = await self.call(self._read, name)
            self._topics[name] = found
            while len(self._topics) > _MOST_TOPICS:
                self._topics.popitem(last=False)
        return found

    def _check_away(self) -> None:
        """Raises BrokerUnreachable at once if it did so a moment ago."""
        if time.monotonic() < self._away_until_s:
            raise BrokerUnreachable(
                self._away.what, detail=self._away.detail, hint=self._away.hint
            ) from None

    def _read(self, name: str) -> Topic:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        self._check_away()
        try:
            require_listener(self.bootstrap)
            with self._lock:
                self._check_away()  # of those that have waited here only the first asks
                patience = self._cluster.patience("the broker does not answer")
                answer = self._cluster.ask_any(
                    request, MetadataResponse, patience, first=4, last=12
                )
        except BrokerUnreachable as error:
            error.hint = "try again in a moment"
            self._away, self._away_until_s = error, time.monotonic() + _AWAY_S
            raise
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return Topic(name, 0, topic.topic_authorized_operations, exists=False)
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise no_right("use", name)
            if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                raise RequestRefused(
                    f"topic {name} cannot be used", detail=ErrorCode(topic.error_code).name
                )
            return Topic(name, len(topic.partitions), topic.topic_authorized_operations)
        raise Refusal(404, f"there is no topic {name}")


def no_right(operation: str, topic: str) -> Refusal:
    return Refusal(
        403,
        f"no right to {operation} topic {topic}",
        hint="a user who may change ACLs can grant it: `headwater acl add`, docs/security.md",
    )


class Accesses:
    """The accesses of all logins: as many as there is room for, the last used the longest."""

    def __init__(self, bootstrap: str, threads: ThreadPoolExecutor) -> None:
        self._bootstrap = bootstrap
        self._threads = threads
        self._by_login: OrderedDict[ClientSettings, Access] = OrderedDict()

    @property
    def count(self) -> int:
        return len(self._by_login)

    def of(self, caller: Caller) -> Access:
        """Raises Refusal if too many users are at work at once."""
        return self.of_login(caller.login)

    def of_login(self, login: ClientSettings) -> Access:
        found = self._by_login.get(login)
        if found is None:
            self._make_room()
            found = self._by_login[login] = Access(self._bootstrap, login, self._threads)
        self._by_login.move_to_end(login)
        return found

    def _make_room(self) -> None:
        if len(self._by_login) < _MOST_LOGINS:
            return
        for login, access in self._by_login.items():
            if not access.in_use:
                del self._by_login[login]
                access.close()
                return
        raise Refusal(503, f"{_MOST_LOGINS} users are at work", headers={"Retry-After": "1"})

    def stop(self) -> None:
        for access in list(self._by_login.values()):
            access.stop()

    def close(self) -> None:
        for access in self._by_login.values():
            access.close()
        self._by_login.clear()
