"""Metrics and side outputs of operators, which the driver reads from their manifests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import SHARED_COUNTERS, WATERMARK
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import (
    TableLocation,
    begun_buckets,
    has_file,
    newest_manifest,
    read_manifest,
    read_table,
)
from headwater.pipelines.operators.state.state_store import Location
from headwater.pipelines.operators.time.event_time import NEVER_US


@dataclass(frozen=True, slots=True)
class SlowestSource:
    """The source that holds the watermark back: a partition, or a producer in one."""

    name: str
    behind_us: int  # the furthest source of the same operator

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "behind_s": self.behind_us / 1e6}


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """Metrics of one operator after a batch, over all its buckets."""

    rows: int = 0  # of its tables
    bytes: int = 0
    watermark_us: int | None = None
    counters: dict[str, int] = field(default_factory=dict)  # since its state was begun
    slowest: SlowestSource | None = None  # if there are several

    def as_json(self) -> dict[str, Any]:
        return {
            "state_rows": self.rows,
            "state_bytes": self.bytes,
            "watermark_us": self.watermark_us,
            "slowest": self.slowest.as_json() if self.slowest else None,
            **self.counters,
        }


def sides_of(operator: Location, buckets: int, batch: int, name: str) -> Iterator[pa.Table]:
    """The side output of this batch under this name."""
    for bucket in range(buckets):
        directory = operator / str(bucket)
        if has_file(directory, f"{batch}.json"):
            for location in read_manifest(directory, batch)["sides"].get(name, ()):
                yield read_table(directory, TableLocation(*location))


def metrics_of(operator: Location, buckets: int, batch: int) -> OperatorMetrics:
    """After this batch, which is committed or at least computed. Raises StateLost."""
    return metrics_in([newest_manifest(operator / str(bucket), batch) for bucket in range(buckets)])


def metrics_in(manifests: Sequence[Mapping[str, Any]]) -> OperatorMetrics:
    """By the manifests of all buckets."""
    locations = [
        TableLocation(*location) for one in manifests for location in one.get("tables", {}).values()
    ]
    watermarks = [one.get("document", {}).get(WATERMARK) for one in manifests]
    counters: dict[str, int] = {}
    for one in manifests:
        for name, count in one.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + count
    for one in manifests[:1]:
        counters |= one.get("document", {}).get(SHARED_COUNTERS, {})
    return OperatorMetrics(
        sum(location.rows for location in locations),
        sum(location.bytes for location in locations),
        min(
            (watermark for watermark in watermarks if watermark not in (None, NEVER_US)),
            default=None,
        ),
        counters,
        slowest_source(next((one["document"] for one in manifests if one.get("document")), {})),
    )


def slowest_source(document: dict[str, Any]) -> SlowestSource | None:
    """By `Watermarks.to_json()` in the document, one for each input. A source behind the watermark
    of its input is idle, and does not hold it back.
    """
    times: dict[str, int] = {}
    inputs = [value for value in document.values() if isinstance(value, dict)]
    for stored in [given.get("watermarks", given) for given in inputs]:
        for topic, partition, seen_us, _ in stored.get("partitions", ()):
            if seen_us >= stored["now"]:
                times[f"partition {partition} of {topic}"] = seen_us
        for member in stored.get("members", ()):
            location = f"partition {member['partition']} of {member['topic']}"
            for name, watermark_us in zip(member["producers"], member["watermarks"], strict=True):
                if watermark_us >= stored["now"]:
                    times[f"producer {name} in {location}"] = watermark_us
    if len(times) < 2:
        return None
    name = min(times, key=lambda source: times[source])
    return SlowestSource(name, max(times.values()) - times[name])


def metrics_of_all(
    directory: Location, operators: tuple[Built, ...], batch: int
) -> dict[str, OperatorMetrics]:
    """By name. Operators that cannot be read are left out: their own query reports the error."""
    found = {}
    for operator in operators:
        try:
            path = directory / operator.name
            found[operator.name] = metrics_of(path, begun_buckets(path), batch)
        except PipelineError:
            continue
    return found
