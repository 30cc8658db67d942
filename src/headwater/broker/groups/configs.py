"""The settings of groups: Kafka's names and checks, and what Headwater adds for share groups.

They are set group by group (IncrementalAlterConfigs, resource type 32) and stored in the catalog. A
group need not exist to have settings, and they outlive its deletion, as in Kafka. A group's
own setting comes first, then the broker's default, then Kafka's.

Kafka bounds some settings once more by broker settings (`group.share.min.record.lock.duration.ms`
and the like); here the bounds are the widest to which those can be set.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headwater.errors import ConfigError
from headwater.log.config import WEEK_MS
from headwater.log.settings import (
    BOOLEAN,
    INT,
    INT32_MAX,
    LONG,
    STRING,
    Setting,
    boolean,
    number,
    one_of,
)
from headwater.log.store import LogStore
from headwater.protocol.records import INT64_MAX

DOCUMENTS: Final = "group"  # the kind of these documents in the catalog
_DAY_MS: Final = 86_400_000
# ISO 8601 as Java's Duration reads it; the sign is left out because none may be negative.
_DURATION: Final = re.compile(
    r"P(?!$)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where a share partition begins that has no state yet."""

    kind: str  # earliest, latest or by_duration
    duration_ms: int = 0  # by_duration: how far back from now


def _offset_reset(text: str) -> OffsetReset:
    kind, colon, duration = text.partition(":")
    if kind in ("earliest", "latest") and not colon:
        return OffsetReset(kind)
    match = _DURATION.fullmatch(duration) if kind == "by_duration" else None
    if match is None:
        raise ValueError("not earliest, latest or by_duration:PnDTnHnMn.nS")
    days, hours, minutes, seconds = (float(number or 0) for number in match.groups())
    duration_ms = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
    if duration_ms > INT64_MAX:
        raise ValueError("too long")
    return OffsetReset(kind, duration_ms)


