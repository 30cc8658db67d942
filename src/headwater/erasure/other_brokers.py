"""Plain records on a broker that cannot erase single ones (Apache Kafka): what can be done there.

In a compacted topic a tombstone behind the last record of a key makes compaction remove all of
them. Elsewhere records go with retention, or with DeleteRecords, which removes all before them.
Whoever erases is told which of it applies to each partition; only tombstones are written, and only
on demand: they delete the key in everything that is derived from the topic.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from headwater.client.cluster import Cluster
from headwater.client.login import properties_of
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.client.topics import topic_configs
from headwater.client.writing.sending import TopicPartition
from headwater.errors import BrokerUnreachable
from headwater.settings import ClientSettings

_FLUSH_TIMEOUT_S: Final = 60
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a partition has from the first plain record on."""

    last_of_key: Mapping[bytes, int]  # offsets, of keys that plain records have
    newest_ms: int  # of the plain records
    is_keyed: bool  # every plain record has a key

    def keys_to_bury(self, plain: Collection[int]) -> list[bytes]:
        """Those whose last record is a plain one: behind another one compaction removes it."""
        return [key for key, offset in self.last_of_key.items() if offset in plain]


def removal_elsewhere(
    bootstrap: str,
    login: ClientSettings,
    plain: Mapping[TopicPartition, Sequence[int]],
    *,
    tombstones: bool,
) -> list[str]:
    """A line for each partition: how its plain records go. With `tombstones`, they are written to
    compacted topics where they are missing; they are stored when it returns.
    """
    lines = []
    buried: list[tuple[TopicPartition, bytes]] = []
    cluster = Cluster(bootstrap, login)
    try:
        with Fetcher(bootstrap, login, isolation="read_uncommitted") as fetcher:
            for at, offsets in plain.items():
                configs = topic_configs(cluster, at[0])
                seen = _seen(fetcher, at, offsets)
                keys = seen.keys_to_bury(set(offsets))
                if tombstones and "compact" in configs.get("cleanup.policy", ""):
                    buried += ((at, key) for key in keys)
                    keys = []
                lines.append(f"{at[0]}-{at[1]}: {_way(configs, seen, keys, offsets)}")
    finally:
        cluster.close()
    _write(bootstrap, login, buried)
    return lines


def _seen(fetcher: Fetcher, at: TopicPartition, offsets: Sequence[int]) -> _Seen:
    plain = set(offsets)
    keys: set[bytes] = set()
    last_of_key: dict[bytes, int] = {}
    newest_ms, is_keyed = 0, True
    end = fetcher.offsets([at], LATEST)[at]
    for record in fetcher.records(*at, min(offsets), end):
        if record.offset in plain:
            newest_ms = max(newest_ms, record.timestamp_ms)
            if record.key is None:
                is_keyed = False
            else:
                keys.add(record.key)
        if record.key in keys and record.key is not None:
            last_of_key[record.key] = record.offset
    return _Seen(last_of_key, newest_ms, is_keyed)


def _way(
    configs: Mapping[str, str], seen: _Seen, keys: Sequence[bytes], offsets: Sequence[int]
) -> str:
    policy = configs.get("cleanup.policy", "delete")
    if "compact" in policy and seen.is_keyed:
        if keys:
            return (
                f"a tombstone is missing for {len(keys)} of its keys; `headwater erase"
                " --tombstones` writes it, which also deletes the key in what is derived from it"
            )
        days = int(configs.get("delete.retention.ms", _DAY_MS)) / _DAY_MS
        return (
            "compaction removes the records, for a later one has their key (tombstones themselves"
            f" after {days:g} days)"
        )
    retention_ms = int(configs.get("retention.ms", -1))
    ends = "no retention removes them"
    if "delete" in policy and retention_ms >= 0:
        at = datetime.fromtimestamp((seen.newest_ms + retention_ms) / 1000, UTC)
        ends = f"retention removes them some time after {at.isoformat(' ', 'minutes')[:16]} UTC"
    return (
        f"{ends}; DeleteRecords before offset {max(offsets) + 1} removes them now, with everything"
        " before them"
    )


def _write(
    bootstrap: str, login: ClientSettings, buried: Sequence[tuple[TopicPartition, bytes]]
) -> None:
    from confluent_kafka import KafkaException, Producer

    if not buried:
        return
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all"}
    producer = Producer({**properties_of(login), **settings})
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    try:
        for (topic, partition), key in buried:
            producer.produce(topic, key=key, value=None, partition=partition, on_delivery=delivered)
            producer.poll(0)
        left = producer.flush(_FLUSH_TIMEOUT_S)
    except (KafkaException, BufferError) as error:
        failures.append(str(error))
        left = 0
    if failures or left:
        raise BrokerUnreachable(
            "not all tombstones were written",
            detail=failures[0] if failures else f"{left} without an answer",
            hint="repeat the command",
        )
