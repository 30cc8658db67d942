"""The StatsD server: two threads, one that receives and aggregates, one that writes intervals.

    kernel's queue ─▶ receive: parse, aggregate ─┬─▶ flush, at the end of each interval ─▶ topic
       (drops: SO_MEMINFO)                       └─ swapped under a lock

Nothing waits for the broker: records for which the producer has no room are lost, and counted.
"""

import itertools
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from headwater.direct.publishing import TopicWriter
from headwater.direct.settings import StatsdSettings
from headwater.direct.statsd.lines import Refused, parse
from headwater.direct.statsd.series import Aggregator, SeriesRecord
from headwater.errors import HeadwaterError
from headwater.prometheus_text import family
from headwater.settings import split_address

_LOG = logging.getLogger(__name__)
_DATAGRAM_BYTES: Final = 65_535
_RECEIVE_BUFFER_BYTES: Final = 8 << 20
_WAKE_S: Final = 0.2  # how soon the receiver notices that it shall stop
_ROOM_S: Final = 0.5  # how long the records of an interval may wait for room in the producer
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("9I")
_DROPS: Final = 8  # SK_MEMINFO_DROPS


class StatsdServer:
    """Bound when it is made; raises HeadwaterError if it cannot be. `stop` writes what it has."""

    def __init__(
        self,
        settings: StatsdSettings,
        writer: TopicWriter,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        assert settings.listen is not None
        self.topic = settings.topic
        self._writer = writer
        self._interval_s = settings.interval
        self._max_bytes = settings.max_series_bytes
        self._now_ms = now_ms
        self._socket = _bound(settings.listen)
        self._lock = threading.Lock()
        self._aggregator = Aggregator(settings.max_series_bytes)
        self._began_ms = now_ms()
        self._stop = threading.Event()
        self.datagrams = self.samples = self.bad_lines = self.unsupported = 0
        self.records_lost = 0
        self._dropped = 0  # by the kernel, at the last look
        self._bad_example = ""
        self._threads = [
            threading.Thread(target=self._receive, name="statsd", daemon=True),
            threading.Thread(target=self._flush_regularly, name="statsd-flush", daemon=True),
        ]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, limit_s: float) -> None:
        """What has arrived is aggregated and written. Waits for the broker for `limit_s`."""
        if self._socket.fileno() < 0:
            return
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._drain()
        self.flush()
        self._dropped = self.dropped_by_kernel() or 0
        self._socket.close()
        left = self._writer.close(limit_s)
        if left:
            _LOG.warning("statsd: %d records were not acknowledged at the end", left)

    # Receiving

    def _receive(self) -> None:
        self._socket.settimeout(_WAKE_S)
        while not self._stop.is_set():
            try:
                self._take(self._socket.recv(_DATAGRAM_BYTES))
            except TimeoutError:
                continue
            except OSError as error:
                _LOG.warning("statsd: %s", error)
                self._stop.wait(_WAKE_S)

    def _drain(self) -> None:
        """What the kernel holds, as much as fits into its queue."""
        self._socket.setblocking(False)
        try:
            for _ in range(_RECEIVE_BUFFER_BYTES >> 8):
                self._take(self._socket.recv(_DATAGRAM_BYTES))
        except OSError:  # BlockingIOError: it is empty
            pass

    def _take(self, datagram: bytes) -> None:
        self.datagrams += 1
        samples = []
        for line in datagram.split(b"\n"):
            if not line:
                continue
            found = parse(line)
            if not isinstance(found, Refused):
                samples.append(found)
            elif found.is_unsupported:
                self.unsupported += 1
            else:
                self.bad_lines += 1
                self._bad_example = f"{line[:100]!r}: {found.reason}"
        self.samples += len(samples)
        with self._lock:
            for sample in samples:
                self._aggregator.add(sample)

    # Writing

    def _flush_regularly(self) -> None:
        next_s = time.monotonic() + self._interval_s
        while not self._stop.wait(max(0.0, min(next_s - time.monotonic(), _WAKE_S))):
            self._writer.poll()
            if time.monotonic() >= next_s:
                next_s = max(next_s + self._interval_s, time.monotonic())
                self.flush()

    def flush(self) -> None:
        """Ends the interval."""
        now_ms = self._now_ms()
        with self._lock:
            began_ms, self._began_ms = self._began_ms, now_ms
            records = self._aggregator.flush(began_ms, now_ms)
            first = next(records, None)  # what is written is taken out with the first one
        deadline_s = time.monotonic() + _ROOM_S
        for record in itertools.chain([first] if first is not None else [], records):
            self._offer(record, now_ms, deadline_s)
        self._writer.poll()
        if self._bad_example:
            _LOG.info(
                "statsd: bad lines, %d so far; the last: %s", self.bad_lines, self._bad_example
            )
            self._bad_example = ""

    def _offer(self, record: SeriesRecord, now_ms: int, deadline_s: float) -> None:
        while not self._writer.offer(record.value, record.key, timestamp_ms=now_ms):
            if time.monotonic() >= deadline_s:
                self.records_lost += 1
                return
            self._writer.poll(_ROOM_S / 10)

    # Numbers

    def dropped_by_kernel(self) -> int | None:
        """Datagrams that found no room in the socket's queue; None if the kernel does not say."""
        try:
            info = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            return int(_MEMINFO.unpack(info)[_DROPS])
        except (OSError, struct.error):
            return self._dropped or None

    def metrics(self) -> Iterator[str]:
        aggregator = self._aggregator
        for name, text, value in (
            ("datagrams", "StatsD datagrams received.", self.datagrams),
            ("samples", "StatsD samples aggregated.", self.samples),
            ("bad_lines", "StatsD lines that are none.", self.bad_lines),
            ("unsupported", "Events and service checks of DogStatsD.", self.unsupported),
            ("samples_lost", "Samples without room for their series.", aggregator.lost),
            ("records_lost", "Records without room in the producer.", self.records_lost),
            ("records_failed", "Records that the broker refused.", self._writer.failed),
            ("records", "Records acknowledged by the broker.", self._writer.acknowledged),
            ("gauges_forgotten", "Gauges forgotten for room.", aggregator.forgotten_gauges),
        ):
            yield from family(f"headwater_statsd_{name}_total", "counter", text, [({}, value)])
        dropped = self.dropped_by_kernel()
        if dropped is not None:
            text = (
                "Datagrams that the kernel dropped at this socket. What the network lost before is"
                " not known: counts over UDP are at best approximate."
            )
            yield from family(
                "headwater_statsd_datagrams_dropped_total", "counter", text, [({}, dropped)]
            )
        yield from family(
            "headwater_statsd_series", "gauge", "Series in memory.", [({}, aggregator.series)]
        )
        yield from family(
            "headwater_statsd_series_bytes",
            "gauge",
            "Memory of the series, estimated.",
            [({}, aggregator.held_bytes)],
        )


def _bound(listen: str) -> socket.socket:
    host, port = split_address(listen)
    try:
        family_, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family_, kind, number)
    except OSError as error:
        raise _cannot_listen(listen, error) from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise _cannot_listen(listen, error) from error
    return opened


def _cannot_listen(listen: str, error: OSError) -> HeadwaterError:
    return HeadwaterError(
        "StatsD cannot be received",
        detail=f"{listen}: {(error.strerror or str(error)).lower()}",
        hint="gateway.statsd.listen names another address, for example 127.0.0.1:8126",
    )
