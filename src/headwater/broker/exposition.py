"""The broker's numbers in Prometheus' text format, gathered when somebody asks."""

import math
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headwater import __version__
from headwater.broker.api.registry import APIS

if TYPE_CHECKING:
    from headwater.broker.broker import Broker
    from headwater.broker.server import Server

Sample = tuple[Mapping[str, str], float]


def exposition(broker: "Broker", server: "Server") -> str:
    return "".join(_lines(broker, server))


def _lines(broker: "Broker", server: "Server") -> Iterator[str]:
    metrics, store = broker.metrics, broker.store
    yield from _family(
        "headwater_build_info", "gauge", "The version that runs.", [({"version": __version__}, 1)]
    )
    yield from _family("headwater_requests_total", "counter", "Requests by API.", (
        ({"api": APIS[key].name}, count) for key, count in metrics.requests.items()
    ))  # fmt: skip
    for name, text, by_topic in (
        ("headwater_produced_records_total", "Records taken in.", metrics.produced_records),
        ("headwater_produced_bytes_total", "Bytes taken in.", metrics.produced_bytes),
        ("headwater_fetched_bytes_total", "Bytes sent to consumers.", metrics.fetched_bytes),
        ("headwater_refused_batches_total", "Batches not taken.", metrics.refused_batches),
        (
            "headwater_missed_records_total",
            "Records that were gone when a consumer came for them.",
            metrics.missed_records,
        ),
    ):
        yield from _family(name, "counter", text, _by_topic(by_topic))
    for name, text, value in (
        ("headwater_connections", "Open connections.", len(server.connections)),
        ("headwater_buffered_bytes", "Request bytes in memory.", server.buffered_bytes),
        ("headwater_fetch_sessions", "Incremental fetch sessions.", len(broker.fetch_sessions)),
        ("headwater_topics", "Topics.", len(store.catalog.topics)),
        ("headwater_partitions", "Partitions.", len(store.partitions)),
        ("headwater_open_files", "Segment files held open.", len(store.storage.open_files)),
        ("headwater_disk_free_bytes", "Free space on the log's disk.", metrics.disk.free_bytes),
        (
            "headwater_disk_write_bytes_per_second",
            "Rate at which the log grew in the last minute.",
            metrics.disk.write_bytes_per_s,
        ),
        (
            "headwater_disk_seconds_left",
            "How long the free space lasts at that rate.",
            metrics.disk.seconds_left,
        ),
        (
            "headwater_storage_failed_partitions",
            "Partitions whose last write the disk refused.",
            len(store.failed),
        ),
        ("headwater_corrupt_segments", "Segments out of service.", len(store.corrupt)),
        (
            "headwater_recovery_scanned_bytes",
            "Bytes scanned when the log was opened.",
            store.scanned_bytes,
        ),
        ("headwater_memory_peak_bytes", "Largest resident size so far.", _peak_bytes()),
    ):
        yield from _family(name, "gauge", text, [({}, value)])
    for name, text, count in (
        (
            "headwater_connections_opened_total",
            "Connections accepted.",
            metrics.connections_opened,
        ),
        (
            "headwater_connections_refused_total",
            "Connections ended for bad input or a limit.",
            metrics.connections_refused,
        ),
    ):
        yield from _family(name, "counter", text, [({}, count)])
    yield from _group_lines(broker)


def _group_lines(broker: "Broker") -> Iterator[str]:
    lags: list[Sample] = []
    for group, (topic, index), committed in broker.groups.committed_offsets():
        partition = broker.store.partitions.get((topic, index))
        if partition is not None:
            labels = {"group": group, "topic": topic, "partition": str(index)}
            lags.append((labels, max(partition.high_watermark - committed.offset, 0)))
    yield from _family("headwater_group_lag_records", "gauge", "Records a group is behind.", lags)


def _by_topic(counts: Mapping[str, int]) -> Iterable[Sample]:
    return (({"topic": topic}, count) for topic, count in counts.items())


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        shown = "+Inf" if math.isinf(value) else f"{value:.10g}" if value % 1 else str(int(value))
        yield f"{name}{{{inside}}} {shown}\n" if inside else f"{name} {shown}\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
