"""A broker on a real log and a fake clock, and transactional producers of both kinds.

Every request and every answer goes through its bytes in the version that is asked for.
"""

import asyncio
import itertools
import time

from headwater.broker import api
from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.broker import TRANSACTIONS_TOPIC, Broker, BrokerOptions
from headwater.broker.internal_topics.records import partition_for
from headwater.broker.transactions import State, TransactionSettings
from headwater.broker.transactions.transaction import from_record
from headwater.log import segment as segments
from headwater.log.store import LogStore
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headwater.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestAddPartitionsToTxnTopic,
)
from headwater.protocol.messages.end_txn import EndTxnRequest
from headwater.protocol.messages.init_producer_id import InitProducerIdRequest
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headwater.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from headwater.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headwater.protocol.records import CONTROL, TRANSACTIONAL, Record
from headwater.protocol.schema import Message
from headwater.testing import FakeClock, FaultyFiles
from support.wire import LoneConnection, records_in

api.load_all()

TIMEOUT_S = 60


class Disk(FaultyFiles):
    """Also refuses all writes to files whose path has `refused` in it, and lets those wait whose
    path has `held` in it.
    """

    refused = ""
    held = ""

    def pwrite(self, fd, data, position):
        path = self._by_fd[fd].path
        while self.held and self.held in path:
            time.sleep(0.001)
        if self.refused and self.refused in path:
            raise OSError(5, "Input/output error")
        super().pwrite(fd, data, position)

    def repair(self) -> None:
        self.refused = self.held = ""
        super().repair()


class TransactionCluster:
    """One broker. `crash` lets it go as it is; `start` opens what is on the disk."""

    def __init__(self, path, settings: TransactionSettings | None = None) -> None:
        self.runner = asyncio.Runner()
        self.path = str(path)
        self.files = Disk()
        self.clock = FakeClock()
        self.settings = settings or TransactionSettings()
        self.start()

    def start(self) -> None:
        self.runner.run(self._start())

    async def _start(self) -> None:
        self.store = LogStore(self.path, self.clock, files=self.files)
        self.store.open()
        options = BrokerOptions(transactions=self.settings)
        self.broker = Broker(self.store, self.clock, options)
        await self.broker.start()
        await self._until(self._is_loaded)

    def _is_loaded(self) -> bool:
        return self.broker.transactions._refusal is None

    def stop(self) -> None:
        self.runner.run(self.broker.close())

    def crash(self) -> None:
        self.runner.run(self.broker.abandon())

    def restart(self, *, crash: bool) -> None:
        self.crash() if crash else self.stop()
        self.start()

    def topic(self, name: str, partitions: int = 1) -> None:
        self.runner.run(self.broker.create_topic(name, partitions, {}))

    async def call(self, request: Message, version: int):
        served = APIS[request.api_key]
        assert served.first <= version <= served.last
        received = type(request).decode(bytearray(request.encode(version)), version)
        context = RequestContext(version, 1, "test", "127.0.0.1", LoneConnection())
        answer = served.handle(self.broker, received, context)
        if not isinstance(answer, Message):
            answer = await answer
        return type(answer).decode(bytes(answer.encode(version)), version)

    def ask(self, request: Message, version: int):
        return self.runner.run(asyncio.wait_for(self.call(request, version), TIMEOUT_S))

    def at_once(self, *calls):
        """Several coroutines in work at the same time."""

        async def all_of_them():
            return await asyncio.gather(*calls)

        return self.runner.run(asyncio.wait_for(all_of_them(), TIMEOUT_S))

    async def _until(self, condition) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.001)

    def until(self, condition) -> None:
        self.runner.run(self._until(condition))

    def advance(self, seconds: float) -> None:
        async def advance() -> None:
            self.clock.advance(seconds)
            for _ in range(30):
                await asyncio.sleep(0)

        self.runner.run(advance())

    # ── looking ───────────────────────────────────────────────────────────────────────────────

    def state(self, transactional_id: str) -> State:
        return self.broker.transactions.transaction(transactional_id).state

    def until_state(self, transactional_id: str, state: State) -> None:
        self.until(lambda: self.state(transactional_id) is state)

    def batches(self, topic: str, partition: int):
        """(header, bytes) of all that is in the log."""
        storage, log = self.store.storage, self.store.partitions[topic, partition]
        for segment in log.segments:
            for at, header in segments.headers(storage, segment, 0):
                yield header, segments.read_batch(storage, segment, at, header)

    def committed(self, topic: str, partition: int = 0) -> list[bytes]:
        """What a read_committed consumer may see, derived from the markers alone."""
        stable = self.store.partitions[topic, partition].last_stable_offset
        found: list[tuple[int, list[bytes]]] = []
        pending: dict[int, list[tuple[int, list[bytes]]]] = {}
        for header, batch in self.batches(topic, partition):
            if header.base_offset >= stable:
                break
            if header.attributes & CONTROL:
                ended = pending.pop(header.producer_id, [])
                found += ended if _is_commit(batch) else []
                continue
            values = (header.base_offset, [record.value for record in records_in(batch)])
            if header.attributes & TRANSACTIONAL:
                pending.setdefault(header.producer_id, []).append(values)
            else:
                found.append(values)
        assert not pending, "below the last stable offset every transaction has ended"
        return [value for _, values in sorted(found) for value in values]

    def markers(self, topic: str, partition: int = 0) -> list[tuple[int, int, bool]]:
        """(producer id, epoch, committed) of every marker in the log."""
        return [
            (header.producer_id, header.producer_epoch, _is_commit(batch))
            for header, batch in self.batches(topic, partition)
            if header.attributes & CONTROL
        ]

    def stored_states(self, transactional_id: str) -> list[State | None]:
        """Every record of the transactional id in `__transaction_state`; None: a tombstone."""

        async def read():
            index = partition_for(transactional_id, 50)
            found = []
            async for batch in self.broker.transactions._log.read(index):
                found += [
                    stored.value and from_record(stored.key, stored.value).state
                    for stored in batch
                    if stored.key.endswith(transactional_id.encode())
                ]
            return found

        assert TRANSACTIONS_TOPIC in self.store.catalog.topics
        return self.runner.run(read())

    def offsets(self, group: str, *keys, require_stable: bool = True):
        """{(topic, partition): offset or error}"""
        topics = [
            OffsetFetchRequestTopics(name=topic, partition_indexes=[index]) for topic, index in keys
        ]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)],
            require_stable=require_stable,
        )
        (answer,) = self.ask(request, 9).groups
        assert answer.error_code == 0
        return {
            (topic.name, partition.partition_index): (
                ErrorCode(partition.error_code)
                if partition.error_code
                else partition.committed_offset
            )
            for topic in answer.topics
            for partition in topic.partitions
        }


