"""The registry that the routes serve, opened when it is first needed."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from starlette.requests import Request

from headwater.errors import HeadwaterError
from headwater.schemas.registry.registry import Registry

READ, WRITE = "read", "write"
Authorise = Callable[[Request, str], Awaitable[None]]

_FAILED_S: Final = 5.0

_T = TypeVar("_T")


class RegistryServing:
    """Opens the registry when it is first asked something, so that the gateway starts although the
    broker is away. `authorise(request, operation)` raises for who may not.
    """

    def __init__(
        self, make: Callable[[], Registry], authorise: Authorise, threads: Executor | None = None
    ) -> None:
        self._make = make
        self.authorise = authorise
        self._threads = threads
        self._registry: Registry | None = None
        self._opening = threading.Lock()
        self._failed: tuple[float, HeadwaterError] | None = None  # until when it is remembered

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()

    @property
    def opened(self) -> Registry | None:
        """The registry, if it was opened."""
        return self._registry

    def _open(self) -> Registry:
        with self._opening:
            if self._registry is None:
                if self._failed is not None and self._failed[0] > time.monotonic():
                    raise self._failed[1]
                self._registry = self._opened()
            return self._registry

    def _opened(self) -> Registry:
        registry = None
        try:
            registry = self._make()
            registry.open()
        except HeadwaterError as error:  # requests must not wait for it one after the other
            self._failed = (time.monotonic() + _FAILED_S, error)
            if registry is not None:
                registry.close()
            raise
        return registry

    async def ensure_open(self) -> None:
        """Raises BrokerUnreachable."""
        if self._registry is None:
            await self.call(bool)

    async def call(self, method: Callable[..., _T], *args: Any, **options: Any) -> _T:
        """`Registry.method(*args)` in a thread. Raises what it raises."""

        def run() -> _T:
            return method(self._open(), *args, **options)

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, run)
