"""Requests of our broker and how long their answers took, between two readings of its counters."""

import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

_TIMEOUT_S: Final = 2.0
_MOST_BYTES: Final = 4 << 20
_REQUESTS: Final = 'headwater_requests_total{api="'
_BUCKETS: Final = 'headwater_request_seconds_bucket{api="'

Counts = dict[float, int]  # requests that took at most so long, by upper bound in seconds


class Reading(NamedTuple):
    at_s: float
    requests: dict[str, int]  # by API
    latency: dict[str, Counts]  # by API
    connections: int | None
    disk_free_bytes: int | None


class BrokerMeter:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._before: Reading | None = None

    def read(self, address: str | None) -> dict[str, float]:
        """Figures by the name of their series; none if the broker does not answer there. Rates and
        percentiles are of the time since the call before.
        """
        now = None if address is None else _read(address)
        before, self._before = self._before, now
        return {} if now is None else dict(_figures(now, before))


def _read(address: str) -> Reading | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/metrics/requests", timeout=_TIMEOUT_S) as answer:
            return parsed(answer.read(_MOST_BYTES).decode("utf-8", "replace"), time.monotonic())
    except (OSError, ValueError, urllib.error.URLError):
        return None


def parsed(text: str, at_s: float) -> Reading:
    """Of Prometheus' text; ValueError if its numbers are none."""
    reading = Reading(at_s, {}, {}, None, None)
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(_REQUESTS):
            reading.requests[name[len(_REQUESTS) :].partition('"')[0]] = int(value)
        elif name.startswith(_BUCKETS):
            api, _, rest = name[len(_BUCKETS) :].partition('",le="')
            bound = rest.removesuffix('"}')
            limit = math.inf if bound == "+Inf" else float(bound)
            reading.latency.setdefault(api, {})[limit] = int(value)
        elif name == "headwater_connections":
            reading = reading._replace(connections=int(value))
        elif name == "headwater_disk_free_bytes":
            reading = reading._replace(disk_free_bytes=int(value))
    return reading


def _figures(now: Reading, before: Reading | None) -> Iterator[tuple[str, float]]:
    if now.connections is not None:
        yield "connections", now.connections
    if now.disk_free_bytes:
        yield "disk.free", now.disk_free_bytes
    if before is None or any(
        now.requests.get(api, 0) < count for api, count in before.requests.items()
    ):
        return  # the first reading, or the first of another process
    passed_s = max(now.at_s - before.at_s, 0.001)
    for api, count in now.requests.items():
        yield f"requests.rate/{api}", (count - before.requests.get(api, 0)) / passed_s
    for api, counts in now.latency.items():
        old = before.latency.get(api, {})
        new = {bound: count - old.get(bound, 0) for bound, count in counts.items()}
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            value_s = percentile(new, share)
            if value_s is not None:
                yield f"requests.{name}/{api}", value_s * 1000


def percentile(counts: Counts, share: float) -> float | None:
    """In seconds, as if values were spread evenly between two bounds. Above the last bound: that
    bound. None without any value.
    """
    bounds = sorted(counts)
    total = counts[bounds[-1]] if bounds else 0
    if total <= 0:
        return None
    wanted = share * total
    for low, high in pairwise((0.0, *bounds)):
        below = counts.get(low, 0)
        if counts[high] >= wanted:
            if math.isinf(high):
                return low
            return low + (high - low) * (wanted - below) / max(counts[high] - below, 1)
    return None


def address_of(children: Iterable[dict[str, object]], configured: str | None) -> str | None:
    """Where the broker of this project has its metrics: as configured, or as `up` has chosen."""
    if configured is not None and not configured.endswith(":0"):
        return configured
    for child in children:
        if child.get("kind") == "broker" and child.get("metrics"):
            return str(child["metrics"])
    return None