def _is_commit(batch) -> bool:
    (record,) = records_in(batch)
    return record.key == b"\x00\x00\x00\x01"


class Producer:
    """A transactional producer; `has_kip_890`: of that KIP, with an epoch for each transaction."""

    def __init__(
        self, cluster: TransactionCluster, transactional_id: str, *, has_kip_890: bool = True
    ) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.has_kip_890 = has_kip_890
        self.producer_id = -1
        self.epoch = -1
        self.sequences = {}
        self.added = set()

    # Requests, for tests that want to choose

    def init_request(self, *, recover=False, timeout_ms=60_000) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.producer_id if recover else -1,
            producer_epoch=self.epoch if recover else -1,
        )

    def add_request(self, *partitions) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequestAddPartitionsToTxnTopic(
                    name=topic, partitions=[index for _, index in group]
                )
                for topic, group in itertools.groupby(sorted(partitions), lambda entry: entry[0])
            ],
        )

    def produce_request(self, topic, *values, partition=0, sequence=None) -> ProduceRequest:
        if sequence is None:
            sequence = self.sequences.get((topic, partition), 0)
        now_ms = self.cluster.clock.now_ms()
        batch = records.build_batch(
            [Record(0, now_ms, None, value) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        data = ProduceRequestPartitionProduceData(index=partition, records=batch)
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[ProduceRequestTopicProduceData(name=topic, partition_data=[data])],
        )

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def offsets_request(self, group, offsets, **member) -> TxnOffsetCommitRequest:
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset
                        )
                    ],
                )
                for (topic, index), offset in offsets.items()
            ],
            **member,
        )

    # What a client does with them; each returns the error code

    def init(self, **options) -> ErrorCode:
        answer = self.cluster.ask(self.init_request(**options), 5)
        if not answer.error_code:
            self.added.clear()
            self._becomes(answer)
        return ErrorCode(answer.error_code)

    def add(self, *partitions) -> ErrorCode:
        answer = self.cluster.ask(self.add_request(*partitions), 3)
        (code,) = {
            result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        return ErrorCode(code)

    def send(self, topic, *values, partition=0) -> ErrorCode:
        key = (topic, partition)
        if not self.has_kip_890 and key not in self.added:
            code = self.add(key)
            if code:
                return code
            self.added.add(key)
        return self.send_only(topic, *values, partition=partition)

    def send_only(self, topic, *values, partition=0, version=None) -> ErrorCode:
        request = self.produce_request(topic, *values, partition=partition)
        answer = self.cluster.ask(request, version or (12 if self.has_kip_890 else 11))
        (answer,) = answer.responses[0].partition_responses
        if not answer.error_code:
            key = (topic, partition)
            self.sequences[key] = self.sequences.get(key, 0) + len(values)
        return ErrorCode(answer.error_code)

    def send_offsets(self, group, offsets, version=None, **member) -> ErrorCode:
        if not self.has_kip_890:
            request = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            answer = self.cluster.ask(request, 4)
            if answer.error_code:
                return ErrorCode(answer.error_code)
        return self.send_offsets_only(group, offsets, version, **member)

    def send_offsets_only(self, group, offsets, version=None, **member) -> ErrorCode:
        if version is None:
            version = 5 if self.has_kip_890 else 4
        answer = self.cluster.ask(self.offsets_request(group, offsets, **member), version)
        (code,) = {
            partition.error_code for topic in answer.topics for partition in topic.partitions
        }
        return ErrorCode(code)

    def commit(self) -> ErrorCode:
        return self.end(commit=True)

    def abort(self) -> ErrorCode:
        return self.end(commit=False)

    def end(self, *, commit: bool) -> ErrorCode:
        answer = self.cluster.ask(self.end_request(commit=commit), 5 if self.has_kip_890 else 4)
        if not answer.error_code:
            self.added.clear()
            if self.has_kip_890:
                self._becomes(answer)
        return ErrorCode(answer.error_code)

    def _becomes(self, answer) -> None:
        if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
