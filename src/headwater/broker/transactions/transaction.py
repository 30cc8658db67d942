"""The state of a transactional id, in memory and in `__transaction_state`.

The records are in Kafka's own format:

    key    int16 version (0)   TransactionLogKey
    value  int16 version (1)   TransactionLogValue;  null deletes the transactional id
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.broker.internal_topics.records import Record
from headwater.protocol.messages import internal as m

if TYPE_CHECKING:
    import asyncio

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
# The last epoch that a client gets: one more is reserved for the coordinator to fence it with.
LAST_EPOCH: Final = 2**15 - 2
# `version` of a transaction whose end gave its client a new epoch (KIP-890).
EPOCH_PER_TRANSACTION: Final = 2

_INT16 = struct.Struct(">h")

TopicPartition = tuple[str, int]


class State(IntEnum):
    """By its number in `__transaction_state`. The last is only reported, never stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """As Kafka's tools write it: PrepareCommit."""
        return self.name.title().replace("_", "")

    @property
    def is_ending(self) -> bool:
        """Decided, but not yet in every partition."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class Identity(NamedTuple):
    """Who a producer is: of several with one transactional id, the newest epoch is the real one."""

    producer_id: int
    epoch: int

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH


@dataclass(slots=True)
class Transaction:
    """A transactional id: its producer, and the transaction it is in or was in last."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    epoch: int = NO_EPOCH
    # Of the producer that was given the current epoch instead, so that it may ask again. Not
    # stored, in Kafka neither: after a restart such a repetition is fenced.
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID  # once a transaction with the last epoch has ended
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    started_ms: int = -1
    version: int = 0
    # A partition belongs to the transaction from the moment it is added; until the record that
    # says so is durable it is here, with the future of that write.
    unsaved: dict[TopicPartition, "asyncio.Future[None]"] = field(default_factory=dict)
    saving: "asyncio.Future[None] | None" = None
    saves_under_way: int = 0
    is_changing: bool = False  # a record that changes it is being written: no other request may

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    @property
    def has_own_epoch(self) -> bool:
        return self.version >= EPOCH_PER_TRANSACTION

    def record(self) -> Record:
        partitions: list[m.TransactionLogValuePartitionsSchema] | None = None
        if self.state is not State.EMPTY:
            topics: dict[str, list[int]] = {}
            for topic, index in self.partitions:
                topics.setdefault(topic, []).append(index)
            partitions = [
                m.TransactionLogValuePartitionsSchema(topic=topic, partition_ids=indexes)
                for topic, indexes in topics.items()
            ]
        return Record(
            m.TransactionLogKey(transactional_id=self.transactional_id),
            m.TransactionLogValue(
                producer_id=self.producer_id,
                previous_producer_id=self.previous_producer_id,
                next_producer_id=self.next_producer_id,
                producer_epoch=self.epoch,
                transaction_timeout_ms=self.timeout_ms,
                transaction_status=self.state,
                transaction_partitions=partitions,
                transaction_last_update_timestamp_ms=self.updated_ms,
                transaction_start_timestamp_ms=self.started_ms,
                client_transaction_version=self.version,
            ),
        )

    def tombstone(self) -> Record:
        return Record(m.TransactionLogKey(transactional_id=self.transactional_id), None)


def from_record(key: bytes, value: bytes) -> Transaction | None:
    """The transaction, or None if the record is of another kind.

    Raises MalformedMessage, struct.error or ValueError for bytes that are no record.
    """
    if _INT16.unpack_from(key)[0] != 0:
        return None
    (version,) = _INT16.unpack_from(value)
    of = m.TransactionLogKey.decode(memoryview(key)[2:], 0)
    stored = m.TransactionLogValue.decode(memoryview(value)[2:], version)
    return Transaction(
        transactional_id=of.transactional_id,
        producer_id=stored.producer_id,
        timeout_ms=stored.transaction_timeout_ms,
        updated_ms=stored.transaction_last_update_timestamp_ms,
        epoch=stored.producer_epoch,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        state=State(stored.transaction_status),
        partitions={
            (topic.topic, index)
            for topic in stored.transaction_partitions or ()
            for index in topic.partition_ids
        },
        started_ms=stored.transaction_start_timestamp_ms,
        version=stored.client_transaction_version,
    )
