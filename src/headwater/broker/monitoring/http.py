"""`--metrics-listen` of the broker: its metrics, and whether it is ready (probe_http.py).

/metrics/requests is the part of /metrics that does not grow with topics and groups.
"""

import time
from typing import TYPE_CHECKING

from headwater.broker.monitoring.exposition import exposition, requests_exposition
from headwater.probe_http import ProbeServer

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.network.server import Server

_CHEAP_S = 0.02


class HttpEndpoint:
    """On the broker's own event loop."""

    def __init__(self, broker: "Broker", server: "Server") -> None:
        self._broker = broker
        self._kafka_server = server
        self.probes = ProbeServer(
            self._exposition, self._not_ready_because, {b"/metrics/requests": self._requests}
        )
        self.is_ready = False
        self._metrics = b""
        self._metrics_until_s = 0.0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        return await self.probes.listen(host, port)

    async def close(self) -> None:
        self.probes.close()

    def _exposition(self) -> bytes:
        """Where it takes long, at most a fifth of the event loop's time is spent on it."""
        began_s = time.monotonic()
        if began_s >= self._metrics_until_s:
            self._metrics = exposition(self._broker, self._kafka_server).encode()
            now_s = time.monotonic()
            took_s = now_s - began_s
            self._metrics_until_s = now_s + (4 * took_s if took_s > _CHEAP_S else 0)
        return self._metrics

    def _requests(self) -> bytes:
        return requests_exposition(self._broker, self._kafka_server).encode()

    def _not_ready_because(self) -> str | None:
        if not self.is_ready:
            return "the broker is starting or stopping"
        failed = self._broker.store.failed
        if failed:
            some = next(iter(failed))
            return f"{len(failed)} partitions cannot be written: {some.failure}"
        return None
