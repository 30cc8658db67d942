"""Started and ended again and again, in every rude way: nothing is left behind, nothing is lost.

Meanwhile one producer writes to a topic and notes what was acknowledged, and rows are inserted into
the captured database. The full tier makes 50 rounds of it.
"""

import json
import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from support.supervisor.up_harness import Project, running, wait_until
from tiers import count

ROUNDS = count(quick=3, full=50)
TOPIC = "written"


class Writer(threading.Thread):
    """Writes numbers, one after the other, to a broker that comes and goes."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[int] = set()
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(0.002):
            if len(self._producer) < 1000:
                self._producer.produce(TOPIC, str(number), on_delivery=self._delivered(number))
                number += 1
            self._producer.poll(0)

    def has_more_than(self, count: int) -> bool:
        return len(self.acknowledged) > count

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        assert self._producer.flush(240) == 0

    def _delivered(self, number: int):
        def delivered(error, message) -> None:
            if error is None:
                self.acknowledged.add(number)

        return delivered


def insert(project: Project, count: int) -> None:
    with closing(sqlite3.connect(project.database, timeout=60)) as connection, connection:
        connection.executemany("INSERT INTO orders (item) VALUES (?)", [("x",)] * count)


def values_in(bootstrap: str, topic: str) -> list[bytes]:
    """All that a reader of committed records sees."""
    settings = {"group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        values: list[bytes] = []
        while True:
            message = consumer.poll(60)
            assert message is not None, f"{topic} cannot be read"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return values
            values.append(message.value())


def changes_in(bootstrap: str) -> list[dict]:
    return [json.loads(value) for value in values_in(bootstrap, "shop.main.orders") if value]


def keys_of(changes: list[dict], op: str) -> list[int]:
    return [change["after"]["id"] for change in changes if change["op"] == op]


def captured_rows(bootstrap: str) -> set[int]:
    changes = changes_in(bootstrap)
    return {*keys_of(changes, "r"), *keys_of(changes, "c")}


def check_captured(changes: list[dict], rows: int) -> None:
    """Every row is there, each change once and in order, and so is each row of the first snapshot.

    A capture that is killed during that snapshot follows the changes first, so that a row may come
    as a change and again as one of the snapshot. One that is killed before its first commit leaves
    an empty topic; the next one cannot know that it is empty, and writes a truncate in front.
    """
    assert "t" not in [change["op"] for change in changes[1:]]
    copied, inserted = keys_of(changes, "r"), keys_of(changes, "c")
    assert copied == sorted(set(copied))
    assert inserted == sorted(set(inserted))
    assert {*copied, *inserted} == set(range(1, rows + 1))


@pytest.mark.timeout(1200)
def test_nothing_is_left_behind_and_nothing_lost(tmp_path):
    seed = int(os.environ.get("HEADWATER_SEED") or random.randrange(10**6))
    dice = random.Random(seed)
    project = Project(tmp_path).with_capture()
    writer = Writer(project.address)
    writer.start()
    rows = 0
    for number in range(ROUNDS):
        where = f"round {number}, HEADWATER_SEED={seed}"
        how = dice.choice(("kill up", "kill children", "term while starting", "stop"))
        with running(project) as up:
            rows += 3
            insert(project, 3)
            if how == "term while starting":
                up.wait_for(event="child", name="broker", state="starting")
                time.sleep(dice.random() * 1.5)  # anywhere on the way
                assert up.stop() == 0, where
            else:
                up.wait_ready()
                wait_until(partial(writer.has_more_than, len(writer.acknowledged)))
            if how == "kill children":
                name = dice.choice(("broker", "capture shop"))
                os.kill(up.pid_of(name), signal.SIGKILL)
                up.wait_for(event="child", name=name, state="paused")
                rows += 2
                insert(project, 2)
                if dice.random() < 0.5:
                    up.wait_for(event="child", name=name, state="ready")
            if how == "kill up":
                time.sleep(dice.random() * 0.3)
                up.send(signal.SIGKILL)
                up.end()
            elif how != "term while starting":
                assert up.stop() == 0, where
            wait_until(project.is_clean, f"the end of everything ({how}, {where})")
    with running(project) as up:
        up.wait_ready()
        writer.stop()
        wait_until(lambda: len(captured_rows(project.address)) >= rows, "every row in the log")
        print(f"HEADWATER_SEED={seed}")  # shown if the following fails
        check_captured(changes_in(project.address), rows)
        found = [int(value) for value in values_in(project.address, TOPIC)]
        assert found == sorted(set(found)), f"order, and none twice ({seed})"
        assert writer.acknowledged <= set(found), f"what was acknowledged is there ({seed})"
        assert len(writer.acknowledged) > ROUNDS
        assert up.stop() == 0
    assert project.is_clean()
