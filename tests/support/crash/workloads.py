"""Clients that go on through kills of the broker, each with a model of what must be there.

A worker takes its `turn` for one step after the other; between two steps the outcome of all it did
is decided, so the holder of the turn can compare the broker with the model.
"""

import random
import threading
import time
import traceback
from collections import Counter

from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
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
from headwater.protocol.records import TRANSACTIONAL, Record
from support.broker.queue_harness import ACCEPT, REJECT, RELEASE, acquired
from support.broker.queue_harness import Consumer as ShareConsumer
from support.broker.txn_harness import Producer
from support.crash.steady_client import SteadyClient, connect, done
from support.wire import records_in


class Worker(threading.Thread):
    """Steps until it is stopped; errors are recorded for the test."""

    def __init__(self, address: str, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.client = SteadyClient(address, secured=True)
        self.chance = random.Random(f"{seed} {name}")
        self.turn = threading.Lock()
        self.over = threading.Event()
        self.failure = ""
        self.steps = 0

    def run(self) -> None:
        while not self.over.is_set() and not self.failure:
            with self.turn:
                try:
                    self.step()
                    self.steps += 1
                except Exception:
                    self.failure = traceback.format_exc()
            time.sleep(0.002)  # so that another worker may have the turn
        self.close()

    def close(self) -> None:
        self.client.close()

    def step(self) -> None:
        raise NotImplementedError


class KeyedProducer(Producer):
    """Sends (key, value) in place of values."""

    def produce_request(self, topic, *pairs, partition=0, sequence=None) -> ProduceRequest:
        if sequence is None:
            sequence = self.sequences.get((topic, partition), 0)
        now_ms = self.cluster.clock.now_ms()
        batch = records.build_batch(
            [Record(0, now_ms, key, value) for key, value in pairs],
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


class TransactionalWorker(Worker):
    """Works in transactions under its own name; now and then it dies and comes back."""

    def __init__(self, address: str, name: str, seed: int, *, modern: bool = True) -> None:
        super().__init__(address, name, seed)
        self.modern = modern
        self.producer: KeyedProducer | None = None

    def come_back(self) -> None:
        """As a new process, which knows nothing of the old one."""
        self.producer = KeyedProducer(self.client, self.name, has_kip_890=self.modern)
        done(self.producer.init)

    def dies(self) -> bool:
        return self.chance.random() < 0.08

    def end(self, *, commit: bool) -> None:
        done(lambda: self.producer.end(commit=commit))

    def end_unheard(self, *, commit: bool) -> None:
        """Asks for the end and disconnects before the answer."""
        try:
            wire = connect(self.client._address, secured=True)
            wire.send(self.producer.end_request(commit=commit), 5 if self.modern else 4)
            wire.close()
        except OSError:
            pass


class PairWriter(TransactionalWorker):
    """Each transaction is some records in `left` and as many in `right`."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.committed: dict[bytes, int] = {}  # name of the transaction -> records in each topic
        self.doubtful: dict[bytes, int] = {}

    def step(self) -> None:
        if self.producer is None:
            self.come_back()
        name = b"%s:%d" % (self.name.encode(), self.steps)
        sizes = [self.chance.randrange(1, 4) for _ in range(self.chance.randrange(1, 3))]
        for size in sizes:
            for topic in ("left", "right"):
                pairs = [(name, bytes(20))] * size
                done(lambda topic=topic, pairs=pairs: self.producer.send(topic, *pairs))
        commit = self.chance.random() < 0.7
        if not self.dies():
            self.end(commit=commit)
            if commit:
                self.committed[name] = sum(sizes)
            return
        if commit:
            self.end_unheard(commit=True)
            self.doubtful[name] = sum(sizes)
        self.come_back()


class Copier(TransactionalWorker):
    """Copies what is committed in `left` to `copied`, with its offsets in the transaction."""

    GROUP = "copiers"

    def step(self) -> None:
        if self.producer is None:
            self.come_back()
        offset = self.position()
        found, next_offset = self.client.committed_from("left", offset)
        if next_offset == offset:
            return
        if found:
            pairs = [(b"%d" % record.offset, record.key) for record in found]
            done(lambda: self.producer.send("copied", *pairs))
        position = {("left", 0): next_offset}
        done(lambda: self.producer.send_offsets(self.GROUP, position))
        if self.dies():
            if self.chance.random() < 0.5:
                self.end_unheard(commit=True)
            self.come_back()
        else:
            self.end(commit=self.chance.random() < 0.8)

    def position(self) -> int:
        topic = OffsetFetchRequestTopics(name="left", partition_indexes=[0])
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.GROUP, topics=[topic])],
            require_stable=True,
        )
        answers = []

        def ask() -> int:
            (answer,) = self.client.ask(request, 9).groups
            answers.append(answer)
            return answer.error_code or answer.topics[0].partitions[0].error_code

        done(ask)
        return max(answers[-1].topics[0].partitions[0].committed_offset, 0)


class LatestWriter(TransactionalWorker):
    """Sets and deletes keys in the compacted topic `latest`; some of it is aborted."""

    KEYS = tuple(b"key-%02d" % number for number in range(24))

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.latest: dict[bytes, bytes | None] = {}
        self.aborted: set[bytes] = set()
        self.written = 0

    def step(self) -> None:
        if self.producer is None:
            self.come_back()
        pairs: dict[bytes, bytes | None] = {}
        for key in self.chance.sample(self.KEYS, self.chance.randrange(1, 6)):
            self.written += 1
            is_set = self.chance.random() < 0.8
            pairs[key] = b"%d " % self.written + bytes(80) if is_set else None
        done(lambda: self.producer.send("latest", *pairs.items()))
        if self.dies():
            self.come_back()
            commit = False
        else:
            commit = self.chance.random() < 0.8
            self.end(commit=commit)
        if commit:
            self.latest |= pairs
        else:
            self.aborted |= set(pairs.values()) - {None}

    def check(self, client: SteadyClient) -> None:
        """Compares with what a reader sees, while nothing is on its way."""
        found = client.all_committed("latest")
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert not {record.value for record in found} & self.aborted
        latest = {record.key: record.value for record in found}
        for key in self.KEYS:
            assert latest.get(key) == self.latest.get(key), key


class QueueBook:
    """What the consumers of a queue did with its records, and whether the broker respects it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.accepted: dict[int, float] = {}  # offset -> when that was answered
        self.rejected: dict[int, float] = {}
        self.tried_to_accept: set[int] = set()
        self.deliveries: Counter[int] = Counter()
        self.wrong: list[str] = []

    def delivered(self, offsets: list[int], asked_s: float) -> None:
        """`asked_s`: what was settled before the consumer asked must not be in the answer."""
        with self._lock:
            for offset in offsets:
                self.deliveries[offset] += 1
                for how, settled in (("accepted", self.accepted), ("rejected", self.rejected)):
                    if settled.get(offset, asked_s) < asked_s:
                        self.wrong.append(f"{offset} was delivered after it was {how}")

    def tries(self, kinds: dict[int, int]) -> None:
        with self._lock:
            self.tried_to_accept |= {offset for offset, kind in kinds.items() if kind == ACCEPT}

    def settled(self, kinds: dict[int, int]) -> None:
        now_s = time.monotonic()
        with self._lock:
            self.accepted |= {offset: now_s for offset, kind in kinds.items() if kind == ACCEPT}
            self.rejected |= {offset: now_s for offset, kind in kinds.items() if kind == REJECT}


class QueueWorker(Worker):
    """Takes records of the queue `jobs`: accepts, releases, rejects or walks away."""

    def __init__(self, address: str, name: str, seed: int, book: QueueBook, topic_id) -> None:
        super().__init__(address, name, seed)
        self._address = address
        self._book = book
        self._topic_id = topic_id
        self._consumer: ShareConsumer | None = None
        self.is_careful = False  # accepts everything

    def step(self) -> None:
        try:
            if self._consumer is None:
                self._consumer = self._connected()
            self._take()
        except OSError:
            self._leave()
            time.sleep(0.01)

    def close(self) -> None:
        self._leave()

    def _connected(self) -> ShareConsumer:
        consumer = ShareConsumer(self._address, self._topic_id)
        consumer.wire.close()
        consumer.wire = connect(self._address, secured=True)
        return consumer

    def _leave(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _take(self) -> None:
        asked_s = time.monotonic()
        answer = self._consumer.fetch(max_wait_ms=100, max_records=100)
        if answer.error_code:
            self._leave()
            return
        offsets = acquired(answer)
        got = {
            record.offset
            for topic in answer.responses
            for part in topic.partitions
            for record in records_in(part.records)
        }
        assert set(offsets) <= got
        self._book.delivered(offsets, asked_s)
        if not offsets:
            return
        if not self.is_careful and self.chance.random() < 0.03:
            self._leave()
            return
        kinds = {offset: self._kind() for offset in offsets}
        self._book.tries(kinds)
        code = self._consumer.acknowledge(*((o, o, kind) for o, kind in kinds.items()))
        if code == 0:
            self._book.settled(kinds)
        else:
            allowed = (ErrorCode.INVALID_RECORD_STATE, ErrorCode.SHARE_SESSION_NOT_FOUND)
            assert code in allowed, ErrorCode(code)
            self._leave()

    def _kind(self) -> int:
        if self.is_careful:
            return ACCEPT
        return self.chance.choices([ACCEPT, RELEASE, REJECT], [85, 10, 5])[0]
