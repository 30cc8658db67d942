"""A broker inside the test's own process, on a free port, for any Kafka client."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headwater.broker.main import RunningBroker
from headwater.clock import Clock
from headwater.log.disk.files import Files
from headwater.settings import BrokerSettings
from headwater.testing.clock import FakeClock


class InProcessBroker:
    """A real broker on a thread of its own; see `serving`."""

    def __init__(
        self,
        data_dir: str,
        settings: BrokerSettings | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> None:
        settings = settings or BrokerSettings(listen="127.0.0.1:0")
        self._settings = replace(settings, data_dir=str(data_dir))
        self._clock = clock
        self._files = files
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.running: RunningBroker | None = None

    @property
    def bootstrap(self) -> str:
        """The address to give to a client."""
        assert self.running is not None, "the broker is not started"
        return self.running.address

    @property
    def metrics_address(self) -> str | None:
        assert self.running is not None, "the broker is not started"
        return self.running.metrics_address

    def start(self) -> None:
        """Returns when clients can connect; raises what prevented the broker from starting."""
        started = threading.Event()
        failure: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, args=(started, failure), name="broker", daemon=True
        )
        self._thread.start()
        started.wait()
        if failure:
            self._thread.join()
            raise failure[0]

    def stop(self) -> None:
        """Stops in order: what was acknowledged is on disk, and the log is closed cleanly."""
        self._end(crash=False)

    def crash(self) -> None:
        """Ends it as kill -9 would: nothing is flushed, no clean shutdown is recorded."""
        self._end(crash=True)

    def restart(self, *, crash: bool = False) -> None:
        """Stops and starts again on the same address and data."""
        self._settings = replace(self._settings, listen=self.bootstrap)
        self._end(crash=crash)
        self.start()

    def advance(self, seconds: float) -> None:
        """Turns the hands of the broker's FakeClock, on the broker's own thread."""
        clock = self._clock
        assert isinstance(clock, FakeClock), "the broker was not given a FakeClock"
        assert self._loop is not None, "the broker is not started"

        async def turn() -> None:
            clock.advance(seconds)

        asyncio.run_coroutine_threadsafe(turn(), self._loop).result()

    def _run(self, started: threading.Event, failure: list[BaseException]) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self.running = RunningBroker(self._settings, clock=self._clock, files=self._files)
            self._stop = asyncio.Event()
            try:
                runner.run(self.running.start())
            except BaseException as error:
                self.running.store.abandon()
                failure.append(error)
                started.set()
                return
            started.set()
            runner.run(self._until_stopped())

    async def _until_stopped(self) -> None:
        assert self.running is not None
        await self._stop.wait()
        await self._accept_no_more()
        if self._crash:
            await self.running.control.close()
            await self.running.server.close()
            await self.running.broker.abandon()
            if self.running.http is not None:
                await self.running.http.close()
        else:
            await self.running.stop()

    async def _accept_no_more(self) -> None:
        """Asyncio leaks a socket that it accepted but has no transport for when it closes.

        It would be found by the garbage collector, in the middle of a later test.
        """
        assert self.running is not None
        loop = asyncio.get_running_loop()
        for listening in self.running.server.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(3):  # until what was accepted has come to its protocol
            await asyncio.sleep(0)

    def _end(self, *, crash: bool) -> None:
        if self._thread is None or self._loop is None:
            return
        self._crash = crash
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    @classmethod
    @contextmanager
    def serving(
        cls,
        data_dir: str,
        settings: BrokerSettings | None = None,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
    ) -> Iterator["InProcessBroker"]:
        """Starts one, and stops it at the end of the `with` block."""
        broker = cls(data_dir, settings, clock=clock, files=files)
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()
