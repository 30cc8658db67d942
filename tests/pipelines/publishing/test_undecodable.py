"""Dead letters: each record once, whatever happens between two calls of the producer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.broker.queues import dead_letters as of_queues
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable, HeadwaterError, PipelineError, StoreUnreachable
from headwater.pipelines import offset_runs
from headwater.pipelines.decoding import Rejected
from headwater.pipelines.offset_runs import OffsetRuns
from headwater.pipelines.publishing import dead_letters, idempotent_publisher
from headwater.pipelines.publishing.dead_letters import DeadLetters, counts
from headwater.settings import ClientSettings
from headwater.sinks.topic import transactional_positions
from headwater.testing import InProcessBroker

LOGIN = ClientSettings()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    """A topic of this test alone, with two partitions."""
    name = f"orders-{abs(hash(request.node.nodeid))}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(name, 2, config={"max.message.bytes": "3000000"})
    admin.create_topics([new])[name].result(60)
    return name


@pytest.fixture
def letters(broker):
    opened = []

    def make(name: str) -> DeadLetters:
        opened.append(DeadLetters(broker.bootstrap, LOGIN, name))
        return opened[-1]

    yield make
    for written in opened:
        written.close()


def rejected(*offsets: int, size_bytes: int = 3) -> list[Rejected]:
    value, headers = b"x" * size_bytes, [("own", b"h")]
    return [
        Rejected(offset, f"bad {offset}", b"k%d" % offset, value, 1_000 + offset, headers)
        for offset in offsets
    ]


def stored(broker, topic: str, partition: int = 1) -> list:
    """The committed dead letters of a partition."""
    reader = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    reader.assign([TopicPartition(topic + ".dlq", partition, 0)])
    found = []
    try:
        while True:
            message = reader.poll(30)
            assert message is not None
            if message.error() is not None:
                return found
            found.append(message)
    finally:
        reader.close()


def offsets_in(messages) -> list[int]:
    return [int(dict(message.headers())["headwater.dlq.offset"]) for message in messages]


def test_a_dead_letter_is_the_record_with_its_cause(broker, topic, letters):
    assert letters("revenue").write(topic, 1, rejected(7)) == 1
    (letter,) = stored(broker, topic)
    assert (letter.key(), letter.value(), letter.timestamp()[1]) == (b"k7", b"xxx", 1_007)
    assert letter.headers() == [
        ("own", b"h"),
        ("headwater.dlq.cause", b"bad 7"),
        ("headwater.dlq.topic", topic.encode()),
        ("headwater.dlq.partition", b"1"),
        ("headwater.dlq.offset", b"7"),
        ("headwater.dlq.pipeline", b"revenue"),
        ("headwater.dlq.timestamp", b"1007"),
    ]
    assert (dead_letters.PREFIX, dead_letters.SUFFIX) == (
        of_queues.PREFIX,
        of_queues.DEAD_LETTERS_SUFFIX,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert len(admin.list_topics(topic + ".dlq").topics[topic + ".dlq"].partitions) == 2


def test_the_same_record_is_written_once_by_any_retry(broker, topic, letters):
    first = letters("copies")
    assert first.write(topic, 1, rejected(3, 5)) == 2
    assert first.write(topic, 1, rejected(3, 5, 9)) == 1  # the batch is replayed, and goes on
    second = letters("copies")  # another process
    assert second.write(topic, 1, rejected(3, 5, 9, 10)) == 1
    assert first.write(topic, 1, rejected(9, 10, 11)) == 1  # a zombie, that is no harm
    assert second.write(topic, 1, rejected(1, 11)) == 1  # out of order: another task's range
    assert offsets_in(stored(broker, topic)) == [3, 5, 9, 10, 11, 1]
    assert letters("other").write(topic, 1, rejected(3)) == 1
    assert letters("copies").write(topic, 0, rejected(3)) == 1
    assert counts(broker.bootstrap, LOGIN, "copies") == {(topic, 1): 6, (topic, 0): 1}
    assert counts(broker.bootstrap, LOGIN, "nobody") == {}


def test_two_tasks_share_a_partition(broker, topic, letters):
    """Each fences the other again and again."""
    tasks = [letters("shared"), letters("shared")]

    def run(number: int) -> int:
        first = number * 100
        return sum(
            tasks[number].write(topic, 1, rejected(first + n, first + n + 1)) for n in range(6)
        )

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (0, 1))) == [7, 7]
    assert sorted(offsets_in(stored(broker, topic))) == [*range(7), *range(100, 107)]
    assert counts(broker.bootstrap, LOGIN, "shared") == {(topic, 1): 14}


def test_large_and_many_records(broker, topic, letters, monkeypatch):
    monkeypatch.setattr(idempotent_publisher, "_PIECE_BYTES", 100_000)
    first = letters("large")
    assert first.write(topic, 1, rejected(*range(0, 4_000, 2), size_bytes=200)) == 2_000
    assert first.write(topic, 1, rejected(9_000, size_bytes=2_900_000)) == 1
    assert letters("large").write(topic, 1, rejected(*range(0, 4_000, 2))) == 0
    assert offsets_in(stored(broker, topic)) == [*range(0, 4_000, 2), 9_000]


class Failing(TransactionalProducer):
    """Fails once: at the call of this number, before it has done anything or after."""

    fails_at = 0
    is_done_before = False

    def _counted(self, call, *arguments):
        kind = type(self)
        kind.fails_at -= 1
        if kind.fails_at != 0:
            return call(*arguments)
        if kind.is_done_before:
            call(*arguments)
        raise BrokerUnreachable("no answer")

    def fence(self) -> None:
        self._counted(super().fence)

    def send(self, batches):
        return self._counted(super().send, batches)

    def commit(self) -> None:
        self._counted(super().commit)


CALLS = 6  # fence, letters, position, commit; and of a second write letters and position


@pytest.mark.parametrize(
    ("call", "is_done_before", "is_same_process"),
    [
        *((call, is_done, False) for call in range(1, CALLS + 1) for is_done in (False, True)),
        *((call, True, True) for call in (2, 4, 6)),
    ],
)
def test_failing_at_any_call_loses_and_repeats_nothing(
    broker, topic, letters, monkeypatch, call, is_done_before, is_same_process
):
    monkeypatch.setattr(transactional_positions, "TransactionalProducer", Failing)
    monkeypatch.setattr(Failing, "fails_at", call)
    monkeypatch.setattr(Failing, "is_done_before", is_done_before)
    name = f"p{call}{is_done_before}{is_same_process}"
    now = letters(name)
    failures = 0
    for wanted in (rejected(1, 2), rejected(2, 3), rejected(5)):
        while True:
            try:
                now.write(topic, 1, wanted)
                break
            except StoreUnreachable:
                failures += 1
                now = now if is_same_process else letters(name)
    assert failures == 1
    assert offsets_in(stored(broker, topic)) == [1, 2, 3, 5]
    assert counts(broker.bootstrap, LOGIN, name) == {(topic, 1): 4}


def test_an_invalid_note_is_reported(broker, topic, letters):
    letters("broken").write(topic, 1, rejected(1))
    producer = TransactionalProducer(broker.bootstrap, "x", login=LOGIN)
    builder = BatchBuilder()
    builder.append(f"/dlq/broken/{topic}/1".encode(), b"?", (), 0)
    with producer:
        producer.fence()
        producer.send({("__headwater_positions", 0): [builder]})
        producer.commit()
    with pytest.raises(PipelineError, match="cannot be read"):
        letters("broken").write(topic, 1, rejected(2))
    with pytest.raises(HeadwaterError):
        counts(broker.bootstrap, LOGIN, "broken")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), min_size=1), max_size=8))
def test_runs_are_the_set_of_their_offsets(additions):
    runs, members = OffsetRuns(), set()
    for offsets in additions:
        runs = OffsetRuns.from_text(runs.with_offsets(offsets).to_text())
        members |= set(offsets)
        assert runs.has(range(-1, 63)) == [offset in members for offset in range(-1, 63)]


def test_beyond_their_limit_the_lowest_runs_grow_together(monkeypatch):
    monkeypatch.setattr(offset_runs, "MAX_RUNS", 3)
    runs = OffsetRuns().with_offsets([0, 10, 20, 30, 40])
    assert runs.has([0, 5, 10, 15, 20, 25, 30, 35, 40, 41]) == [True] * 5 + [
        False,
        True,
        False,
        True,
        False,
    ]
