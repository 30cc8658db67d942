"""The HTTP endpoint of a capture (`metrics_listen`): /metrics, /live and /ready."""

import asyncio
import socket
import threading

from headwater.capture.metrics import CaptureState, exposition
from headwater.errors import ConfigError
from headwater.probe_http import ProbeServer
from headwater.settings import is_loopback, join_address, split_address


class HttpEndpoint:
    """In a thread of its own, until it is closed."""

    def __init__(
        self, listen: str, state: CaptureState, *, allow_insecure_network: bool = False
    ) -> None:
        """Raises ConfigError if the address cannot be bound, or others reach it unasked."""
        where = f"capture.{state.name}"
        if not (is_loopback(listen) or allow_insecure_network):
            raise ConfigError(
                f"{where}.metrics_listen {listen} can be reached from the network, without"
                " authentication",
                hint="bind it to 127.0.0.1 and let a proxy authenticate, or set"
                f" {where}.allow_insecure_network = true",
            )
        self._probes = ProbeServer(lambda: exposition(state).encode(), state.not_ready_because)
        host, port = split_address(listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"{where}.metrics_listen cannot be bound",
                detail=f"{listen}: {(error.strerror or str(error)).lower()}",
            ) from error
        self.address = join_address(*self._socket.getsockname()[:2])
        self._stopping = asyncio.Event()
        self._is_started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run()), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._is_started.wait()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._probes.listen(bound=self._socket)
        self._is_started.set()
        try:
            await self._stopping.wait()
        finally:
            self._probes.close()
