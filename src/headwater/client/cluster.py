"""The brokers of a cluster: leaders, coordinators, and requests that are retried.

All retries go by a `Patience`: exponential backoff with a deadline.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from headwater.client.connection import Connection
from headwater.client.login import properties_of
from headwater.client.refusals import (
    error_name,
    reason_of,
    refused_group,
    refused_id,
    refused_topic,
)
from headwater.errors import (
    BrokerUnreachable,
    MalformedMessage,
)
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headwater.protocol.schema import Message
from headwater.settings import ClientSettings, join_address

_Response = TypeVar("_Response", bound=Message)

DEFAULT_PATIENCE_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 1.0
_UNKNOWN_TOPIC_PATIENCE_S: Final = 3.0  # a broker of a cluster may learn of a new topic late
GROUP, TRANSACTION = 0, 1  # what a coordinator is for

# What ends a connection without a response. Malformed: what answers at that address now is not the
# broker that we have talked to.
LOST: Final = (OSError, MalformedMessage)

RETRIABLE: Final = frozenset(
    {
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CORRUPT_MESSAGE,  # by the network: the batch itself has the right CRC
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,  # a new leader does not have its end yet
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_ELSEWHERE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Patience:
    """How long to go on trying: until nothing has got better for `limit_s`."""

    def __init__(self, what: str, limit_s: float = DEFAULT_PATIENCE_S) -> None:
        self._what = what
        self._limit_s = limit_s
        self.progressed()

    def progressed(self) -> None:
        """Something was achieved: all of the time is there again, and pauses are short."""
        self._ends_s = time.monotonic() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, reason: str) -> None:
        """Before the next attempt. Raises BrokerUnreachable when there shall be none."""
        if time.monotonic() + self._pause_s > self._ends_s:
            raise BrokerUnreachable(
                self._what,
                detail=f"{reason} (for {self._limit_s:g} s)",
                hint="`headwater status` shows whether the broker runs",
            )
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


class Cluster:
    """Connections to the brokers of a cluster; one for each, made when it is needed.

    To be used by one thread. A lost connection is made again by the next request.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.patience_s = patience_s
        self._bootstrap = bootstrap
        self._properties = properties_of(login)
        self._timeout_s = min(timeout_s, patience_s)
        self._addresses: dict[int, str] = {}  # of a broker, by its id
        self._leaders: dict[str, list[int]] = {}  # of a topic's partitions; -1: none
        # Address, by what it is for, and the group or transactional id.
        self._coordinators: dict[tuple[int, str], str] = {}
        self._connections: dict[str, Connection] = {}
        self._borrowed: set[Connection] = set()
        self._is_closed = False

    def close(self) -> None:
        """For good. A thread that still waits for a broker is not left waiting, nor connected."""
        self._is_closed = True
        for connection in [*self._connections.values(), *self._borrowed]:
            connection.close()
        self._connections.clear()
        self._borrowed.clear()

    def patience(self, what: str) -> Patience:
        return Patience(what, self.patience_s)

    # Connections

    def connection(self, address: str) -> Connection:
        """Raises what LOST has, and RequestRefused if the login fails."""
        if self._is_closed:
            raise BrokerUnreachable("the connections to the broker have been closed")
        found = self._connections.get(address)
        if found is None:
            try:
                found = Connection(address, self._properties, self._timeout_s)
            except ValueError as error:  # an address that is none, as a broker may advertise
                raise MalformedMessage(f"no address: {address}") from error
            self._connections[address] = found
            if self._is_closed:
                self.lose(found)
                return self.connection(address)
        return found

    def new_connection(self, address: str) -> Connection:
        """One that belongs to the caller alone, from any thread. Raises as `connection` does."""
        try:
            return Connection(address, self._properties, self._timeout_s)
        except ValueError as error:
            raise MalformedMessage(f"no address: {address}") from error

    def lose(self, connection: Connection) -> None:
        """It is closed; the next request gets another one."""
        connection.close()
        self._borrowed.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    def borrow(self, address: str) -> Connection:
        """For one borrower alone, which may have requests in flight while others ask here too.
        It is given back without any, or lost. Raises as `connection` does.
        """
        connection = self.connection(address)
        self._borrowed.add(self._connections.pop(address))
        return connection

    def give_back(self, connection: Connection) -> None:
        self._borrowed.discard(connection)
        if self._is_closed or connection.address in self._connections:
            connection.close()
        else:
            self._connections[connection.address] = connection

    def ask_any(
        self,
        request: Message,
        response: type[_Response],
        patience: Patience,
        *,
        first: int,
        last: int,
    ) -> _Response:
        """The answer of whichever broker answers."""
        while True:
            reason = ""
            candidates = [
                *self._connections,
                *self._addresses.values(),
                *self._bootstrap.split(","),
            ]
            for address in dict.fromkeys(candidates):
                connection = None
                try:
                    connection = self.connection(address)
                    return connection.ask(request, response, first=first, last=last)
                except LOST as error:
                    reason = f"{address}: {reason_of(error)}"
                    if connection is not None:
                        self.lose(connection)
            patience.wait(reason)

    # Topics

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; RequestRefused if it does not exist."""
        if topic not in self._leaders:
            self.refresh([topic])
        return len(self._leaders[topic])

    def find_partitions(self, topic: str) -> int | None:
        """The same, None if the topic does not exist."""
        found = self._look([topic], self.patience(f"no metadata from {self._bootstrap}"))
        return len(self._leaders[topic]) if found.get(topic) is None else None

    def find_all_partitions(self, topics: list[str]) -> dict[str, int]:
        """How many partitions each of those has that exist, by one request."""
        missing = self._look(topics, self.patience(f"no metadata from {self._bootstrap}"))
        return {topic: len(self._leaders[topic]) for topic in topics if topic not in missing}

    def topics(self) -> list[str]:
        """The names of all that we may see."""
        patience = self.patience(f"no metadata from {self._bootstrap}")
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = self.ask_any(request, MetadataResponse, patience, first=4, last=12)
        return sorted(topic.name for topic in answer.topics if topic.name and not topic.error_code)

    def brokers(self) -> list[str]:
        """The addresses of all, by new metadata."""
        self._look([], self.patience(f"no metadata from {self._bootstrap}"))
        return sorted(self._addresses.values())

    def leader(self, topic: str, partition: int) -> str | None:
        """The address of its leader; None: there is none, or the metadata does not have it."""
        leaders = self._leaders.get(topic, ())
        node_id = leaders[partition] if partition < len(leaders) else -1
        return self._addresses.get(node_id)

    def refresh(self, topics: Iterable[str]) -> None:
        """Requests the leaders of these topics' partitions again."""
        topics = list(topics)
        patience = self.patience(f"no metadata from {self._bootstrap}")
        until_s = time.monotonic() + _UNKNOWN_TOPIC_PATIENCE_S
        while missing := self._look(topics, patience):
            if time.monotonic() > until_s:
                topic, code = next(iter(missing.items()))
                raise refused_topic(code, topic)
            patience.wait("UNKNOWN_TOPIC_OR_PARTITION")

    def _look(self, topics: list[str], patience: Patience) -> dict[str, int]:
        """Those of the topics that do not exist. Others without metadata are refused."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics],
            allow_auto_topic_creation=False,
        )
        answer = self.ask_any(request, MetadataResponse, patience, first=4, last=12)
        self._addresses = {
            broker.node_id: join_address(broker.host, broker.port) for broker in answer.brokers
        }
        missing = {}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code in RETRIABLE:
                self._leaders.pop(name, None)
                missing[name] = topic.error_code
            elif topic.error_code:
                raise refused_topic(topic.error_code, name)
            else:
                leaders = {
                    partition.partition_index: partition.leader_id for partition in topic.partitions
                }
                self._leaders[name] = [leaders.get(index, -1) for index in range(len(leaders))]
        return missing

    def ask_leader(
        self,
        topic: str,
        partition: int,
        request: Message,
        response: type[_Response],
        patience: Patience,
        *,
        first: int,
        last: int,
        code_of: Callable[[Any], int],
    ) -> _Response:
        """The answer of the partition's leader, if it is none of those that ask for patience."""
        while True:
            connection = None
            try:
                address = self.leader(topic, partition)
                if address is None:
                    reason = f"{topic}-{partition} has no leader"
                else:
                    connection = self.connection(address)
                    answer = connection.ask(request, response, first=first, last=last)
                    code = code_of(answer)
                    if code not in RETRIABLE:
                        return answer
                    reason = f"{topic}-{partition}: {error_name(code)}"
            except LOST as error:
                reason = reason_of(error)
                if connection is not None:
                    self.lose(connection)
            patience.wait(reason)
            self.refresh([topic])

    # Coordinators

    def coordinator(self, name: str, patience: Patience, *, kind: int = TRANSACTION) -> Connection:
        """Of the transactional id, or group, of that name. Raises what LOST has."""
        while (kind, name) not in self._coordinators:
            request = FindCoordinatorRequest(key=name, key_type=kind)
            answer = self.ask_any(request, FindCoordinatorResponse, patience, first=1, last=3)
            if answer.error_code in RETRIABLE:
                patience.wait(error_name(answer.error_code))
            elif answer.error_code:
                refused = refused_id if kind == TRANSACTION else refused_group
                raise refused(answer.error_code, name, answer.error_message)
            else:
                self._coordinators[kind, name] = join_address(answer.host, answer.port)
        return self.connection(self._coordinators[kind, name])

    def has_feature(self, transactional_id: str, feature: str, level: int) -> bool:
        """Whether the coordinator says that all of the cluster has the feature."""
        patience = self.patience(f"no coordinator for {transactional_id}")
        while True:
            connection = None
            try:
                connection = self.coordinator(transactional_id, patience)
                return connection.feature(feature) >= level
            except LOST as error:
                self._lose_coordinator(TRANSACTION, transactional_id, connection)
                patience.wait(reason_of(error))

    def ask_coordinator(
        self,
        name: str,
        request: Message,
        response: type[_Response],
        patience: Patience,
        *,
        first: int,
        last: int,
        code_of: Callable[[Any], int] = lambda answer: answer.error_code,
        kind: int = TRANSACTION,
    ) -> _Response:
        """The coordinator's answer, if it is none of those that ask for patience. The request may
        reach the coordinator several times.
        """
        while True:
            connection = None
            try:
                connection = self.coordinator(name, patience, kind=kind)
                answer = connection.ask(request, response, first=first, last=last)
            except LOST as error:
                self._lose_coordinator(kind, name, connection)
                patience.wait(reason_of(error))
                continue
            code = code_of(answer)
            if code not in RETRIABLE:
                return answer
            if code in _ELSEWHERE:
                self._coordinators.pop((kind, name), None)
            patience.wait(error_name(code))

    def _lose_coordinator(self, kind: int, name: str, connection: Connection | None) -> None:
        self._coordinators.pop((kind, name), None)
        if connection is not None:
            self.lose(connection)
