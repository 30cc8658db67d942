"""The history of a derived topic: where it ended at a time, or at an offset.

A batch is one transaction, so a state in the middle of one never was: a moment within a batch is
that before it. The marker that ends a transaction has an offset of its own. In a topic from which
nothing was removed, records with adjacent offsets are therefore of one transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.client.cluster import Cluster
from headwater.client.reading.fetching import EARLIEST, Fetcher
from headwater.client.topics import topic_configs
from headwater.errors import StoreRefused
from headwater.sinks.contract import Log

_HINT: Final = (
    'a view whose options are { "cleanup.policy" = "delete", "retention.ms" = "-1" } from its first'
    " record on has all of it"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Milliseconds since 1970, or for each partition the offset in front of which it is."""

    time_ms: int | None = None
    offsets: Mapping[int, int] | None = None


def ends_at(
    fetcher: Fetcher, log: Log, topic: str, ends: Mapping[int, int], at: Moment
) -> dict[int, int]:
    """Where each partition ended then; `ends` is where they end now. Raises StoreRefused."""
    _check_complete(fetcher, log, topic, ends)
    if at.time_ms is not None:
        wanted = fetcher.offsets([(topic, partition) for partition in ends], at.time_ms + 1)
        offsets = {partition: wanted[topic, partition] for partition in ends}
    else:
        offsets = dict(at.offsets or {})
        _check_offsets(topic, ends, offsets)
    return {
        partition: _whole(fetcher, topic, partition, min(offset, ends[partition]), ends[partition])
        for partition, offset in offsets.items()
    }


def _check_complete(fetcher: Fetcher, log: Log, topic: str, ends: Mapping[int, int]) -> None:
    cluster = Cluster(log.bootstrap, log.login)
    try:
        policy = topic_configs(cluster, topic).get("cleanup.policy", "")
    finally:
        cluster.close()
    if "compact" in policy:
        raise StoreRefused(
            f"topic {topic} is compacted: it has the last record of each key, and no history",
            detail=f"cleanup.policy is {policy}",
            hint=_HINT,
        )
    starts = fetcher.offsets([(topic, partition) for partition in ends], EARLIEST)
    for (_, partition), start in starts.items():
        if start > 0:
            raise StoreRefused(
                f"topic {topic} no longer has its whole history",
                detail=f"partition {partition} begins at offset {start}",
                hint=_HINT,
            )


def _check_offsets(topic: str, ends: Mapping[int, int], offsets: Mapping[int, int]) -> None:
    if set(offsets) != set(ends):
        form = ",".join(f"{partition}:{end}" for partition, end in sorted(ends.items()))
        raise StoreRefused(
            f"topic {topic} has {len(ends)} partitions", hint=f"an offset of each: {form}"
        )
    for partition, offset in offsets.items():
        if offset > ends[partition]:
            raise StoreRefused(
                f"offset {offset} is not there yet",
                detail=f"partition {partition} of {topic} ends at {ends[partition]}",
            )


def _whole(fetcher: Fetcher, topic: str, partition: int, offset: int, end: int) -> int:
    """At or before `offset`, between two transactions."""
    if offset >= end or not _has_record(fetcher, topic, partition, offset):
        return offset
    last = None  # the first record of the transaction that `offset` is in
    before = -1
    for batch in fetcher.read(topic, partition, 0, offset + 1, columns=("offset",)):
        for found in batch["offset"].to_pylist():
            if last is None or found != before + 1:
                last = found
            before = found
    return offset if last is None else int(last)


def _has_record(fetcher: Fetcher, topic: str, partition: int, offset: int) -> bool:
    found = fetcher.read(topic, partition, offset, offset + 1, columns=("offset",))
    return any(len(batch) for batch in found)
