"""The broker dies at one chosen step of its work; the log is whole when it is opened again."""

import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import SUPPORT, wire
from support.wire import Wire, batch_of
from tiers import in_full

from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
)
from headwater.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
)
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

DYING = str(SUPPORT / "crash" / "dying_broker.py")
PRODUCER_ID = 4711
ROUNDS = 10_000  # far more than any of the moments needs
LOG, INDEX = r"events-0/\d+\.log$", r"events-0/\d+\.(time)?index$"
SUCCESSOR = r"events-0/0*[1-9]\d*\.log$"  # of the first segment


@dataclass
class Outcome:
    """What a client knows when its connection breaks."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)  # offset -> value
    unanswered: list[tuple[int, bytes]] = field(default_factory=list)  # sequence, value


def _run_until_death(data_dir: Path, *moment: str, work) -> None:
    """`work` is given the broker's address; the broker has to die during it."""
    command = [sys.executable, DYING, str(data_dir), *moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            address = child.stdout.readline().decode().strip()
            assert address, "it died before it was ready"
            work(address)
            assert child.wait(60) == 137
        finally:
            child.kill()


def _batch(sequence: int) -> bytearray:
    value = b"%d" % sequence + bytes(200)
    return batch_of(value, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)


def _produce(address: str, outcome: Outcome) -> None:
    """One record after the other, as an idempotent producer, until the broker has ended."""
    with Wire(address) as client:
        client.create_topic("events")
        for sequence in range(ROUNDS):
            value = b"%d" % sequence + bytes(200)
            try:
                answer = client.produce("events", _batch(sequence))
            except OSError:
                outcome.unanswered.append((sequence, value))
                return
            assert answer.error_code == 0
            outcome.acknowledged[answer.base_offset] = value
    pytest.fail("the broker outlived all of it")


def _stored(address: str, topic: str = "events") -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    with Wire(address) as client:
        while True:
            offset = found[-1][0] + 1 if found else 0
            answer = client.fetch(topic, offset)
            assert answer.error_code == 0
            if offset == answer.high_watermark:
                return found
            records = wire.records_in(answer.records)
            found += [
                (record.offset, record.value) for record in records if record.offset >= offset
            ]


def _killed_while_writing(
    tmp_path: Path, method: str, pattern: str, nth: int, moment: str
) -> tuple[Path, Outcome]:
    """Checkpoints come by the clock: on a busy machine also before there is a topic. Then a later
    one is taken.
    """
    for later in range(0, 100, 10):
        data_dir, outcome = tmp_path / str(later), Outcome()
        try:
            _run_until_death(
                *(data_dir, method, pattern, str(nth + later), moment),
                work=lambda address, outcome=outcome: _produce(address, outcome),
            )
        except ConnectionError:
            assert method in ("rename", "unlink")
        else:
            return data_dir, outcome
    pytest.fail("it always died before there was a topic")


@pytest.mark.slow
@pytest.mark.parametrize("nth", [12, *in_full(1)])
@pytest.mark.parametrize(
    ("method", "pattern", "moment"),
    [
        ("pwritev", LOG, "before"),
        ("pwritev", LOG, "half"),  # a torn write
        ("pwritev", LOG, "after"),  # written, not synced
        ("fdatasync", LOG, "before"),
        ("fdatasync", LOG, "after"),  # durable, not acknowledged
        ("open", SUCCESSOR, "before"),  # the next segment begins
        ("open", SUCCESSOR, "after"),
        ("pwrite", INDEX, "half"),
        ("fdatasync", INDEX, "before"),  # a segment is sealed
        ("sync_directory", r"events-0$", "before"),
        ("rename", r"recovery-point-offset-checkpoint\.tmp$", "before"),
        ("rename", r"recovery-point-offset-checkpoint\.tmp$", "after"),
        ("rename", r"events-0/\d+\.snapshot\.tmp$", "before"),
        ("rename", r"events-0/\d+\.snapshot\.tmp$", "after"),
        ("unlink", r"events-0/\d+\.snapshot$", "before"),  # the old one, behind the new
        ("unlink", r"events-0/\d+\.snapshot$", "after"),
    ],
)
def test_while_writing(tmp_path, method, pattern, moment, nth):
    if nth > 4 and method in ("rename", "unlink"):
        nth = 4  # they come with checkpoints, ten in a second
    data_dir, outcome = _killed_while_writing(tmp_path, method, pattern, nth, moment)
    broker = InProcessBroker(str(data_dir))
    broker.start()
    stored = _stored(broker.bootstrap)
    # What was acknowledged is there; behind it at most the one record without an answer.
    assert stored[: len(outcome.acknowledged)] == sorted(outcome.acknowledged.items())
    extra = [value for _, value in stored[len(outcome.acknowledged) :]]
    ((sequence, value),) = outcome.unanswered
    assert extra in ([], [value])
    # The producer repeats it, also after another crash, and it is there once.
    for _ in range(2):
        with Wire(broker.bootstrap) as client:
            answer = client.produce("events", _batch(sequence))
            assert (answer.error_code, answer.base_offset) == (0, len(outcome.acknowledged))
        broker.restart(crash=True)
    with Wire(broker.bootstrap) as client:
        answer = client.produce("events", _batch(sequence + 1))
        assert (answer.error_code, answer.base_offset) == (0, sequence + 1)
    broker.restart()
    assert [value for _, value in _stored(broker.bootstrap)][:-1] == [
        *(value for _, value in sorted(outcome.acknowledged.items())),
        value,
    ]
    broker.stop()


# ── topics ────────────────────────────────────────────────────────────────────────────────────


def _ask(address: str, request, version: int) -> bool:
    """Whether it was answered."""
    with Wire(address) as client:
        try:
            client.ask(request, version)
        except OSError:
            return False
    return True


def _topics(address: str) -> dict[str, int]:
    with Wire(address) as client:
        answer = client.ask(MetadataRequest(topics=None), 12)
    return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.is_internal}


