"""The rows of a topic, read from its start to its end: which topics are tables, and what they hold.

The log has to have the last record of every key: it is compacted, or nothing is ever deleted from
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.client.cluster import Cluster
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.refusals import refused_topic
from headwater.client.topics import topic_configs
from headwater.gateway.answers import Refusal
from headwater.gateway.live.memory import Memory, too_large
from headwater.gateway.reading.schemas import Schemas
from headwater.gateway.tables.table_topics import (
    COMPACT,
    hint_for,
    incomplete,
    policies_of,
    require_complete,
    unordered_truncate,
)
from headwater.inspect.table_rows import Kind, Row, completed, step_of
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headwater.settings import ClientSettings
from headwater.web.login_access import PATIENCE_S

_COUNTED_BYTES: Final = 1 << 20  # how often the memory is asked
_TOMBSTONES_MS: Final = 86_400_000


@dataclass
class Loaded:
    """The rows of a topic at `offsets`; their bytes are counted in the memory already."""

    topic_id: str
    is_compacted: bool
    tombstones_s: float  # how long a tombstone is there at least
    offsets: dict[int, int]
    rows: dict[bytes, Row] = field(default_factory=dict)
    size_bytes: int = 0
    without_key: int = 0


def load(
    topic: str,
    partitions: int,
    schemas: Schemas,
    fetcher: Fetcher,
    login: ClientSettings,
    bootstrap: str,
    memory: Memory,
) -> Loaded:
    """Blocks. `login` reads the topic's settings. Raises Refusal if it is no table, or does not
    fit; DataLost and HeadwaterError.
    """
    cluster = Cluster(bootstrap, login, patience_s=PATIENCE_S)
    try:
        configs = topic_configs(cluster, topic)
        if not configs and cluster.find_partitions(topic) is None:  # it was deleted just now
            raise refused_topic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
        identity = _topic_id(cluster, topic)
    finally:
        cluster.close()
    is_compacted = _checked_policy(topic, configs)
    everything = [(topic, number) for number in range(partitions)]
    starts = fetcher.offsets(everything, EARLIEST)
    ends = fetcher.offsets(everything, LATEST)
    if not is_compacted and any(starts.values()):
        raise incomplete(topic)
    tombstones_ms = int(configs.get("delete.retention.ms", _TOMBSTONES_MS))
    loaded = Loaded(
        identity,
        is_compacted,
        tombstones_ms / 1000,
        {number: max(ends[at], starts[at]) for at in everything for number in (at[1],)},
    )
    try:
        for at in everything:
            _read(fetcher, at[0], at[1], starts[at], ends[at], loaded, schemas, memory)
    except BaseException:
        memory.change(-loaded.size_bytes)
        raise
    return loaded


def _read(
    fetcher: Fetcher, topic: str, partition: int, start: int, end: int, loaded: Loaded,
    schemas: Schemas, memory: Memory,
) -> None:  # fmt: skip
    rows = loaded.rows
    counted_bytes = 0  # not yet in the memory
    for record in fetcher.records(topic, partition, start, end):
        step = step_of(partition, record, *schemas)
        if step.kind is Kind.NO_ROW:
            loaded.without_key += 1
        elif step.kind is Kind.CLEAR:
            if len(loaded.offsets) > 1:
                raise unordered_truncate(topic)
            counted_bytes -= sum(row.size_bytes for row in rows.values())
            rows.clear()
        else:
            before = rows.pop(step.key, None)
            counted_bytes -= before.size_bytes if before is not None else 0
            if step.kind is Kind.PUT:
                row = Row(step.key, completed(step.json, before), partition, step.offset)
                rows[step.key] = row
                counted_bytes += row.size_bytes
        if abs(counted_bytes) > _COUNTED_BYTES:
            _count(topic, loaded, counted_bytes, memory)
            counted_bytes = 0
    _count(topic, loaded, counted_bytes, memory)


def _count(topic: str, loaded: Loaded, size_bytes: int, memory: Memory) -> None:
    loaded.size_bytes += size_bytes
    if not memory.change(size_bytes):
        raise too_large(topic, memory)


def _checked_policy(topic: str, configs: Mapping[str, str]) -> bool:
    """Whether it is compacted. Raises Refusal if it is no table."""
    if not configs:
        raise Refusal(403, f"the settings of topic {topic} cannot be read", hint=hint_for(topic))
    if policies_of(configs) == {COMPACT}:
        return True
    require_complete(topic, configs)
    return False


def _topic_id(cluster: Cluster, topic: str) -> str:
    """Of brokers that have none: zeros, and a topic that was created again is not recognised."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    patience = cluster.patience("the broker does not answer")
    answer = cluster.ask_any(request, MetadataResponse, patience, first=4, last=12)
    return next((found.topic_id.hex[:8] for found in answer.topics), "0" * 8)
