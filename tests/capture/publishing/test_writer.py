"""Source transactions into Kafka transactions: whole, in order, few, and bounded in bytes."""

import threading

import pytest
from support.wire import wait_until

from headwater.capture.contract import SourcePosition
from headwater.capture.positions import TOPIC, CapturePosition, decode
from headwater.capture.publishing import writer as writer_module
from headwater.capture.publishing.cuts import TOPIC as CUTS
from headwater.capture.publishing.cuts import Cuts
from headwater.capture.publishing.cuts import decode as decode_cut
from headwater.capture.publishing.writer import Stopped, Writer
from headwater.errors import RequestRefused
from headwater.protocol.records import records_of


class Broker:
    """Stands for the producer: records what is committed, and can be held up or made to fail."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.failure: Exception | None = None
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.committed: list[list[tuple[str, bytes, bytes]]] = []
        self.sends = 0
        self.ends: dict[tuple[str, int], int] = {}
        self.aborts = 0

    def send(self, batches) -> dict[tuple[str, int], int]:
        assert self.may_go.wait(60)
        if self.failure is not None:
            raise self.failure
        self.sends += 1
        for (topic, _), builders in batches.items():
            for builder in builders:
                for record in records_of(bytes(builder.build(0))):
                    self.sent.append((topic, record.key, record.value))
        for partition, builders in batches.items():
            count = sum(builder.count for builder in builders)
            self.ends[partition] = self.ends.get(partition, 0) + count
        return {partition: self.ends[partition] for partition in batches}

    def commit(self) -> None:
        self.committed.append(self.sent)
        self.sent = []

    def abort(self) -> None:
        self.aborts += 1
        self.sent = []

    def data(self) -> list[list[bytes]]:
        return [
            [v for topic, _, v in commit if topic not in (TOPIC, CUTS)] for commit in self.committed
        ]


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def committed():
    return []


@pytest.fixture
def writer(broker, committed):
    writer = Writer(broker, b"shop", Cuts("shop", {}), committed.append)
    yield writer
    broker.may_go.set()
    writer.close()


def at(number: int) -> CapturePosition:
    return CapturePosition(SourcePosition({"n": number}), 1000 + number)


def transaction(writer, number: int, values: list[bytes]) -> None:
    writer.begin()
    for value in values:
        writer.append("t", 1, b"k", value, (), 0)
    writer.commit(at(number))


def test_changes_and_position_are_in_one_kafka_transaction(writer, broker, committed):
    writer.begin()
    writer.append("t", 1, b"k", b"v", (("h", b"x"),), 7)
    writer.state(b"shop/public.t", b"{}")
    writer.commit(at(1))
    wait_until(lambda: committed)
    (records,) = broker.committed
    assert [(topic, key) for topic, key, _ in records] == [
        ("t", b"k"),
        (TOPIC, b"shop/public.t"),
        (TOPIC, b"shop"),
        (CUTS, b"shop/%d" % (writer.durable.written_ms // 1000 % 86_400)),
    ]
    assert decode_cut(*records[-1][1:]).ends == {("t", 0): (0, 2)}, "behind the marker"
    stored = decode("shop", {records[-2][1]: records[-2][2]})
    assert stored.capture.position == SourcePosition({"n": 1})
    assert writer.durable.position == SourcePosition({"n": 1})
    assert (committed[0].transactions, committed[0].records) == (1, 1)


def test_states_may_be_more_than_a_batch_holds(writer, broker, committed):
    writer.begin()
    for number in range(300):
        writer.state(b"shop/table %d" % number, b"x" * 10_000)
    writer.commit(at(1))
    wait_until(lambda: committed)
    (records,) = broker.committed
    assert len(records) == 301
    assert records[-1][1] == b"shop"


def test_transactions_gather_while_one_is_on_its_way(writer, broker, committed):
    broker.may_go.clear()
    for number in range(100):
        transaction(writer, number, [b"%d" % number] * 3)
    broker.may_go.set()
    wait_until(lambda: sum(commit.transactions for commit in committed) == 100)
    assert [v for values in broker.data() for v in values] == [b"%d" % (n // 3) for n in range(300)]
    assert len(broker.committed) == 2
    assert writer.durable.position == SourcePosition({"n": 99})


def test_a_transaction_that_is_not_whole_is_never_committed(writer, broker, committed):
    transaction(writer, 1, [b"a"])
    wait_until(lambda: committed)
    writer.begin()
    writer.append("t", 1, None, b"b", (), 0)
    assert not writer.wait_until_durable(0.05) or broker.data() == [[b"a"]]
    writer.commit(at(2))
    wait_until(lambda: len(broker.committed) == 2)
    assert broker.data() == [[b"a"], [b"b"]]


def test_a_source_that_is_never_idle_gets_its_transactions_committed(writer, broker, committed):
    for number in range(2000):
        transaction(writer, number, [b"x" * 100] * 5)
    assert writer.wait_until_durable(30)
    assert sum(commit.transactions for commit in committed) == 2000
    assert sum(len(values) for values in broker.data()) == 10_000


def test_a_large_transaction_goes_in_parts_of_one(writer, broker, committed, monkeypatch):
    monkeypatch.setattr(writer_module, "PART_BYTES", 10_000)
    transaction(writer, 0, [b"first"])
    transaction(writer, 1, [b"%0100d" % n for n in range(1000)])
    assert writer.wait_until_durable(30)
    assert broker.sends > 5
    values = [v for values in broker.data() for v in values]
    assert values == [b"first", *(b"%0100d" % n for n in range(1000))]
    assert any(sent[-1000:] == values[1:] for sent in broker.data())
    assert sum(commit.records for commit in committed) == 1001
    assert sum(commit.transactions for commit in committed) == 2
    assert writer.transaction_bytes == 0


def test_a_transaction_can_be_split(writer, broker, committed, monkeypatch):
    monkeypatch.setattr(writer_module, "PART_BYTES", 1_000)
    writer.begin()
    for number in range(100):
        writer.append("t", 1, None, b"%0100d" % number, (), 0)
        if number == 49:
            assert writer.transaction_bytes > 0
            writer.commit(CapturePosition(SourcePosition({"n": 1}, 50), 0), 0)
            writer.begin()
    writer.commit(at(1))
    assert writer.wait_until_durable(30)
    assert len(broker.committed) >= 2
    assert [v for values in broker.data() for v in values] == [b"%0100d" % n for n in range(100)]
    cuts = [record for commit in broker.committed for record in commit if record[0] == CUTS]
    assert [decode_cut(*record[1:]).ends for record in cuts] == [{("t", 0): (0, 101)}]
    assert cuts[0] in broker.committed[-1], "not in the midst of the transaction"


def test_what_gathers_is_bounded_in_bytes(writer, broker, monkeypatch):
    monkeypatch.setattr(writer_module, "GROUP_BYTES", 10_000)
    broker.may_go.clear()
    written = []

    def write() -> None:
        for number in range(100):
            transaction(writer, number, [b"x" * 1000])
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(written) >= 10)
    thread.join(0.2)
    assert thread.is_alive()
    assert len(written) < 25
    broker.may_go.set()
    thread.join(60)
    assert writer.wait_until_durable(30)
    assert sum(len(values) for values in broker.data()) == 100


def test_the_failure_of_the_sender_reaches_the_runner(writer, broker):
    broker.failure = OSError("gone")
    transaction(writer, 1, [b"a"])
    with pytest.raises(OSError, match="gone"):
        for number in range(10_000):
            transaction(writer, number, [b"x" * 10_000])
    with pytest.raises(OSError, match="gone"):
        writer.check()
    assert writer.durable is None


def test_waiting_for_room_is_signalled(broker, committed):
    waited = []
    writer = Writer(
        broker, b"shop", Cuts("shop", {}), committed.append, while_waiting=lambda: waited.append(1)
    )
    broker.may_go.clear()

    def let_go() -> None:
        wait_until(lambda: waited)
        broker.may_go.set()

    helper = threading.Thread(target=let_go)
    helper.start()
    try:
        for number in range(300):
            transaction(writer, number, [b"x" * 100_000])
    finally:
        helper.join()
        writer.close()
    assert waited


def test_what_the_broker_refuses_is_aborted_so_that_no_reader_waits(writer, broker):
    broker.failure = RequestRefused("no")
    transaction(writer, 1, [b"a"])
    wait_until(lambda: broker.aborts == 1)
    with pytest.raises(RequestRefused):
        writer.check()


def test_what_was_sent_in_part_is_aborted_at_the_end(writer, broker, monkeypatch):
    monkeypatch.setattr(writer_module, "PART_BYTES", 1_000)
    writer.begin()
    for _ in range(20):
        writer.append("t", 1, None, b"x" * 100, (), 0)
    wait_until(lambda: broker.sends)
    writer.close()
    assert (broker.aborts, broker.committed) == (1, [])


@pytest.mark.parametrize("is_whole", [True, False])
def test_after_a_stop_the_broker_is_not_waited_for(broker, monkeypatch, is_whole):
    monkeypatch.setattr(writer_module, "STOP_S", 0.1)
    monkeypatch.setattr(writer_module, "GROUP_BYTES" if is_whole else "PART_BYTES", 1_000)
    stop = threading.Event()
    writer = Writer(broker, b"shop", Cuts("shop", {}), lambda committed: None, stop)
    broker.may_go.clear()
    stop.set()
    with pytest.raises(Stopped):
        for number in range(100):
            transaction(writer, number, [b"x" * 100] * 5)
    broker.may_go.set()
    writer.close()


def test_keys_and_headers_count(writer, broker, monkeypatch):
    monkeypatch.setattr(writer_module, "PART_BYTES", 10_000)
    writer.begin()
    for _ in range(3):
        writer.append("t", 1, b"k" * 4_000, None, (("h", b"x" * 4_000),), 0)
    wait_until(lambda: broker.sends == 1)
    writer.commit(at(1))
    assert writer.wait_until_durable(30)
