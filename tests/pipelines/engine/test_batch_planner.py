"""Ends of batches of a write that reads two topics, with and without cuts."""

import time
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from support.pipelines.project import wait_for

from headwater.capture.publishing.cuts import NEW_TOPIC, TOPIC, Cuts
from headwater.client.topics import ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import PipelineError, RequestRefused
from headwater.pipelines.engine import batch_planner, tailed_source
from headwater.pipelines.engine.batch_planner import BatchPlanner
from headwater.pipelines.engine.cuts import FollowedCuts
from headwater.pipelines.engine.local_plan import Source
from headwater.pipelines.engine.query_batches import QueryBatches
from headwater.pipelines.engine.shared_log import SharedLog
from headwater.pipelines.engine.tailed_source import TailedSource
from headwater.pipelines.source.options import read_options
from headwater.pipelines.source.reading import close_fetchers
from headwater.pipelines.source.streaming import LogStreamReader
from headwater.settings import ClientSettings

RAW = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


class TwoTopics:
    """A capture that writes two topics, and a write that reads both."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"cuts-{uuid.uuid4().hex[:8]}"
        self.a, self.b = f"{self.name}.a", f"{self.name}.b"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        for topic in (self.a, self.b):
            self.create(topic)
        ensure_topics(bootstrap, ClientSettings(), [NEW_TOPIC])
        self.producer = TransactionalProducer(bootstrap, self.name, login=ClientSettings())
        self.producer.fence()
        self.cuts = Cuts(self.name, {})
        self.log = SharedLog(self.options(self.a))
        sources = [
            TailedSource(Source(number, self.options(topic), RAW), self.log)
            for number, topic in enumerate((self.a, self.b))
        ]
        self.planner = BatchPlanner(sources, self.log.cuts)
        self.starts = self.planner.next_ends([{}, {}])  # where reading begins
        self.advance()  # from here on the tail follows both

    def options(self, topic: str):
        given = {"bootstrap": self.bootstrap, "topic": topic, "value": "bytes"}
        return read_options({**given, "start": "earliest"})

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, 1)])[topic].result()

    def send(self, counts: dict[str, int], *, size_bytes: int = 10) -> None:
        """Within the transaction that is open."""
        batches = {}
        for topic, count in counts.items():
            batches[topic, 0] = [BatchBuilder(1 << 20)]
            for _ in range(count):
                batches[topic, 0][0].append(None, b"x" * size_bytes, (), 0)
        ends = self.producer.send(batches)
        self.cuts.sent(ends, {(topic, 0): count for topic, count in counts.items()})

    def commit(self, *, with_cut: bool = True) -> None:
        if with_cut:
            cut = BatchBuilder(1 << 20)
            for key, value in self.cuts.records(int(time.time() * 1000)):
                cut.append(key, value, (), 0)
            self.producer.send({(TOPIC, 0): [cut]})
        self.producer.commit()

    def produce(self, topic: str) -> None:
        """By another program."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(topic, b"x", partition=0)
        producer.flush()

    def ends(self) -> tuple[int, int]:
        """Of the next batch."""
        a, b = self.planner.next_ends(self.starts)
        return a[self.a]["0"], b[self.b]["0"]

    def advance(self) -> None:
        self.starts = self.planner.next_ends(self.starts)

    def wait_for_ends(self, *ends: int) -> None:
        wait_for(lambda: self.ends() == ends, f"a batch up to {ends}")

    def has_arrived(self, topic: str, end: int) -> bool:
        return self.log.tail.ends([(topic, 0)])[topic, 0][0] >= end

    def close(self) -> None:
        self.producer.close()
        self.log.tail.close()
        close_fetchers()


@pytest.fixture
def topics(broker_address):
    topics = TwoTopics(broker_address)
    yield topics
    topics.close()


def test_a_batch_ends_behind_whole_transactions(topics, monkeypatch):
    """Records of one topic have arrived, those of the other are not fetched yet."""
    topics.send({topics.a: 3, topics.b: 2})
    topics.commit()
    topics.wait_for_ends(4, 3)
    topics.advance()
    arrived = topics.log.tail.ends

    def without_b(partitions):
        found = arrived(partitions)
        return {one: ((3, 3) if one[0] == topics.b else at) for one, at in found.items()}

    monkeypatch.setattr(topics.log.tail, "ends", without_b)
    topics.send({topics.a: 5, topics.b: 5})
    topics.commit()
    wait_for(lambda: topics.has_arrived(topics.a, 10), "the records of one topic")
    assert topics.ends() == (4, 3)
    monkeypatch.undo()
    topics.wait_for_ends(10, 9)


