"""A login's way to the broker, for the requests of a web server: one cluster, and parts of routes.

The console has one for each user, the gateway for each login; both add what they ask for.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from headwater.client.cluster import Cluster
from headwater.settings import ClientSettings

PATIENCE_S: Final = 10.0


class Part(Protocol):
    """State of some routes for a login. It may also have `stop`, which ends its streams, from any
    thread.
    """

    def close(self) -> None: ...


_T = TypeVar("_T")
_P = TypeVar("_P", bound=Part)


class LoginAccess:
    """Methods are called on the event loop; what blocks runs in threads."""

    def __init__(self, bootstrap: str, login: ClientSettings, threads: ThreadPoolExecutor) -> None:
        self.bootstrap = bootstrap
        self.login = login
        self._threads = threads
        self._cluster = Cluster(bootstrap, login, patience_s=PATIENCE_S)
        self._lock = threading.Lock()  # the cluster is for one thread at a time
        self._parts: dict[type[Any], Part] = {}

    def stop(self) -> None:
        """Ends streams; from any thread."""
        for part in list(self._parts.values()):
            stop = getattr(part, "stop", None)
            if stop is not None:
                stop()

    def close(self) -> None:
        self._cluster.close()
        for part in self._parts.values():
            part.close()

    def part(self, kind: type[_P], make: Callable[[], _P]) -> _P:
        """State of some routes for this login: made when it is first asked for, closed with it."""
        if kind not in self._parts:
            self._parts[kind] = make()
        found = self._parts[kind]
        assert isinstance(found, kind)
        return found

    async def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """`function(*args)` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args))
