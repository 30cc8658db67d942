"""The settings of a topic: Kafka's names, types and defaults, and what Headwater adds.

A setting that Kafka has and this broker gives no meaning to is accepted with Kafka's checks and
stored, so that tools which set it work; `effect` is False for those.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.errors import ConfigError
from headwater.log.settings import (
    BOOLEAN,
    DOUBLE,
    INT,
    INT32_MAX,
    LIST,
    LONG,
    STRING,
    Setting,
    boolean,
    number,
    one_of,
)
from headwater.protocol.records import INT64_MAX

WEEK_MS: Final = 7 * 24 * 3600 * 1000
SAME_AS_TOTAL: Final = -2


def _policies(text: str) -> frozenset[str]:
    return frozenset(one_of("delete", "compact")(part.strip()) for part in text.split(","))


def _names(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _any(text: str) -> str:
    return text


SETTINGS: Final[dict[str, Setting]] = {
    s.name: s
    for s in (
        Setting("cleanup.policy", LIST, "delete", _policies, "what happens to old records"),
        Setting("compression.type", STRING, "producer", one_of("producer", "none", "uncompressed", "gzip", "snappy", "lz4", "zstd"), "batches are stored as sent, whatever is set", effect=False),
        Setting("compression.gzip.level", INT, "-1", number(-1, 9), "batches are stored as sent", effect=False),
        Setting("compression.lz4.level", INT, "9", number(1, 17), "batches are stored as sent", effect=False),
        Setting("compression.zstd.level", INT, "3", number(-131072, 22), "batches are stored as sent", effect=False),
        Setting("delete.retention.ms", LONG, "86400000", number(0, INT64_MAX), "how long a tombstone is retained"),
        Setting("file.delete.delay.ms", LONG, "60000", number(0, INT64_MAX), "files are removed once no consumer reads them", effect=False),
        Setting("flush.messages", LONG, str(INT64_MAX), number(1, INT64_MAX), "see headwater.durability", effect=False),
        Setting("flush.ms", LONG, str(INT64_MAX), number(0, INT64_MAX), "see headwater.durability", effect=False),
        Setting("headwater.durability", STRING, "fsync", one_of("fsync", "os"), "what an acknowledgement means: on disk (fsync), or handed to the operating system (os)"),
        Setting("headwater.overload.bytes", LONG, "-1", number(-1, INT64_MAX), "bytes of a partition that headwater.overload.group may be behind"),
        Setting("headwater.overload.drop", STRING, "refuse", one_of("refuse", "discard"), "with policy drop: producers get an error (refuse), or an acknowledgement (discard)"),
        Setting("headwater.overload.group", STRING, "", _any, "the group whose lag headwater.overload.policy goes by"),
        Setting("headwater.overload.policy", STRING, "buffer", one_of("buffer", "backpressure", "drop"), "when that group is too far behind: records wait on disk (buffer), producers wait (backpressure), the newest records are not taken (drop)"),
        Setting("headwater.retention.wait.groups", LIST, "", _names, "groups that retention waits for: what they have not read is retained"),
        Setting("headwater.schema.validation", STRING, "none", one_of("none", "key", "value", "both"), "what of a record has to have the id of one of the topic's schemas in the registry (T-key, T-value)"),
        Setting("index.interval.bytes", INT, "4096", number(0, INT32_MAX), "bytes between two entries of an index"),
        Setting("local.retention.bytes", LONG, "-2", number(-2, INT64_MAX), "bytes retained on this machine once they are archived; -1: no bound, -2: as retention.bytes"),
        Setting("local.retention.ms", LONG, "-2", number(-2, INT64_MAX), "how long records stay on this machine once they are archived; -1: indefinitely, -2: as retention.ms"),
        Setting("max.compaction.lag.ms", LONG, str(INT64_MAX), number(1, INT64_MAX), "how long a record may stay uncompacted"),
        Setting("max.message.bytes", INT, "1048588", number(0, INT32_MAX), "the largest batch taken"),
        Setting("message.timestamp.after.max.ms", LONG, "3600000", number(0, INT64_MAX), "how far ahead of the broker's clock a timestamp may be"),
        Setting("message.timestamp.before.max.ms", LONG, str(INT64_MAX), number(0, INT64_MAX), "how far behind the broker's clock a timestamp may be"),
        Setting("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"), "whose clock stamps a record"),
        Setting("min.cleanable.dirty.ratio", DOUBLE, "0.5", number(0, 1, float), "when compaction begins"),
        Setting("min.compaction.lag.ms", LONG, "0", number(0, INT64_MAX), "how long a record stays uncompacted"),
        Setting("min.insync.replicas", INT, "1", number(1, INT32_MAX), "there is one replica", effect=False),
        Setting("preallocate", BOOLEAN, "false", boolean, "files grow as they are written", effect=False),
        Setting("retention.bytes", LONG, "-1", number(-1, INT64_MAX), "bytes retained per partition; -1: no bound"),
        Setting("retention.ms", LONG, str(WEEK_MS), number(-1, INT64_MAX), "how long records are retained; -1: indefinitely"),
        Setting("segment.bytes", INT, "1073741824", number(1024, INT32_MAX), "a segment is sealed at this size"),
        Setting("segment.index.bytes", INT, "10485760", number(4, INT32_MAX), "a segment is sealed when its index has this size"),
        Setting("segment.jitter.ms", LONG, "0", number(0, INT64_MAX), "accepted; segments are sealed without jitter", effect=False),
        Setting("segment.ms", LONG, str(WEEK_MS), number(1, INT64_MAX), "a segment is sealed at this age"),
        Setting("unclean.leader.election.enable", BOOLEAN, "false", boolean, "there is one replica", effect=False),
        Setting("follower.replication.throttled.replicas", LIST, "", _any, "there is one replica", effect=False),
        Setting("leader.replication.throttled.replicas", LIST, "", _any, "there is one replica", effect=False),
        Setting("remote.storage.enable", BOOLEAN, "false", boolean, "sealed segments are copied to the archive"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverloadPolicy:
    """What happens to producers when a group is too far behind (broker/admission/overload.py)."""

    policy: str  # backpressure or drop
    group: str
    limit_bytes: int  # of a partition that the group has not read yet
    drop: str  # refuse or discard


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings as the log uses them; the texts are in `overrides`."""

    overrides: Mapping[str, str]
    cleanup_policy: frozenset[str]
    delete_retention_ms: int
    fsync: bool
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    local_retention_bytes: int
    local_retention_ms: int
    log_append_time: bool
    overload: OverloadPolicy | None
    remote_storage: bool
    retention_bytes: int
    retention_ms: int
    retention_waits_for: frozenset[str]
    schema_validation: str  # none, key, value or both
    segment_bytes: int
    segment_index_bytes: int
    segment_ms: int


