"""Processes that write to topics are killed, stopped and woken: each row is there once."""

import os
import signal
from collections import Counter
from unittest.mock import Mock
from uuid import uuid4

import orjson
import pytest
from support.sinks.sink_killing import Drivers, KillContract
from support.sinks.sink_rows import batch
from support.sinks.topic_killing import (
    apply_batches,
    commit_batches,
    forked,
    kill_again_and_again,
    rows_of,
    store_of,
)
from support.sinks.topic_places import read_messages
from test_topic_contract import StagedTopics
from tiers import REAL_KAFKA, count, representative

from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable, StoreUnreachable
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log
from headwater.sinks.topic.transactional_positions import read_positions


@pytest.fixture(params=["headwater", REAL_KAFKA])
def address(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"topic_{request.param}")
    return found


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """Kafka's own transactions have been tested elsewhere."""
    is_ours = request.node.callspec.params["address"] == "headwater"
    return count(quick=6, full=30) if is_ours else count(quick=3, full=15)


def ids_in(address: str, topic: str) -> list[int]:
    return [orjson.loads(message.value())["id"] for message in read_messages(address, topic)]


def all_ids(batches: int) -> list[int]:
    return [row for number in range(batches) for row in rows_of(number)["id"].to_pylist()]


@representative
def test_a_sink_that_is_killed_again_and_again(address, kills) -> None:
    topic = f"kills-{uuid4().hex[:8]}"
    committed = kill_again_and_again(apply_batches, (address, topic), kills)
    with store_of(address, topic).writer(1, rows_of(0).schema) as writer:
        last = writer.position.batch
    assert ids_in(address, topic) == all_ids(last + 1)  # each once, and in their order
    assert last >= committed > 0


def test_sparks_writer_that_is_killed_again_and_again(address, kills, tmp_path) -> None:
    """A batch that is run again is cut into other tasks, and is there once all the same."""
    topic, checkpoint = f"kills-{uuid4().hex[:8]}", tmp_path / "checkpoint"
    committed = kill_again_and_again(commit_batches, (address, topic, str(checkpoint)), kills)
    batches = int(checkpoint.read_text()) + 2
    commit_batches(address, topic, str(checkpoint), 30, Mock(), batches)
    assert ids_in(address, topic) == all_ids(batches)
    stored = read_positions(Log(address))[f"/query/q-1/{topic}".encode()]
    assert orjson.loads(stored)["batch"] == batches - 1
    assert batches > committed > 0


def test_zombies_that_wake_up(address) -> None:
    """Stopped at any moment, replaced, and woken: they write nothing any more, and end."""
    topic, zombies, pipes = f"zombies-{uuid4().hex[:8]}", [], []
    context = forked()
    for seed in range(5):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=apply_batches, args=(address, topic, seed, theirs))
        process.start()
        for _ in range(seed + 2):
            ours.recv()
        pipes += [ours, theirs]  # one that is closed would end the zombie
        os.kill(process.pid, signal.SIGSTOP)
        zombies.append(process)
    store = store_of(address, topic)
    with store.writer(1, rows_of(0).schema) as writer:
        last = writer.position.batch
        for zombie in zombies:
            os.kill(zombie.pid, signal.SIGCONT)
        for zombie in zombies:
            zombie.join(60)
            assert zombie.exitcode == 0, "it was not refused"
        assert writer.position.batch == last
    for pipe in pipes:
        pipe.close()
    counts = Counter(ids_in(address, topic))
    assert sorted(counts) == sorted(all_ids(last + 1))
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["rows", "position", "commit"])
def test_a_fault_at_each_call_of_the_producer(address, monkeypatch, call, after) -> None:
    """In front of it or behind it: the next writer goes on; nothing is twice, nothing missing."""
    topic = f"faults-{uuid4().hex[:8]}"
    store = store_of(address, topic)
    left = ["commit"] if call == "commit" else ["send"] if call == "rows" else ["send", "send"]

    def fail_at(name: str) -> None:
        real = getattr(TransactionalProducer, name)

        def wrapped(self, *args):
            if not left or left[0] != name:
                return real(self, *args)
            left.pop(0)
            if left:
                return real(self, *args)
            if after:
                real(self, *args)
            raise BrokerUnreachable("a fault")

        monkeypatch.setattr(TransactionalProducer, name, wrapped)

    writer = store.writer(1, rows_of(0).schema)
    writer.apply(batch(0, rows_of(0)))
    fail_at("send")
    fail_at("commit")
    with writer, pytest.raises(StoreUnreachable):
        writer.apply(batch(1, rows_of(1)))
    assert not left
    with store.writer(1, rows_of(0).schema) as writer:
        assert writer.position.batch == (1 if call == "commit" and after else 0)
        writer.apply(batch(1, rows_of(1)))
        writer.apply(batch(2, rows_of(2)))
    assert ids_in(address, topic) == all_ids(3)


class TestStagedTopicKills(KillContract):
    """What encodes and what sends dies at every call of the client."""

    drivers = ("headwater.client",)

    @pytest.fixture
    def backend(self, topic_headwater):
        backend = StagedTopics(topic_headwater)
        new = NewTopic(backend.topic("killed"), backend.partitions, {"cleanup.policy": "compact"})
        ensure_topics(topic_headwater, ClientSettings(), [new])
        return backend

    @pytest.fixture
    def killing(self, backend, tmp_path):
        drivers = Drivers(backend, self.drivers, tmp_path)
        drivers.name = backend.topic("killed")
        yield drivers
        drivers.close()
