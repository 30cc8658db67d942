"""A user's access to the broker: every request uses that user's login.

So the console cannot show what the broker refuses to that user.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headwater.client.cluster import Cluster
from headwater.console.topics.topic_list import Rates, Reading, read_topics
from headwater.console.web.cache import DEFAULT_AGE_S, Shared
from headwater.settings import ClientSettings
from headwater.web.listener import require_listener
from headwater.web.login_access import LoginAccess

_T = TypeVar("_T")


class Access(LoginAccess):
    """For all sessions of one user. Methods are called on the event loop; what blocks runs in the
    console's threads.
    """

    def __init__(
        self, bootstrap: str, login: ClientSettings, threads: ThreadPoolExecutor, user: str = ""
    ) -> None:
        super().__init__(bootstrap, login, threads)
        self.user = user
        self.shared = Shared()
        self._rates = Rates()

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
