"""Recovery of transactions: from `__transaction_state`, and open ones from the partitions.

A partition's batch and the record that says that the partition is part of the transaction are
written at the same time (KIP-890), so a crash can leave the first without the second. Such a
partition is found here, by what its log says of open transactions:

  - Its data has the producer's present epoch: it is of the transaction that the producer is in,
    or was about to begin. The partition is adopted. The producer, whose request was not answered,
    sends the batch again, and it is recognized as a duplicate; to abort it would lose it.
  - Otherwise no producer will ever end it, and all consumers with read_committed would wait for it.
    It gets an abort marker.
"""

import asyncio
import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from headwater.broker.internal_topics.coordinator_log import CoordinatorLog, StoredRecord
from headwater.broker.transactions.markers import Marker
from headwater.broker.transactions.transaction import (
    State,
    TopicPartition,
    Transaction,
    from_record,
)
from headwater.errors import MalformedMessage
from headwater.log.store import LogStore

logger = logging.getLogger(__name__)

_PER_TURN = 1_000


async def read(log: CoordinatorLog, by_id: dict[str, Transaction]) -> None:
    """Fills `by_id` with the last record of each transactional id."""
    for partition in range(log.partition_count):
        last: dict[bytes, bytes] = {}
        async for batch in log.read(partition):
            for stored in batch:
                if isinstance(stored, StoredRecord):
                    if stored.value is None:
                        last.pop(stored.key, None)
                    else:
                        last[stored.key] = stored.value
        for count, (key, value) in enumerate(last.items()):
            try:
                transaction = from_record(key, value)
            except (MalformedMessage, struct.error, ValueError) as error:
                logger.error("a record of __transaction_state-%d: %s", partition, error)
                continue
            if transaction is not None and transaction.state is not State.DEAD:
                by_id[transaction.transactional_id] = transaction
            if count % _PER_TURN == 0:
                await asyncio.sleep(0)


@dataclass(slots=True)
class OpenPartitions:
    """Partitions with an open transaction that no transactional id lists."""

    adopted: list[tuple[Transaction, list[TopicPartition]]] = field(default_factory=list)
    orphaned: list[tuple[Marker, list[TopicPartition]]] = field(default_factory=list)


async def open_partitions(store: LogStore, transactions: Iterable[Transaction]) -> OpenPartitions:
    by_producer = {transaction.producer_id: transaction for transaction in transactions}
    adopted: dict[int, list[TopicPartition]] = {}
    orphaned: dict[Marker, list[TopicPartition]] = {}
    for count, ((topic, index), partition) in enumerate(list(store.partitions.items())):
        for producer_id, left_open in partition.open_transactions.items():
            transaction = by_producer.get(producer_id)
            epoch = left_open.producer_epoch
            if transaction is not None:
                is_present = transaction.epoch == epoch and not transaction.state.is_ending
                if (topic, index) in transaction.partitions:
                    continue
                if is_present:
                    adopted.setdefault(producer_id, []).append((topic, index))
                    continue
                epoch = max(epoch, transaction.epoch)
            marker = Marker(producer_id, epoch, False, store.leader_epoch)
            orphaned.setdefault(marker, []).append((topic, index))
        if count % _PER_TURN == 0:
            await asyncio.sleep(0)
    return OpenPartitions(
        [(by_producer[producer_id], found) for producer_id, found in adopted.items()],
        list(orphaned.items()),
    )