def topic_config(overrides: Mapping[str, str], defaults: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic: its own, then the broker's defaults, then Kafka's."""
    values = {name: parse_setting(name, text) for name, text in {**defaults, **overrides}.items()}

    def value(name: str) -> Any:
        return values[name] if name in values else SETTINGS[name].parse(SETTINGS[name].default)

    is_archived = _is_archived(overrides, value)
    return TopicConfig(
        overrides=dict(overrides),
        cleanup_policy=value("cleanup.policy"),
        delete_retention_ms=value("delete.retention.ms"),
        fsync=value("headwater.durability") == "fsync",
        index_interval_bytes=value("index.interval.bytes"),
        max_compaction_lag_ms=value("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=value("min.compaction.lag.ms"),
        max_message_bytes=value("max.message.bytes"),
        timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        local_retention_bytes=_local(value("local.retention.bytes"), value("retention.bytes")),
        local_retention_ms=_local(value("local.retention.ms"), value("retention.ms")),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        overload=_overload(value),
        remote_storage=is_archived,
        retention_bytes=value("retention.bytes"),
        retention_ms=value("retention.ms"),
        retention_waits_for=value("headwater.retention.wait.groups"),
        schema_validation=value("headwater.schema.validation"),
        segment_bytes=value("segment.bytes"),
        segment_index_bytes=value("segment.index.bytes"),
        segment_ms=value("segment.ms"),
    )


def _overload(value: Callable[[str], Any]) -> OverloadPolicy | None:
    policy, group = value("headwater.overload.policy"), value("headwater.overload.group")
    limit_bytes = value("headwater.overload.bytes")
    if policy == "buffer":
        return None
    if not group or limit_bytes < 0:
        raise ConfigError(
            f"headwater.overload.policy={policy} needs a group and a limit",
            detail="headwater.overload.group and headwater.overload.bytes",
        )
    return OverloadPolicy(policy, group, limit_bytes, value("headwater.overload.drop"))


def _is_archived(overrides: Mapping[str, str], value: Callable[[str], Any]) -> bool:
    """Whether the topic is archived. Raises ConfigError for what cannot go together, as Kafka."""
    if not value("remote.storage.enable"):
        return False
    if "compact" in value("cleanup.policy"):
        if "remote.storage.enable" not in overrides:
            return False  # only a default for topics that can
        raise ConfigError(
            "a compacted topic cannot be archived",
            detail="remote.storage.enable=true with cleanup.policy=compact",
        )
    for name in ("retention.ms", "retention.bytes"):
        local, total = value(f"local.{name}"), value(name)
        if local != SAME_AS_TOTAL and total >= 0 and not 0 <= local <= total:
            raise ConfigError(f"local.{name} must not exceed {name}", detail=f"{local}, {total}")
    return True


def _local(local: int, total: int) -> int:
    return total if local == SAME_AS_TOTAL else local


def parse_setting(name: str, text: str) -> Any:
    """The value of one setting. Raises ConfigError for an unknown name or a bad value."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise ConfigError("unknown topic setting", detail=name)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"invalid value for {name}", detail=f"{text!r}: {error}") from None
