"""Records that tasks encode for a topic: the same as the driver's, and nobody else sends any."""

from contextlib import closing

import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID
from support.sinks.sink_rows import batch, position, rows_of, table
from support.sinks.staged_store import numbered_tasks
from test_topic_contract import StagedTopics

from headwater.errors import Fenced, NotStaged
from headwater.sinks.contract import Target


@pytest.fixture
def backend(topic_headwater):
    backend = StagedTopics(topic_headwater)
    backend.is_staged = False  # the tests do it
    return backend


def without_rows(number, fields=ID):
    return batch(number, fields.empty_table())


def some_rows(number=0):
    rows = [{"id": at * 7 % 50, "v": f"{number}.{at}"} for at in range(200)]
    return table(ID, rows, ["d" if at % 5 == 0 else "u" for at in range(200)])


@pytest.mark.parametrize("value", ["json", "debezium"])
def test_every_partition_has_the_records_in_log_order(backend, value):
    rows = some_rows()
    written = {}
    for name in ("by-tasks", "by-the-driver"):
        target = Target("shop", name, ("id",), {"value": value})
        with closing(backend.store(target)) as store, store.writer(1, ID) as writer:
            if name == "by-tasks":
                staging = writer.staging(without_rows(0))
                tasks = numbered_tasks(rows, staging)
                assert len(tasks) == backend.partitions
                tokens = [staging.stage(iter([task]), "1") for task in tasks]
                writer.commit(without_rows(0), tokens)
            else:
                writer.apply(batch(0, rows))
            assert writer.position == position(0)
            found = rows_of(store)
        written[name] = (
            found,
            [
                [
                    (key, value and value.partition(b',"source"')[0])
                    for key, value in backend.records(name, partition)
                ]
                for partition in range(backend.partitions)
            ],
        )
    assert written["by-tasks"] == written["by-the-driver"]
    assert all(written["by-tasks"][1])


def test_attempts_that_nobody_commits_have_sent_nothing(backend):
    target = Target("shop", "orders", ("id",))
    with closing(backend.store(target)) as store, store.writer(1, ID) as zombie:
        staging = zombie.staging(without_rows(0))
        tasks = numbered_tasks(some_rows(), staging)
        tokens = [staging.stage(iter([task]), "1") for task in tasks]
        staging.stage(iter([some_rows(1)]), "2")
        with store.writer(1, ID) as writer:
            with pytest.raises(Fenced):
                zombie.commit(without_rows(0), tokens)
            writer.commit(without_rows(0), tokens)
            writer.commit(without_rows(0), tokens)  # the response was lost
            staging.stage(iter([some_rows(2)]), "3")  # it has woken up
            writer.apply(batch(1, table(ID, [{"id": 1000, "v": "x"}])))
    assert len(backend.records("orders")) == 201


@pytest.mark.parametrize(
    ("key", "partitions"), [((), "3"), (("id",), "1")], ids=["without a key", "one partition"]
)
def test_records_of_one_partition_are_left_to_the_driver(backend, key, partitions):
    target = Target("shop", "orders", key, {"partitions": partitions})
    with (
        closing(backend.store(target)) as store,
        store.writer(1, ID) as writer,
        pytest.raises(NotStaged, match="one partition"),
    ):
        writer.staging(without_rows(0))


def test_avro_is_left_to_the_driver(backend):
    target = Target("shop", "orders", ("id",), {"value": "avro"})
    with (
        closing(backend.store(target)) as store,
        store.writer(1, ID) as writer,
        pytest.raises(NotStaged, match="schemas"),
    ):
        writer.staging(without_rows(0))


def test_bytes_with_partitions_of_their_own(backend):
    fields = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])
    rows = pa.Table.from_pylist(
        [{"key": b"%d" % at, "value": b"v", "partition": at % 2 or None} for at in range(40)],
        fields,
    )
    target = Target("shop", "raw", ("key",), {"value": "bytes"})
    with closing(backend.store(target)) as store, store.writer(1, fields) as writer:
        staging = writer.staging(without_rows(0, fields))
        tokens = [staging.stage(iter([task]), "1") for task in numbered_tasks(rows, staging)]
        writer.commit(without_rows(0, fields), tokens)
    odd = [key for key, _ in backend.records("raw", 1) if int(key) % 2]
    assert odd == [b"%d" % at for at in range(1, 40, 2)]
    assert len(backend.records("raw")) == 40
