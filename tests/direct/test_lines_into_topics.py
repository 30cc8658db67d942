"""Lines and the position in their file are one transaction, on our broker and on Apache Kafka."""

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from support.direct.topic_reading import TIMEOUT_S, Reading
from tiers import REAL_KAFKA, count

from headwater.client.writing.transactions import TransactionalProducer
from headwater.direct.files.following import FollowedFile
from headwater.direct.files.writing import LineWriter
from headwater.errors import BrokerUnreachable, Fenced, HeadwaterError
from headwater.inspect.record_json import Record
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker


@pytest.fixture(params=["broker", REAL_KAFKA])
def address(request):
    return request.getfixturevalue("kafka_address" if request.param == "kafka" else request.param)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "app.log"


def writer_of(address, topic, **options):
    return LineWriter(
        address, ClientSettings(), topic, "test", parse=lambda line: Record(None, line),
        max_line_bytes=1000, patience_s=60, **options,
    )  # fmt: skip


def write_all(address, topic, path):
    """As one run of the command; what it has written when it fails stays written."""
    with writer_of(address, topic) as writer:
        followed = FollowedFile(path, writer.position, max_line_bytes=1000, report=pytest.fail)
        try:
            while (found := followed.read()) is not None:
                assert writer.write(found, followed) is None
        finally:
            followed.close()


def values(address, topic, number):
    reading = Reading(address, topic)
    try:
        return reading.await_count(number).values
    finally:
        reading.close()


@pytest.mark.parametrize("call", ["lines", "position", "commit"])
@pytest.mark.parametrize("after", [False, True])
def test_a_fault_at_each_call_of_the_producer(monkeypatch, address, path, call, after):
    topic = f"lines-{uuid4().hex[:8]}"
    path.write_bytes(b"1\n2\n")
    write_all(address, topic, path)
    path.write_bytes(b"1\n2\n3\n4\n")
    number = {"lines": 1, "position": 2, "commit": 1}[call]
    name = "commit" if call == "commit" else "send"
    calls, real = itertools.count(1), getattr(TransactionalProducer, name)

    def faulty(self, *args):
        is_now = next(calls) == number
        if is_now and not after:
            raise BrokerUnreachable("a fault")
        result = real(self, *args)
        if is_now:
            raise BrokerUnreachable("a fault")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(TransactionalProducer, name, faulty)
        with pytest.raises(BrokerUnreachable):
            write_all(address, topic, path)
    path.write_bytes(b"1\n2\n3\n4\n5\n")
    write_all(address, topic, path)
    assert values(address, topic, 5) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_writer_that_was_replaced_is_fenced(address, path):
    topic = f"lines-{uuid4().hex[:8]}"
    path.write_bytes(b"1\n")
    with writer_of(address, topic) as first:
        followed = FollowedFile(path, None, max_line_bytes=1000, report=pytest.fail)
        found = followed.read()
        write_all(address, topic, path)
        with pytest.raises(Fenced):
            first.write(found, followed)
        followed.close()
    path.write_bytes(b"1\n2\n")
    write_all(address, topic, path)
    assert values(address, topic, 2) == [b"1", b"2"]


def test_a_file_whose_name_is_no_text(address, tmp_path):
    topic, path = f"lines-{uuid4().hex[:8]}", tmp_path / os.fsdecode(b"app\xff.log")
    path.write_bytes(b"1\n")
    write_all(address, topic, path)
    path.write_bytes(b"1\n2\n")
    write_all(address, topic, path)
    assert values(address, topic, 2) == [b"1", b"2"]


def test_names_of_any_length_and_alphabet(address, path):
    topic = f"lines-{'x' * 200}{uuid4().hex[:8]}"
    path.write_bytes(b"1\n")
    for name in ("a" * 3000, "größe/\udcff"):
        with LineWriter(
            address, ClientSettings(), topic, name, parse=lambda line: Record(b"k", line),
            max_line_bytes=10,
        ) as writer:  # fmt: skip
            assert writer.position is None


def test_a_line_that_the_broker_refuses_ends_it_with_a_reason(broker, path, topic):
    path.write_bytes(b"x" * 3_000_000 + b"\n")
    with LineWriter(
        broker, ClientSettings(), topic, "large", parse=lambda line: Record(None, line),
        max_line_bytes=1 << 30,
    ) as writer:  # fmt: skip
        followed = FollowedFile(path, None, max_line_bytes=1 << 30, report=pytest.fail)
        with pytest.raises(HeadwaterError, match="does not take 3000074 bytes"):
            writer.write(followed.read(), followed)
        followed.close()


def test_a_broker_that_crashes_under_it(tmp_path, path):
    """Some transactions are aborted by that, and are written again by the same writer."""
    broker = InProcessBroker(str(tmp_path / "data"))
    broker.start()
    lines: list[bytes] = []
    is_done = threading.Event()

    def follow():
        with writer_of(broker.bootstrap, "lines") as writer:
            followed = FollowedFile(path, None, max_line_bytes=1000, report=pytest.fail)
            while not (is_done.is_set() and writer.records == len(lines)):
                found = followed.read()
                if found is not None:
                    assert writer.write(found, followed) is None
            followed.close()

    path.touch()
    try:
        with ThreadPoolExecutor() as pool:
            following = pool.submit(follow)
            try:
                for crash in range(count(quick=2, full=15)):
                    for number in range(30):
                        lines.append(b"%d-%d" % (crash, number))
                        with path.open("ab") as file:
                            file.write(lines[-1] + b"\n")
                        time.sleep(0.002)
                    broker.restart(crash=True)
            finally:
                is_done.set()
            following.result(TIMEOUT_S)
        assert values(broker.bootstrap, "lines", len(lines)) == lines
    finally:
        broker.stop()
