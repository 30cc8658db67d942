"""Configs as clients describe them: entries with their value and where it comes from.

A topic's or group's own setting comes first, then the broker's default from headwater.toml, then
Kafka's. The broker's defaults carry Kafka's names for them (`log.retention.ms` for `retention.ms`,
`group.share.session.timeout.ms` for `share.session.timeout.ms`).
Nothing is stored here; the values are those the log and the groups work with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headwater.broker.api.registry import RequestContext
from headwater.broker.broker import OFFSETS_PARTITIONS, Broker, BrokerOptions
from headwater.broker.groups import configs as group_configs
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.log.config import SETTINGS
from headwater.log.settings import BOOLEAN, INT, LIST, Setting

# Kafka's numbers for kinds of resources …
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
# … and for where a value comes from.
DYNAMIC_TOPIC_CONFIG: Final = 1
STATIC_BROKER_CONFIG: Final = 4
DEFAULT_CONFIG: Final = 5
DYNAMIC_GROUP_CONFIG: Final = 8

_OWN_NAME = {"unclean.leader.election.enable", "min.insync.replicas", "compression.type"}
_OTHER_NAME = {
    "max.message.bytes": "message.max.bytes",
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
}
_NO_BROKER_DEFAULT = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "remote.storage.enable",
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """A name under which an entry's value was, or could have been, set."""

    name: str
    value: str
    source: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource. `kind` is Kafka's ConfigType number."""

    name: str
    value: str
    source: int
    kind: int
    doc: str
    read_only: bool = False
    synonyms: tuple[Synonym, ...] = ()


def require(
    broker: Broker, context: RequestContext, operation: Operation, kind: int, name: str
) -> None:
    """Raises the error code unless the client may do it with the settings of the resource."""
    if kind == TOPIC:
        broker.authorizer.require(context, operation, ResourceType.TOPIC, name)
    elif kind == GROUP:
        broker.authorizer.require(context, operation, ResourceType.GROUP, name)
    else:
        broker.authorizer.require(context, operation, ResourceType.CLUSTER)


def broker_name(setting: str) -> str | None:
    """What Kafka calls the broker's default for a topic setting; None if there is none."""
    if setting in _NO_BROKER_DEFAULT:
        return None
    if setting in _OWN_NAME or setting.startswith("headwater."):
        return setting
    return _OTHER_NAME.get(setting, f"log.{setting}")


def topic_entries(broker: Broker, configs: Mapping[str, str]) -> Iterator[Entry]:
    """Every topic setting, for a topic whose own ones are `configs`; sorted by name."""
    for setting in _SORTED_SETTINGS:
        synonyms = list(_default_synonyms(broker, setting))
        if setting.name in configs:
            own = Synonym(setting.name, configs[setting.name], DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, own)
        if synonyms:
            value, source = synonyms[0].value, synonyms[0].source
        else:
            value, source = setting.default, DEFAULT_CONFIG
        yield Entry(
            setting.name, value, source, setting.kind, setting.doc, synonyms=tuple(synonyms)
        )


