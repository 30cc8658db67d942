"""Columns that change while a pipeline runs, on topics as a capture writes them."""

import threading
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.errors import PipelineError
from headwater.pipelines.running import schema_watch
from headwater.pipelines.running.schema_watch import SchemaChanged, SchemaWatch
from headwater.sinks.contract import Log


class Reader:
    """What the columns are is read from the topics elsewhere (decoding/captured.py)."""

    def __init__(self, topic):
        self.captured = {topic: "old"}
        self.now = "old"

    def schema_of(self, topic):
        return self.now


@pytest.fixture
def capture(broker_address):
    name = f"cap-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    topics = [NewTopic(f"{name}.schema", 3, 1), NewTopic("__headwater_positions", 1, 1)]
    for topic, made in admin.create_topics(topics).items():
        if topic != "__headwater_positions" or made.exception() is None:
            made.result()
    return name


@pytest.fixture
def producer(broker_address):
    made = Producer(
        {"bootstrap.servers": broker_address, "transactional.id": f"t-{uuid.uuid4().hex[:8]}"}
    )
    made.init_transactions()
    return made


@pytest.fixture
def watch_of(broker_address):
    made = []

    def watch(reader):
        made.append(SchemaWatch(reader, Log(broker_address)))
        return made[-1]

    yield watch
    for opened in made:
        opened.close()


def test_a_change_is_found_in_any_partition(capture, producer, watch_of):
    reader = Reader(f"{capture}.public.orders")
    watch = watch_of(reader)
    watch()
    for partition in (0, 1, 2):
        producer.begin_transaction()
        producer.produce(f"{capture}.schema", b"{}", partition=partition)
        producer.commit_transaction()
        watch()  # another table's
        reader.now = f"new {partition}"
        watch()  # nothing was written since
        producer.begin_transaction()
        producer.produce(f"{capture}.schema", b"{}", partition=partition)
        producer.commit_transaction()
        with pytest.raises(SchemaChanged):
            watch()
        with pytest.raises(SchemaChanged):
            watch()  # another write of the same flow
        reader.now = "old"
        watch()


def test_one_that_is_written_and_not_yet_committed_is_waited_for(
    capture, producer, watch_of, monkeypatch
):
    """A row may be read a moment before it is committed in the partition of schemas."""
    reader = Reader(f"{capture}.public.orders")
    watch = watch_of(reader)
    producer.begin_transaction()
    producer.produce(f"{capture}.schema", b"{}", partition=1)
    producer.flush()
    found = []

    def look():
        try:
            watch()
            found.append(None)
        except PipelineError as error:
            found.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(0.5)
    assert not found
    reader.now = "new"
    producer.commit_transaction()
    thread.join(60)
    assert isinstance(found[0], SchemaChanged)

    monkeypatch.setattr(schema_watch, "_COMMITTED_S", 0.2)
    reader.now = "old"
    watch()
    producer.begin_transaction()
    producer.produce("__headwater_positions", b"{}", b"somebody's", partition=0)
    producer.produce(f"{capture}.schema", b"{}", partition=1)
    producer.flush()
    with pytest.raises(
        PipelineError, match=r"cannot be ruled out yet: a transaction in .* is open"
    ):
        watch()
    producer.abort_transaction()
    watch()


def test_without_captured_tables_no_source_is_asked():
    reader = Reader("x")
    reader.captured = {}
    SchemaWatch(reader, Log("127.0.0.1:1"))()
