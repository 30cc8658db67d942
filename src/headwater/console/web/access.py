"""A user's access to the broker: every request uses that user's login.

So the console cannot show what the broker refuses to that user.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from headwater.client.cluster import Cluster
from headwater.console.topics.topic_list import Rates, Reading, read_topics
from headwater.console.web.cache import DEFAULT_AGE_S, Shared
from headwater.errors import BrokerUnreachable
from headwater.settings import ClientSettings, split_address


class _Part(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T")
_P = TypeVar("_P", bound=_Part)

PATIENCE_S: Final = 10.0
_CONNECT_TIMEOUT_S: Final = 2.0


class Access:
    """For all sessions of one user. Methods are called on the event loop; what blocks runs in the
    console's threads.
    """

    def __init__(
        self, bootstrap: str, login: ClientSettings, threads: ThreadPoolExecutor, user: str = ""
    ) -> None:
        self.bootstrap = bootstrap
        self.login = login
        self.user = user
        self.shared = Shared()
        self._threads = threads
        self._cluster = Cluster(bootstrap, login, patience_s=PATIENCE_S)
        self._lock = threading.Lock()  # the cluster is for one thread at a time
        self._rates = Rates()
        self._parts: dict[type[_Part], _Part] = {}

    def close(self) -> None:
        self._cluster.close()
        for part in self._parts.values():
            part.close()

    def part(self, kind: type[_P], make: Callable[[], _P]) -> _P:
        """State of some pages for this user: made when it is first asked for, closed with it."""
        if kind not in self._parts:
            self._parts[kind] = make()
        found = self._parts[kind]
        assert isinstance(found, kind)
        return found

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """`function(*args)` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args))

    async def ask(self, function: Callable[[Cluster], _T]) -> _T:
        """`function(cluster)` in a thread, one at a time. Raises BrokerUnreachable at once if
        the broker does not listen.
        """

        def asked() -> _T:
            require_listener(self.bootstrap)
            with self._lock:
                return function(self._cluster)

        return await self.call(asked)

    async def read(
        self, name: Any, function: Callable[..., _T], *args: Any, max_age_s: float = DEFAULT_AGE_S
    ) -> _T:
        """`function(*args)` in a thread; cached for `max_age_s`."""
        return await self.shared.get(name, lambda: self.call(function, *args), max_age_s)

    async def topics(self) -> Reading:
        """All topics as they were a moment ago."""
        return await self.shared.get(
            "topics", lambda: self.ask(lambda cluster: read_topics(cluster, self._rates))
        )


def require_listener(bootstrap: str) -> None:
    """Raises BrokerUnreachable at once; the clients would retry until their patience ends."""
    failures = []
    for address in bootstrap.split(","):
        try:
            with socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S):
                return
        except OSError as error:
            failures.append(f"{address}: {(error.strerror or str(error)).lower()}")
    raise BrokerUnreachable(
        "the broker does not answer",
        detail="; ".join(failures),
        hint="this page continues by itself as soon as it does",
    )