def broker_entries(broker: Broker) -> Iterator[Entry]:
    """The broker's own settings and its defaults for topics; all of them read-only."""
    options, standard = broker.options, BrokerOptions()
    groups = broker.groups.settings
    host, port = broker.advertised

    def entry(name: str, value: object, kind: int, doc: str, *, is_set: bool = False) -> Entry:
        source = STATIC_BROKER_CONFIG if is_set else DEFAULT_CONFIG
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return Entry(name, text, source, kind, doc, True, (Synonym(name, text, source),))

    yield entry("node.id", broker.node_id, INT, "the number of this broker", is_set=True)
    yield entry("broker.id", broker.node_id, INT, "the number of this broker", is_set=True)
    yield entry("log.dirs", broker.store.path, LIST, "the data directory", is_set=True)
    yield entry(
        "advertised.listeners",
        f"PLAINTEXT://{host}:{port}",
        LIST,
        "the address that clients connect to",
        is_set=True,
    )
    yield entry(
        "auto.create.topics.enable",
        options.auto_create_topics,
        BOOLEAN,
        "whether a topic is made when a client asks for it",
        is_set=options.auto_create_topics != standard.auto_create_topics,
    )
    yield entry(
        "num.partitions",
        options.default_partitions,
        INT,
        "partitions of a topic that does not say how many",
        is_set=options.default_partitions != standard.default_partitions,
    )
    yield entry(
        "producer.id.expiration.ms",
        options.producer_id_expiration_ms,
        INT,
        "how long the state of a producer that sends nothing is retained",
        is_set=options.producer_id_expiration_ms != standard.producer_id_expiration_ms,
    )
    yield entry("default.replication.factor", 1, INT, "there is one replica")
    yield entry("delete.topic.enable", True, BOOLEAN, "topics can be deleted")
    yield entry(
        "offsets.topic.num.partitions",
        OFFSETS_PARTITIONS,
        INT,
        "partitions of the topic that stores groups",
    )
    yield entry("offsets.topic.replication.factor", 1, INT, "there is one replica")
    yield entry(
        "offsets.retention.minutes",
        groups.offsets_retention_ms // 60_000,
        INT,
        "how long the offsets of an empty group are retained",
    )
    yield entry(
        "transaction.max.timeout.ms",
        options.transactions.max_timeout_ms,
        INT,
        "the longest timeout that a transactional producer may ask for",
        is_set=options.transactions.max_timeout_ms != standard.transactions.max_timeout_ms,
    )
    yield entry(
        "transactional.id.expiration.ms",
        options.transactions.id_expiration_ms,
        INT,
        "how long an unused transactional id is retained",
        is_set=options.transactions.id_expiration_ms != standard.transactions.id_expiration_ms,
    )
    yield entry(
        "offset.metadata.max.bytes",
        groups.offset_metadata_max_chars,
        INT,
        "the longest metadata stored with an offset",
    )
    yield entry(
        "group.min.session.timeout.ms",
        groups.min_session_timeout_ms,
        INT,
        "the shortest session a member may ask for",
    )
    yield entry(
        "group.max.session.timeout.ms",
        groups.max_session_timeout_ms,
        INT,
        "the longest session a member may ask for",
    )
    yield entry(
        "group.initial.rebalance.delay.ms",
        groups.initial_rebalance_delay_ms,
        INT,
        "how long a new group waits for more members",
    )
    for setting in _SORTED_SETTINGS:
        synonyms = tuple(_default_synonyms(broker, setting))
        if synonyms:
            name, value, source = synonyms[0].name, synonyms[0].value, synonyms[0].source
            yield Entry(name, value, source, setting.kind, setting.doc, True, synonyms)


def group_entries(broker: Broker, group_id: str) -> Iterator[Entry]:
    """Every group setting, for a group that may have set some itself; sorted by name."""
    groups = broker.group_configs
    own = groups.overrides(group_id)
    for name, setting in sorted(group_configs.SETTINGS.items()):
        broker_wide = name if name.startswith("headwater.") else f"group.{name}"
        synonyms = [Synonym(broker_wide, setting.default, DEFAULT_CONFIG)]
        if name in groups.defaults:
            synonyms.insert(0, Synonym(broker_wide, groups.defaults[name], STATIC_BROKER_CONFIG))
        if name in own:
            synonyms.insert(0, Synonym(name, own[name], DYNAMIC_GROUP_CONFIG))
        first = synonyms[0]
        yield Entry(
            name, first.value, first.source, setting.kind, setting.doc, synonyms=tuple(synonyms)
        )


def _default_synonyms(broker: Broker, setting: Setting) -> Iterator[Synonym]:
    """The broker's default for a topic setting: as headwater.toml has it, then as Kafka has it."""
    name = broker_name(setting.name)
    if name is not None:
        if setting.name in broker.store.topic_defaults:
            value = broker.store.topic_defaults[setting.name]
            yield Synonym(name, value, STATIC_BROKER_CONFIG)
        yield Synonym(name, setting.default, DEFAULT_CONFIG)


_SORTED_SETTINGS = sorted(SETTINGS.values(), key=lambda setting: setting.name)