SETTINGS: Final[dict[str, Setting]] = {
    s.name: s
    for s in (
        Setting("consumer.heartbeat.interval.ms", INT, "5000", number(1, INT32_MAX), "how often a member of a consumer group reports"),
        Setting("consumer.session.timeout.ms", INT, "45000", number(1, INT32_MAX), "when a silent member of a consumer group is removed"),
        Setting("share.auto.offset.reset", STRING, "latest", _offset_reset, "where a partition begins that the group has not read yet: earliest, latest or by_duration:PnDTnHnMn.nS"),
        Setting("share.delivery.count.limit", INT, "5", number(2, 25), "how often a record is delivered before it is given up"),
        Setting("share.heartbeat.interval.ms", INT, "5000", number(1, INT32_MAX), "how often a member of a share group reports"),
        Setting("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"), "whether records of open and aborted transactions are delivered"),
        Setting("share.partition.max.record.locks", INT, "2000", number(100, 10_000), "records of one partition that may be with consumers at a time"),
        Setting("share.record.lock.duration.ms", INT, "30000", number(1_000, 3_600_000), "how long a record stays with a consumer that says nothing about it"),
        Setting("share.renew.acknowledge.enable", BOOLEAN, "true", boolean, "whether a consumer may ask for more time with a record"),
        Setting("share.session.timeout.ms", INT, "45000", number(1, INT32_MAX), "when a silent member of a share group is removed"),
        Setting("headwater.share.backoff.ms", INT, "0", number(0, _DAY_MS), "how long a released record waits for its next delivery; doubles with every delivery"),
        Setting("headwater.share.backoff.max.ms", INT, "60000", number(0, _DAY_MS), "the longest such wait"),
        Setting("headwater.share.dlq.enable", BOOLEAN, "true", boolean, "whether a record that is given up or rejected is stored in the topic's dead letters (<topic>.dlq)"),
        Setting("headwater.share.expire.ms", LONG, str(WEEK_MS), number(1_000, INT64_MAX), "a group without members for this long is deleted"),
        Setting("headwater.share.order", STRING, "none", one_of("none", "key"), "key: records of one key are delivered one after the other"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """What holds for the members of one KIP-848 group."""

    heartbeat_interval_ms: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ShareGroupSettings:
    """What holds for one share group and the records delivered to it."""

    record_lock_duration_ms: int
    auto_offset_reset: OffsetReset
    isolation_level: str  # read_committed or read_uncommitted
    delivery_count_limit: int
    partition_max_record_locks: int
    renew_acknowledge_enable: bool
    dead_letters: bool
    backoff_ms: int
    backoff_max_ms: int
    order: str  # none or key
    heartbeat_interval_ms: int
    session_timeout_ms: int
    expire_ms: int


class GroupConfigs:
    """The settings of all groups; cheap to read, because those that are set are cached in parsed form."""

    def __init__(self, store: LogStore, defaults: Mapping[str, str] | None = None) -> None:
        self._store = store
        self.defaults = dict(defaults or {})
        check(self.defaults, {})
        self._parsed: dict[str, tuple[Mapping[str, str], _Parsed]] = {}
        self._unset = _Parsed({}, self.defaults)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What is set for the group itself."""
        document: Mapping[str, str] = self._documents().get(group_id, {})
        return document

    def group_ids(self) -> list[str]:
        """The groups that have settings of their own."""
        return list(self._documents())

    def consumer(self, group_id: str) -> ConsumerGroupSettings:
        return self._settings(group_id).consumer

    def share(self, group_id: str) -> ShareGroupSettings:
        return self._settings(group_id).share

    async def set(self, group_id: str, configs: dict[str, str]) -> None:
        """Replaces the group's own settings; durable and in force when it returns.

        Raises ConfigError for a wrong one, and nothing changes.
        """
        check(configs, self.defaults)
        await self._store.put_documents(DOCUMENTS, {group_id: configs or None})
        self._parsed.pop(group_id, None)

    def _documents(self) -> Mapping[str, Any]:
        return self._store.catalog.documents.get(DOCUMENTS, {})

    def _settings(self, group_id: str) -> "_Parsed":
        document = self._documents().get(group_id)
        if document is None:
            return self._unset
        cached = self._parsed.get(group_id)
        if cached is None or cached[0] is not document:  # a change makes a new document
            cached = self._parsed[group_id] = (document, _Parsed(document, self.defaults))
        return cached[1]


class _Parsed:
    def __init__(self, configs: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        value = _reader(configs, defaults)
        self.consumer = ConsumerGroupSettings(
            heartbeat_interval_ms=value("consumer.heartbeat.interval.ms"),
            session_timeout_ms=value("consumer.session.timeout.ms"),
        )
        self.share = ShareGroupSettings(
            record_lock_duration_ms=value("share.record.lock.duration.ms"),
            auto_offset_reset=value("share.auto.offset.reset"),
            isolation_level=value("share.isolation.level"),
            delivery_count_limit=value("share.delivery.count.limit"),
            partition_max_record_locks=value("share.partition.max.record.locks"),
            renew_acknowledge_enable=value("share.renew.acknowledge.enable"),
            dead_letters=value("headwater.share.dlq.enable"),
            backoff_ms=value("headwater.share.backoff.ms"),
            backoff_max_ms=value("headwater.share.backoff.max.ms"),
            order=value("headwater.share.order"),
            heartbeat_interval_ms=value("share.heartbeat.interval.ms"),
            session_timeout_ms=value("share.session.timeout.ms"),
            expire_ms=value("headwater.share.expire.ms"),
        )


def check(configs: Mapping[str, str], defaults: Mapping[str, str]) -> None:
    """Raises ConfigError for an unknown name, a bad value, or values that exclude each other."""
    value = _reader(configs, defaults)
    for name in configs:
        value(name)
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if value(session) <= value(heartbeat):
            raise ConfigError(
                f"{session} must be greater than {heartbeat}",
                detail=f"{value(session)}, {value(heartbeat)}",
            )


def _reader(configs: Mapping[str, str], defaults: Mapping[str, str]) -> Callable[[str], Any]:
    def value(name: str) -> Any:
        setting = SETTINGS.get(name)
        if setting is None:
            raise ConfigError("unknown group setting", detail=name)
        text = configs.get(name, defaults.get(name, setting.default))
        try:
            return setting.parse(text)
        except ValueError as error:
            raise ConfigError(f"invalid value for {name}", detail=f"{text!r}: {error}") from None

    return value
