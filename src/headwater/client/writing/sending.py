"""In-flight batches to the leaders of their partitions: each is stored once, in its order.

A leader has up to five requests in flight (as many batches of a producer as a partition tracks, so
that a retry is recognised as one). If anything goes wrong, nothing new is sent until all responses
are there or their connections lost; then what was not acknowledged is sent again, with the same
bytes and sequences.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.client.cluster import LOST, RETRIABLE, Cluster
from headwater.client.connection import Connection
from headwater.client.refusals import error_name, reason_of, refused_id, refused_topic
from headwater.client.writing.batches import Batch
from headwater.errors import Fenced, HeadwaterError, RequestRefused, TopicRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
    ProduceResponse,
    ProduceResponsePartitionProduceResponse,
)

MAX_IN_FLIGHT: Final = 5
MAX_REQUEST_BYTES: Final = 4 << 20
_PRODUCE_TIMEOUT_MS: Final = 30_000
_ACKS_ALL: Final = -1
_ALREADY_STORED: Final = ErrorCode.DUPLICATE_SEQUENCE_NUMBER

FENCED: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    # The id that we had has been replaced, or has expired.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)

TopicPartition = tuple[str, int]


class Producer(NamedTuple):
    """Who sends: what stands in each batch and request."""

    transactional_id: str
    id: int
    epoch: int
    codec: int
    last_version: int  # of Produce


class _Batch:
    """One on its way. Its bytes exist only until they are sent; to be sent again it is built again,
    which gives the same bytes.
    """

    __slots__ = ("builder", "built", "built_bytes", "is_stored", "sequence")

    def __init__(self, builder: Batch, sequence: int) -> None:
        self.builder = builder
        self.sequence = sequence
        self.built: bytearray | None = None
        self.built_bytes = 0
        self.is_stored = False


class _Partition:
    __slots__ = ("batches", "next_offset", "partition", "sent", "topic")

    def __init__(self, at: TopicPartition, builders: Iterable[Batch], sequence: int) -> None:
        self.topic, self.partition = at
        self.batches: list[_Batch] = []  # not stored yet, in the order of their sequences
        self.sent = 0  # how many of them have been, in this round
        self.next_offset = -1  # behind what is stored, as far as the leader has reported
        for builder in builders:
            self.batches.append(_Batch(builder, sequence))
            # Sequences wrap after 2^31 - 1 to 0.
            sequence = (sequence + builder.count) & 0x7FFFFFFF

    def reset(self) -> None:
        self.batches = [batch for batch in self.batches if not batch.is_stored]
        self.sent = 0


class _Leader:
    """One connection, its partitions, and the requests that wait for an answer."""

    def __init__(self, connection: Connection, version: int) -> None:
        self.connection = connection
        self.version = version
        self.partitions: deque[_Partition] = deque()  # with batches to be sent, in turns
        self.in_flight: deque[dict[TopicPartition, tuple[_Partition, _Batch]]] = deque()


def send(
    cluster: Cluster,
    producer: Producer,
    batches: dict[TopicPartition, tuple[list[Batch], int]],
) -> dict[TopicPartition, int]:
    """Returns when all is stored; `batches` has the first sequence beside each partition's list.
    The result is the offset behind the last record of each partition; -1 if the leader did not
    report it, because a retry came too late.

    Raises Fenced, RequestRefused, or BrokerUnreachable after the cluster's patience without
    progress; then some may be stored.
    """
    everything = partitions = [_Partition(at, *given) for at, given in batches.items()]
    patience = cluster.patience("the records do not get to their topics")
    while partitions:
        left = sum(len(partition.batches) for partition in partitions)
        round_ = _Round(cluster, producer, partitions)
        reason = round_.run()
        for partition in partitions:
            partition.reset()
        partitions = [partition for partition in partitions if partition.batches]
        if not partitions:
            break
        if sum(len(partition.batches) for partition in partitions) < left:
            patience.progressed()
        patience.wait(reason)
        if round_.is_metadata_old:
            cluster.refresh({partition.topic for partition in partitions})
    return {
        (partition.topic, partition.partition): partition.next_offset for partition in everything
    }


class _Round:
    """Sends everything, until something goes wrong."""

    def __init__(self, cluster: Cluster, producer: Producer, partitions: list[_Partition]) -> None:
        self._cluster = cluster
        self._producer = producer
        self._partitions = partitions
        self._leaders: dict[str, _Leader] = {}
        self._trouble = ""  # why there has to be another round
        self._refusal: HeadwaterError | None = None  # why there must not
        self.is_metadata_old = False

    def run(self) -> str:
        for partition in self._partitions:
            self._assign(partition)
        leaders = list(self._leaders.values())
        while True:
            for leader in leaders:
                self._fill(leader)
            waiting = [leader for leader in leaders if leader.in_flight]
            if not waiting:
                break
            for leader in waiting:
                self._take(leader)
        if self._refusal is not None:
            raise self._refusal
        return self._trouble

    def _assign(self, partition: _Partition) -> None:
        address = self._cluster.leader(partition.topic, partition.partition)
        if address is None:
            count = self._cluster.partitions(partition.topic)
            if partition.partition >= count:
                raise RequestRefused(
                    f"topic {partition.topic} has no partition {partition.partition}",
                    detail=f"it has {count}",
                )
            address = self._cluster.leader(partition.topic, partition.partition)
        if address is None:
            self._fail(f"{partition.topic}-{partition.partition} has no leader")
            return
        if address not in self._leaders:
            try:
                connection = self._cluster.connection(address)
                version = connection.version(ProduceRequest, 3, self._producer.last_version)
            except LOST as error:
                self._fail(f"{address}: {reason_of(error)}")
                return
            self._leaders[address] = _Leader(connection, version)
        self._leaders[address].partitions.append(partition)

    def _fill(self, leader: _Leader) -> None:
        while (
            leader.partitions
            and len(leader.in_flight) < MAX_IN_FLIGHT
            and not self._trouble
            and self._refusal is None
        ):
            request, batches = self._next_request(leader)
            leader.in_flight.append(batches)
            try:
                leader.connection.send(request, ProduceResponse, leader.version)
            except OSError as error:
                self._lost(leader, error)
            for _, batch in batches.values():
                batch.built = None

    def _next_request(
        self, leader: _Leader
    ) -> tuple[ProduceRequest, dict[TopicPartition, tuple[_Partition, _Batch]]]:
        """One batch of each partition that has one, as many as there is room for."""
        topics: dict[str, list[ProduceRequestPartitionProduceData]] = {}
        batches: dict[TopicPartition, tuple[_Partition, _Batch]] = {}
        size_bytes = 0
        for _ in range(len(leader.partitions)):
            partition = leader.partitions[0]
            batch = partition.batches[partition.sent]
            if batch.built is None:
                batch.built = batch.builder.build(
                    self._producer.codec,
                    producer_id=self._producer.id,
                    producer_epoch=self._producer.epoch,
                    base_sequence=batch.sequence,
                    is_transactional=True,
                )
                batch.built_bytes = len(batch.built)
            if batches and size_bytes + batch.built_bytes > MAX_REQUEST_BYTES:
                break
            size_bytes += batch.built_bytes
            topics.setdefault(partition.topic, []).append(
                ProduceRequestPartitionProduceData(index=partition.partition, records=batch.built)
            )
            batches[partition.topic, partition.partition] = (partition, batch)
            partition.sent += 1
            leader.partitions.popleft()
            if partition.sent < len(partition.batches):
                leader.partitions.append(partition)
        request = ProduceRequest(
            transactional_id=self._producer.transactional_id,
            acks=_ACKS_ALL,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[
                ProduceRequestTopicProduceData(name=topic, partition_data=data)
                for topic, data in topics.items()
            ],
        )
        return request, batches

    def _take(self, leader: _Leader) -> None:
        try:
            answer: ProduceResponse = leader.connection.receive()
        except LOST as error:
            self._lost(leader, error)
            return
        batches = leader.in_flight.popleft()
        for topic in answer.responses:
            for result in topic.partition_responses:
                found = batches.get((topic.name, result.index))
                if found is not None:
                    self._settle(*found, result)

    def _settle(
        self,
        partition: _Partition,
        batch: _Batch,
        result: ProduceResponsePartitionProduceResponse,
    ) -> None:
        code = result.error_code
        if code in (ErrorCode.NONE, _ALREADY_STORED):
            batch.is_stored = True
            # The answers of a partition come in the order of its batches.
            is_reported = result.base_offset >= 0
            partition.next_offset = result.base_offset + batch.builder.count if is_reported else -1
            return
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            first = next(other for other in partition.batches if not other.is_stored)
            if first is not batch:
                self._trouble = self._trouble or error_name(code)  # it came behind one in trouble
                return
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:  # Kafka still writes the end of the last one
            self._trouble = self._trouble or error_name(code)
            return
        if code in RETRIABLE:
            self._fail(f"{partition.topic}-{partition.partition}: {error_name(code)}")
            return
        if self._refusal is None:
            self._refusal = self._refused(partition, batch, result)

    def _refused(
        self,
        partition: _Partition,
        batch: _Batch,
        result: ProduceResponsePartitionProduceResponse,
    ) -> HeadwaterError:
        code, topic = result.error_code, partition.topic
        if code in FENCED:
            return fenced(self._producer.transactional_id, code)
        if code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return refused_id(code, self._producer.transactional_id, result.error_message)
        if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            return TopicRefused(
                topic,
                f"topic {topic} does not take {batch.built_bytes} bytes in one batch",
                detail=f"{batch.builder.count} records, {batch.builder.size_bytes} bytes before"
                f" compression; {result.error_message or error_name(code)}",
                hint=f"`headwater topic alter {topic} -c max.message.bytes=SIZE` allows more",
            )
        return refused_topic(code, topic, result.error_message, operation="write")

    def _lost(self, leader: _Leader, error: Exception) -> None:
        self._cluster.lose(leader.connection)
        leader.in_flight.clear()
        leader.partitions.clear()
        self._fail(f"{leader.connection.address}: {reason_of(error)}")

    def _fail(self, reason: str) -> None:
        self._trouble = reason
        self.is_metadata_old = True


def fenced(transactional_id: str, code: int) -> Fenced:
    return Fenced(
        f"another process writes as {transactional_id} now",
        detail=error_name(code),
        hint="or the transaction was open for longer than its timeout",
    )