def joined_with_b(topics, monkeypatch):
    """The second source is a table that events of the first are joined with."""
    events, table = topics.planner._sources
    monkeypatch.setattr(table, "_options", replace(table._options, progress=True))
    return events, table


def test_events_wait_for_the_rest_of_a_transaction_that_their_table_has(topics, monkeypatch):
    """They would be pending in the join, and the store's position past them."""
    _, table = joined_with_b(topics, monkeypatch)
    topics.send({topics.a: 3, topics.b: 2})
    topics.commit()
    topics.wait_for_ends(4, 3)  # and not read yet
    arrived = topics.log.tail.ends

    def without_a(partitions):
        found = arrived(partitions)
        return {one: ((4, 4) if one[0] == topics.a else at) for one, at in found.items()}

    monkeypatch.setattr(topics.log.tail, "ends", without_a)
    topics.send({topics.a: 5, topics.b: 5})
    topics.commit()
    wait_for(lambda: topics.has_arrived(topics.b, 9), "the records of the table")
    wait_for(lambda: topics.ends() == (0, 0), "no batch")
    monkeypatch.setattr(topics.log.tail, "ends", arrived)
    topics.wait_for_ends(10, 9)
    assert not table.has_more_of_table(topics.planner.next_ends(topics.starts)[1], {})


def test_events_do_not_wait_for_their_table_for_long(topics, monkeypatch):
    joined_with_b(topics, monkeypatch)
    monkeypatch.setattr(batch_planner, "_TABLE_PATIENCE_S", 0.1)
    monkeypatch.setattr(batch_planner, "_PATIENCE_S", 600.0)
    topics.send({topics.a: 3, topics.b: 2})
    topics.commit()
    topics.wait_for_ends(4, 3)
    topics.send({topics.b: 5})
    topics.commit(with_cut=False)  # of a transaction that is larger than one of Kafka's
    wait_for(lambda: topics.has_arrived(topics.b, 9), "the records of the table")
    topics.wait_for_ends(4, 3)


def test_a_backlog_does_not_wait_for_a_table(topics, monkeypatch):
    joined_with_b(topics, monkeypatch)
    monkeypatch.setattr(batch_planner, "_TABLE_PATIENCE_S", 600.0)
    monkeypatch.setattr(batch_planner, "MOST_ROWS", 20)
    for _ in range(5):
        topics.send({topics.a: 4, topics.b: 2})
        topics.commit()
    topics.wait_for_ends(10, 6)


def test_a_batch_has_as_many_transactions_as_fit(topics, monkeypatch):
    monkeypatch.setattr(batch_planner, "MOST_ROWS", 20)
    for _ in range(5):
        topics.send({topics.a: 4, topics.b: 2})  # and two markers
        topics.commit()
    wait_for(lambda: topics.has_arrived(topics.b, 15), "all records")
    topics.wait_for_ends(10, 6)
    topics.advance()
    topics.wait_for_ends(20, 12)


def test_a_transaction_that_is_larger_than_a_batch_is_one(topics, monkeypatch):
    monkeypatch.setattr(batch_planner, "MOST_ROWS", 20)
    monkeypatch.setattr(tailed_source, "MOST_ROWS", 20)
    for source in topics.planner._sources:
        monkeypatch.setattr(source, "_options", replace(source._options, max_rows=20))
    topics.send({topics.a: 150, topics.b: 2})
    topics.commit()
    topics.wait_for_ends(151, 3)
    topics.advance()
    topics.send({topics.a: 500, topics.b: 500})  # far larger: it comes in parts
    topics.commit()
    a, b = wait_for(lambda: (ends := topics.ends()) != (151, 3) and ends, "a batch")
    assert 151 <= a < 652
    assert 3 <= b < 504


def test_records_of_another_program_do_not_wait_for_a_cut(topics):
    topics.send({topics.a: 1, topics.b: 1})
    topics.commit()
    topics.wait_for_ends(2, 2)
    topics.advance()
    topics.produce(topics.a)
    topics.wait_for_ends(3, 2)
    topics.advance()
    topics.send({topics.a: 1, topics.b: 1})
    topics.commit()
    topics.wait_for_ends(5, 4)


