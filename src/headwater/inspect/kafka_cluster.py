"""The broker or cluster that a command talks to, ours or Apache Kafka, through librdkafka."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as kafka_admin

from headwater.errors import BrokerUnreachable, HeadwaterError, RequestRefused, UsageError
from headwater.protocol.error_codes import ErrorCode
from headwater.spelling import nearest

REQUEST_TIMEOUT_S: Final = 15.0
_CONNECT_TIMEOUT_S: Final = 5.0
_METADATA_TIMEOUT_S: Final = 10.0

_NO_RIGHT: Final = "a user who may change ACLs can grant it: `headwater acl add`, docs/security.md"
_HINTS: Final = {
    "TOPIC_ALREADY_EXISTS": "--if-not-exists makes that no error",
    "INVALID_REPLICATION_FACTOR": "a cluster of one broker stores one replica: --replicas 1",
    "NON_EMPTY_GROUP": "stop its members first; `headwater group describe` lists them",
    "GROUP_ID_NOT_FOUND": "`headwater group list` shows the groups",
    "UNKNOWN_TOPIC_OR_PART": "`headwater topic list` shows the topics",
    "INVALID_CONFIG": "`headwater topic describe TOPIC --all` lists the configs of a topic",
    "INVALID_MSG": "it is damaged on disk: restore that file, or read on behind it with -o OFFSET",
    "_BAD_MSG": "it is damaged on disk: restore that file, or read on behind it with -o OFFSET",
    "INVALID_RECORD": "does the topic compact? Then every record needs a key (-k, --key-separator);"
    " with headwater.schema.validation it needs the id of a schema",
    "POLICY_VIOLATION": "the topic's headwater.overload.policy drops what its group cannot keep up"
    " with; `headwater topic describe` shows it",
    "MSG_SIZE_TOO_LARGE": "`headwater topic alter TOPIC -c max.message.bytes=SIZE` allows more",
    "TOPIC_AUTHORIZATION_FAILED": _NO_RIGHT,
    "GROUP_AUTHORIZATION_FAILED": _NO_RIGHT,
    "CLUSTER_AUTHORIZATION_FAILED": _NO_RIGHT,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _NO_RIGHT,
    "SECURITY_DISABLED": 'the broker needs authentication = "sasl" or "tls": docs/security.md',
    "_UNKNOWN_PARTITION": "`headwater topic describe TOPIC` lists the partitions",
    "_MSG_TIMED_OUT": "is the broker there, and its disk not full? `headwater status` shows it",
}


# confluent_kafka's annotations leave these half typed.
OffsetSpec: Final[Any] = vars(kafka_admin)["OffsetSpec"]


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"


def refused(error: Any, what: str) -> HeadwaterError:
    """A KafkaException or KafkaError in this project's words: what failed, and why."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    name = cause.name()
    detail = f"{cause.str()} ({name.lstrip('_')})"
    if name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"):
        return BrokerUnreachable(
            what,
            detail=detail,
            hint="`headwater status` shows more; if the broker wants TLS or a login, set [client]",
        )
    return RequestRefused(what, detail=detail, hint=_HINTS.get(name, ""))


def refused_with(code: int, message: str | None, what: str) -> RequestRefused:
    """As `refused`, for an answer that came over a socket of our own (`broker_request`)."""
    name = ErrorCode(code).name
    return RequestRefused(
        what, detail=f"{message or 'refused'} ({name})", hint=_HINTS.get(name, "")
    )


