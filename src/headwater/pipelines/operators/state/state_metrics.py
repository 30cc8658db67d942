"""What the driver reads of operators' state: rows that were put aside, and numbers for people."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import WATERMARK
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import (
    Place,
    newest_manifest,
    read_manifest,
    read_table,
)
from headwater.pipelines.operators.time.event_time import NEVER_US


@dataclass(frozen=True, slots=True)
class Slowest:
    """Whom time waits for: a partition, or a producer in one."""

    name: str
    behind_us: int  # the furthest of the same operator

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "behind_s": self.behind_us / 1e6}


@dataclass(frozen=True, slots=True)
class Told:
    """Of one operator after a batch, over all its buckets."""

    rows: int = 0  # of its tables
    bytes: int = 0
    watermark_us: int | None = None
    counters: dict[str, int] = field(default_factory=dict)  # since its state was begun
    slowest: Slowest | None = None  # if there are several

    def as_json(self) -> dict[str, Any]:
        return {
            "state_rows": self.rows,
            "state_bytes": self.bytes,
            "watermark_us": self.watermark_us,
            "slowest": self.slowest.as_json() if self.slowest else None,
            **self.counters,
        }


def sides_of(operator: Path, buckets: int, batch: int, name: str) -> Iterator[pa.Table]:
    """What this batch has put aside under this name."""
    for bucket in range(buckets):
        directory = operator / str(bucket)
        if (directory / f"{batch}.json").exists():
            for place in read_manifest(directory, batch)["sides"].get(name, ()):
                yield read_table(directory, Place(*place))


def told_of(operator: Path, buckets: int, batch: int) -> Told:
    """After this batch, which is committed, or computed at least. Raises StateLost."""
    manifests = [newest_manifest(operator / str(each), batch) for each in range(buckets)]
    places = [Place(*each) for one in manifests for each in one.get("tables", {}).values()]
    watermarks = [one.get("document", {}).get(WATERMARK) for one in manifests]
    counters: dict[str, int] = {}
    for one in manifests:
        for name, count in one.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + count
    return Told(
        sum(each.rows for each in places),
        sum(each.bytes for each in places),
        min((each for each in watermarks if each not in (None, NEVER_US)), default=None),
        counters,
        slowest_of(next((one["document"] for one in manifests if one.get("document")), {})),
    )


def slowest_of(document: dict[str, Any]) -> Slowest | None:
    """By what operators keep of `Watermarks.to_json()`, one for each input. Who is behind the time
    of its input is idle, and nobody waits for it.
    """
    times: dict[str, int] = {}
    inputs = [each for each in document.values() if isinstance(each, dict)]
    for kept in [each.get("watermarks", each) for each in inputs]:
        for topic, partition, seen_us, _ in kept.get("partitions", ()):
            if seen_us >= kept["now"]:
                times[f"partition {partition} of {topic}"] = seen_us
        for each in kept.get("members", ()):
            place = f"partition {each['partition']} of {each['topic']}"
            for name, watermark_us in zip(each["producers"], each["watermarks"], strict=True):
                if watermark_us >= kept["now"]:
                    times[f"producer {name} in {place}"] = watermark_us
    if len(times) < 2:
        return None
    name = min(times, key=lambda each: times[each])
    return Slowest(name, max(times.values()) - times[name])


def told_of_all(directory: Path, operators: tuple[Built, ...], batch: int) -> dict[str, Told]:
    """By name; those that cannot be read are left out: their own query will tell."""
    found = {}
    for each in operators:
        try:
            found[each.name] = told_of(directory / each.name, each.buckets, batch)
        except PipelineError:
            continue
    return found