def test_a_commit_without_a_cut_waits_for_the_next(topics):
    """The part of a transaction that is too large for one of Kafka's."""
    topics.send({topics.a: 1, topics.b: 1})
    topics.commit()
    topics.wait_for_ends(2, 2)
    topics.advance()
    topics.send({topics.a: 3})
    topics.commit(with_cut=False)
    wait_for(lambda: topics.has_arrived(topics.a, 6), "the records")
    assert topics.ends() == (2, 2)
    topics.send({topics.b: 1})
    topics.commit()
    topics.wait_for_ends(6, 4)


def test_a_topic_that_was_created_again_does_not_wait_for_its_old_end(topics):
    topics.send({topics.a: 50, topics.b: 1})
    topics.commit()
    topics.wait_for_ends(51, 2)
    topics.admin.delete_topics([topics.a])[topics.a].result()
    topics.create(topics.a)
    topics.produce(topics.a)
    # A write that begins now has no earlier position.
    wait_for(lambda: topics.ends() == (1, 2), "a batch of the new topic")


def test_a_client_that_may_not_read_cuts_has_batches_without(topics, monkeypatch):
    def refused(*_: int) -> None:
        raise RequestRefused("__headwater_cuts cannot be read")

    monkeypatch.setattr(FollowedCuts, "_read", refused)
    topics.send({topics.a: 3})
    topics.commit()
    topics.wait_for_ends(4, 0)


class Query:
    """What Spark does with the sources of a query that reads both topics."""

    def __init__(self, topics, path, **bounds) -> None:
        options = [replace(topics.options(topic), ends=str(path)) for topic in (topics.a, topics.b)]
        options = [replace(given, **bounds) for given in options]
        self.recorded = [[{}, {}]]
        self._readers = [LogStreamReader(given, RAW) for given in options]
        sources = [Source(number, given, RAW) for number, given in enumerate(options)]
        self._plan = SimpleNamespace(sources=sources)
        self.batches = QueryBatches()
        for reader in self._readers:
            reader.prepareForTriggerAvailableNow()

    def begin(self) -> None:
        offsets = SimpleNamespace(last=lambda: SimpleNamespace(ends=self.recorded[-1]))
        self.batches.begin(self._plan, offsets)

    def next_ends(self):
        starts = zip(self._readers, self.recorded[-1], strict=True)
        return [reader.latestOffset(start, ReadAllAvailable()) for reader, start in starts]

    def run(self):
        """Ends of its micro-batches, but for the first one, which says where reading begins."""
        self.begin()
        while (ends := self.next_ends()) != self.recorded[-1]:
            self.recorded.append(ends)
            self.batches.plan_next()
        self.batches.close()
        return [
            tuple(at for of_topics in ends for at in of_topics.values())
            for ends in self.recorded[2:]
        ]


def test_micro_batches_of_a_query_end_behind_whole_transactions(topics, tmp_path):
    for _ in range(5):
        topics.send({topics.a: 4, topics.b: 2})  # and two markers
        topics.commit()
    query = Query(topics, tmp_path / "ends", max_rows=20)
    wanted = [({"0": 10}, {"0": 6}), ({"0": 20}, {"0": 12}), ({"0": 25}, {"0": 15})]
    assert query.run() == wanted
    query.begin()
    topics.send({topics.a: 4, topics.b: 2})
    topics.commit()
    assert query.next_ends() == query.recorded[-1]  # what has come since is for the next query
    query.batches.close()


def test_a_micro_batch_has_as_many_transactions_as_its_bytes_permit(topics, tmp_path):
    for _ in range(8):
        topics.send({topics.a: 10, topics.b: 10}, size_bytes=20_000)
        topics.commit()
    ends = Query(topics, tmp_path / "ends", max_bytes=700_000).run()
    numbers = [a["0"] // 11 for a, _ in ends]
    assert ends == [({"0": 11 * number}, {"0": 11 * number}) for number in numbers]
    assert numbers[-1] == 8
    assert 2 < len(ends) < 8


def test_the_last_micro_batch_has_records_of_another_program(topics, tmp_path):
    topics.send({topics.a: 1, topics.b: 1})
    topics.commit()
    topics.produce(topics.a)
    assert Query(topics, tmp_path / "ends").run()[-1] == ({"0": 3}, {"0": 2})


def test_sources_that_are_asked_from_other_offsets_have_no_micro_batch(topics, tmp_path):
    topics.send({topics.a: 1, topics.b: 1})
    topics.commit()
    query = Query(topics, tmp_path / "ends")
    query.begin()
    query.recorded.append([{topics.a: {"0": 1}}, {topics.b: {"0": 0}}])
    with pytest.raises(PipelineError, match="planned from other offsets"):
        query.next_ends()
    query.batches.close()