class KafkaCluster:
    """Clients for one bootstrap address. They are made on first use; all share the properties."""

    def __init__(
        self, bootstrap: str, properties: Mapping[str, str] | None = None, *, verbose: bool = False
    ) -> None:
        self.bootstrap = bootstrap
        self.properties: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "headwater",
            "log_level": 6 if verbose else 0,
            "error_cb": self._remember,
            **(properties or {}),
        }
        self.last_error = ""
        self.is_lost = False  # no broker of the cluster could be reached, since it was last asked

    def require_listener(self) -> None:
        """Raises BrokerUnreachable unless one of the addresses accepts a connection, and
        RequestRefused if it does not accept the login: librdkafka would go on trying.
        """
        from headwater.client import broker_request

        failures = []
        for address in self.bootstrap.split(","):
            try:
                broker_request.try_login(address, self.properties, _CONNECT_TIMEOUT_S)
                return
            except OSError as error:
                reason = error.strerror.lower() if error.strerror else str(error)
                failures.append(f"{address}: {reason}")
        raise BrokerUnreachable(
            f"no broker answers at {self.bootstrap}",
            detail="\n".join(failures),
            hint="start one with `headwater broker`, or name another with --bootstrap HOST:PORT",
        )

    @cached_property
    def admin(self) -> Any:
        return self._made(kafka_admin.AdminClient, {})

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        producer: Producer = self._made(Producer, properties)
        return producer

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        consumer: Consumer = self._made(Consumer, properties)
        return consumer

    def _made(self, kind: Any, properties: Mapping[str, Any]) -> Any:
        # -X wins over what the command sets.
        try:
            return kind({**properties, **self.properties})
        except KafkaException as error:
            raise UsageError(
                "librdkafka refuses a property",
                detail=error.args[0].str(),
                hint="-X KEY=VALUE takes the properties of librdkafka's CONFIGURATION.md",
            ) from error

    def metadata(self) -> Any:
        """Brokers and all topics. Asks for no topic by name, so it creates none."""
        try:
            return self.admin.list_topics(timeout=_METADATA_TIMEOUT_S)
        except KafkaException as error:
            failure = refused(error, f"no metadata from {self.bootstrap}")
            failure.detail = self.last_error or failure.detail
            raise failure from error

    def topics(self) -> dict[str, Any]:
        """Topic name to its metadata."""
        topics: dict[str, Any] = self.metadata().topics
        return topics

    def existing(self, names: Iterable[str]) -> dict[str, Any]:
        """The metadata of the topics named; the first that does not exist is an error."""
        topics = self.topics()
        for name in names:
            if name not in topics:
                meant = nearest(name, list(topics))
                raise RequestRefused(
                    f"there is no topic {name}",
                    hint=f"did you mean {meant}?"
                    if meant
                    else f"`headwater topic create {name}` creates it; `headwater topic list` shows"
                    " those that exist",
                )
        return {name: topics[name] for name in names}

    def offsets(
        self, partitions: Iterable[Partition], spec: Any, *, committed_only: bool = False
    ) -> dict[Partition, int]:
        """One offset of each partition: OffsetSpec.earliest(), latest() or for_timestamp(ms).

        A partition without a leader at the moment is left out. -1: none so late.
        """
        wanted = {
            TopicPartition(partition.topic, partition.number): spec for partition in partitions
        }
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        answers = self.admin.list_offsets(
            wanted, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S
        )
        found = {}
        for answer, future in answers.items():
            try:
                found[Partition(answer.topic, answer.partition)] = future.result().offset
            except KafkaException:
                continue
        return found

    def bounds(
        self, partitions: Iterable[Partition], *, committed_only: bool = False
    ) -> dict[Partition, tuple[int, int]]:
        """(log start offset, high watermark or last stable offset) of each partition."""
        wanted = list(partitions)
        first = self.offsets(wanted, OffsetSpec.earliest())
        last = self.offsets(wanted, OffsetSpec.latest(), committed_only=committed_only)
        return {
            partition: (first[partition], last[partition])
            for partition in wanted
            if partition in first and partition in last
        }

    def sizes_bytes(self, brokers: Iterable[str]) -> dict[Partition, int]:
        """Bytes on disk of each partition's first replica; empty if brokers do not report them."""
        from headwater.client import broker_request

        sizes: dict[Partition, int] = {}
        for address in brokers:
            try:
                directories = broker_request.log_dirs(address, self.properties).results
            except HeadwaterError:
                continue
            for directory in directories:
                for topic in directory.topics:
                    for replica in topic.partitions:
                        partition = Partition(topic.name, replica.partition_index)
                        sizes.setdefault(partition, replica.partition_size)
        return sizes

    def _remember(self, error: Any) -> None:
        self.last_error = error.str()
        if error.name() == "_ALL_BROKERS_DOWN":
            self.is_lost = True


def address_of(broker: Any) -> str:
    """HOST:PORT of a broker in metadata, with an IPv6 host in brackets."""
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"


def settled(futures: Mapping[Any, Any], what: str) -> dict[Any, Any]:
    """The results of an admin call. The first that failed is raised as "cannot <what> <name>"."""
    results = {}
    for name, future in futures.items():
        try:
            results[name] = future.result(REQUEST_TIMEOUT_S * 2)
        except KafkaException as error:
            raise refused(error, f"cannot {what} {name}") from error
    return results


def all_partitions(topics: Mapping[str, Any]) -> list[Partition]:
    """Every partition of the topics, in order."""
    return [
        Partition(name, number)
        for name, topic in sorted(topics.items())
        for number in sorted(topic.partitions)
    ]