def _creation(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequestCreatableTopic(name=name, num_partitions=3, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000)


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_while_a_topic_is_created(tmp_path, moment):
    data_dir = tmp_path / "data"
    answered = []

    def work(address: str) -> None:
        answered.append(_ask(address, _creation("first"), 7))
        answered.append(_ask(address, _creation("second"), 7))

    _run_until_death(data_dir, "pwrite", r"catalog\.jsonl$", "2", moment, work=work)
    assert answered == [True, False]
    with InProcessBroker.serving(str(data_dir)) as broker:
        expected = {"first": 3, "second": 3} if moment == "after" else {"first": 3}
        assert _topics(broker.bootstrap) == expected
        assert _ask(broker.bootstrap, _creation("third"), 7)
        broker.restart(crash=True)
        assert _topics(broker.bootstrap) == expected | {"third": 3}


@pytest.mark.parametrize(
    ("method", "pattern", "moment"),
    [
        ("pwrite", r"catalog\.jsonl$", "before"),
        ("pwrite", r"catalog\.jsonl$", "half"),
        ("fdatasync", r"catalog\.jsonl$", "after"),
        ("rename", r"/events-0$", "before"),
        ("rename", r"/events-0$", "after"),
        ("rmtree", r"/events-0\..*deleted$", "before"),
    ],
)
def test_while_a_topic_is_deleted(tmp_path, method, pattern, moment):
    data_dir = tmp_path / "data"
    settings = BrokerSettings(listen="127.0.0.1:0", topic_defaults={"segment.bytes": "4096"})
    with (
        InProcessBroker.serving(str(data_dir), settings) as broker,
        Wire(broker.bootstrap) as client,
    ):
        client.create_topic("events")
        for sequence in range(100):
            client.produce("events", _batch(sequence))
    deletion = DeleteTopicsRequest(
        topics=[DeleteTopicsRequestDeleteTopicState(name="events")], timeout_ms=1000
    )
    answered = []

    def work(address: str) -> None:
        thread = threading.Thread(target=lambda: answered.append(_ask(address, deletion, 6)))
        thread.start()
        thread.join(60)

    _run_until_death(data_dir, method, pattern, "1", moment, work=work)
    broker = InProcessBroker(str(data_dir))
    broker.start()
    if "events" in _topics(broker.bootstrap):
        # Then it is whole, and the deletion was not answered.
        assert (method, answered) == ("pwrite", [False])
        assert len(_stored(broker.bootstrap)) == 100
        assert _ask(broker.bootstrap, deletion, 6)
    # A new topic of that name has nothing of the old one, also after the next starts.
    with Wire(broker.bootstrap) as client:
        client.create_topic("events")
        assert client.fetch("events", 0).high_watermark == 0
        assert client.produce("events", batch_of(b"new")).base_offset == 0
    for crash in (True, False):
        broker.restart(crash=crash)
        assert _stored(broker.bootstrap) == [(0, b"new")]
    broker.stop()
    assert not [path.name for path in data_dir.iterdir() if path.name.endswith("deleted")]
