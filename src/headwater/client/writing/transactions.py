"""The transactional producer: all records of a transaction are visible, or none; fences zombies.

KIP-890 (transaction.version 2, Kafka 4.0): a partition joins the transaction with its first batch,
and each end gives the producer the next epoch. A transaction is then one Produce for each request
full of batches and one EndTxn, and a batch that is late by a transaction is refused. Brokers from
before get the partitions by AddPartitionsToTxn, and the epoch stays.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self

from headwater.client.cluster import DEFAULT_PATIENCE_S, RETRIABLE, Cluster
from headwater.client.refusals import refused_id, refused_topic
from headwater.client.writing.batches import Batch
from headwater.client.writing.sending import FENCED, Producer, TopicPartition, fenced, send
from headwater.errors import BrokerUnreachable, HeadwaterError
from headwater.protocol import compression as codecs
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
    AddPartitionsToTxnResponse,
)
from headwater.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headwater.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headwater.settings import ClientSettings

_EPOCH_PER_TRANSACTION: Final = 2  # level of transaction.version (KIP-890)
# Produce 12 and EndTxn 5 mean that the client supports KIP-890. (Produce 13 names topics by id.)
_PRODUCE_LAST, _PRODUCE_LAST_BEFORE = 12, 11
_END_LAST, _END_LAST_BEFORE = 5, 4


class TransactionalProducer:
    """To be owned by one thread. After an error of `send`, only `abort`, `fence` and `close`.

    `commit` and `abort` may be asked again by us if the answer is lost, without harm. If they
    raise, the transaction may have ended or not: `fence` makes sure that it has.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        login: ClientSettings,
        transaction_timeout_ms: int = 600_000,
        compression: str = "lz4",
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._cluster = Cluster(bootstrap, login, patience_s=patience_s)
        self._transactional_id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._codec = codecs.NAMES.index(compression)
        self._has_own_epoch = False  # whether each transaction has (KIP-890)
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}  # the next, in this epoch
        self._added: set[TopicPartition] = set()  # to the transaction, if they have to be
        self._is_open = False
        self._is_unsure = False  # a send failed: some of it may be stored

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections. A transaction that is open stays so until its timeout, or until
        the next `fence` of this transactional id.
        """
        self._cluster.close()

    def partitions(self, topic: str) -> int:
        """How many the topic has; RequestRefused if there is no such topic."""
        return self._cluster.partitions(topic)

    def fence(self) -> None:
        """Makes this the only producer of the transactional id. What an earlier one has left open
        is aborted, and whatever it still sends is refused.
        """
        self._initialise(-1, -1)

    def send(self, batches: Mapping[TopicPartition, Sequence[Batch]]) -> dict[TopicPartition, int]:
        """Writes the batches, inside of the transaction that is open, else of a new one.

        Returns when all of them are stored: the offset behind the last record of each partition
        (-1: not reported). The order is preserved within a partition. Batches without records are
        left out.
        """
        assert self._producer_id >= 0, "fence() comes first"
        assert not self._is_unsure, "after an error the transaction can only be aborted"
        filled = {
            at: records
            for at, given in batches.items()
            if (records := [builder for builder in given if builder.count])
        }
        if not filled:
            return {}
        if not self._has_own_epoch:
            self._add([at for at in filled if at not in self._added])
        self._is_open = self._is_unsure = True
        producer = Producer(
            self._transactional_id,
            self._producer_id,
            self._epoch,
            self._codec,
            _PRODUCE_LAST if self._has_own_epoch else _PRODUCE_LAST_BEFORE,
        )
        sequences = self._sequences
        ends = send(
            self._cluster,
            producer,
            {at: (given, sequences.get(at, 0)) for at, given in filled.items()},
        )
        for at, given in filled.items():
            count = sum(builder.count for builder in given)
            sequences[at] = (sequences.get(at, 0) + count) & 0x7FFFFFFF
        self._is_unsure = False
        return ends

    def commit(self) -> None:
        """All that was sent since the last end is seen. Does nothing if nothing was sent."""
        assert not self._is_unsure, "after an error the transaction can only be aborted"
        if self._is_open:
            self._end(committed=True)

    def abort(self) -> None:
        """Nothing of what was sent since the last end is ever seen."""
        if not self._is_open:
            return
        self._end(committed=False)
        if self._is_unsure and not self._has_own_epoch:
            # The next sequence is undetermined. A new epoch begins with 0 (KIP-360).
            self._initialise(self._producer_id, self._epoch)
        self._is_unsure = False

    def _initialise(self, producer_id: int, epoch: int) -> None:
        patience = self._cluster.patience(f"no coordinator for {self._transactional_id}")
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = self._cluster.ask_coordinator(
            self._transactional_id, request, InitProducerIdResponse, patience, first=3, last=5
        )
        if answer.error_code:
            raise self._refused(answer.error_code)
        self._is_open = self._is_unsure = False
        self._added.clear()
        self._take_identity(answer.producer_id, answer.producer_epoch)
        self._has_own_epoch = self._cluster.has_feature(
            self._transactional_id, "transaction.version", _EPOCH_PER_TRANSACTION
        )

    def _add(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequestAddPartitionsToTxnTopic(name=topic, partitions=numbers)
                for topic, numbers in topics.items()
            ],
        )
        self._is_open = True
        answer = self._cluster.ask_coordinator(
            self._transactional_id,
            request,
            AddPartitionsToTxnResponse,
            self._cluster.patience("the transaction does not begin"),
            first=0,
            last=3,
            code_of=_first_retriable,
        )
        for topic_result in answer.results_by_topic_v3_and_below:
            for result in topic_result.results_by_partition:
                code = result.partition_error_code
                if code == ErrorCode.OPERATION_NOT_ATTEMPTED:  # another one is why
                    continue
                if code in (
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                ):
                    raise refused_topic(code, topic_result.name, operation="write")
                if code:
                    raise self._refused(code)
        self._added.update(partitions)

    def _end(self, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        last = _END_LAST if self._has_own_epoch else _END_LAST_BEFORE
        answer = self._cluster.ask_coordinator(
            self._transactional_id,
            request,
            EndTxnResponse,
            self._cluster.patience("the transaction does not end"),
            first=last if self._has_own_epoch else 0,
            last=last,
        )
        if committed and answer.error_code == ErrorCode.INVALID_TXN_STATE:
            # Kafka's code if another producer that took over has ended it just now.
            raise fenced(self._transactional_id, answer.error_code)
        if answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
            raise BrokerUnreachable("the broker failed to end the transaction")
        if answer.error_code:
            raise self._refused(answer.error_code)
        self._is_open = False
        self._added.clear()
        if self._has_own_epoch:
            self._take_identity(answer.producer_id, answer.producer_epoch)

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _refused(self, code: int) -> HeadwaterError:
        if code in FENCED:
            return fenced(self._transactional_id, code)
        return refused_id(code, self._transactional_id)


def _first_retriable(answer: AddPartitionsToTxnResponse) -> int:
    for topic in answer.results_by_topic_v3_and_below:
        for result in topic.results_by_partition:
            if result.partition_error_code in RETRIABLE:
                return result.partition_error_code
    return 0
