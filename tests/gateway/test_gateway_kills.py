"""Gateway and broker are killed while clients write and read over HTTP.

Nothing that was acknowledged is lost. Nothing with an Idempotency-Key is there twice, although
clients repeat every request that they got no answer to. A reader that goes on by its last id sees
every record once.
"""

import threading
import time
from contextlib import suppress

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.broker_process import BrokerProcess
from support.gateway.events import events
from support.gateway.gateway_process import GatewayProcess
from support.gateway.topics import read_all
from tiers import count, kills

TIMEOUT_S = 120.0
WRITERS = 3
PARTITIONS = 2
PROGRESS = count(quick=4, full=15)  # requests that are acknowledged between two kills


class Writer(threading.Thread):
    """Sends numbered requests, each until it is acknowledged; in turn one record and three."""

    def __init__(self, gateway, topic, number):
        super().__init__(daemon=True)
        self._gateway = gateway
        self._path = f"/topics/{topic}?key_field=id"
        self._name = f"w{number}"
        self.keyed: list[str] = []  # ids of records that were acknowledged under a key
        self.plain: list[str] = []
        self.acknowledged = 0
        self.repeated = 0
        self.error: BaseException | None = None
        self.is_stopping = threading.Event()

    def run(self):
        try:
            number = 0
            while not self.is_stopping.is_set():
                number += 1
                ids = [f"{self._name}-{number}-{one}" for one in range(1 + 2 * (number % 2))]
                self._send(ids, f"{self._name}-{number}")
                self.keyed += ids
                plain = f"{self._name}-{number}-plain"
                self._send([plain], None)
                self.plain.append(plain)
                self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def _send(self, ids, key):
        lines = "".join(f'{{"id":"{one}"}}\n' for one in ids)
        headers = {"Content-Type": "application/x-ndjson"}
        if key is not None:
            headers["Idempotency-Key"] = key
        until_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until_s:
            with suppress(httpx.TransportError):
                answer = httpx.post(
                    self._gateway.url + self._path,
                    content=lines, headers=headers, timeout=20, trust_env=False,
                )  # fmt: skip
                if answer.status_code == 200:
                    assert answer.json()["written"] == len(ids)
                    return
                assert answer.status_code == 503, answer.text
            self.repeated += 1
            time.sleep(0.05)
        raise AssertionError(f"{ids} was not acknowledged in time")


class Reader(threading.Thread):
    """Reads all events; after a loss of the connection from its last id on."""

    def __init__(self, gateway, topic):
        super().__init__(daemon=True)
        self._url = f"{gateway.url}/topics/{topic}?from=start"
        self.seen: list[tuple[int, int, str]] = []
        self.last_id = ""
        self.error: BaseException | None = None
        self.is_stopping = threading.Event()

    def run(self):
        try:
            while not self.is_stopping.is_set():
                with suppress(httpx.TransportError):
                    self._follow()
                time.sleep(0.05)
        except BaseException as error:
            self.error = error

    def _follow(self):
        headers = {"Accept": "text/event-stream"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        with httpx.stream("GET", self._url, headers=headers, timeout=5, trust_env=False) as answer:
            if answer.status_code != 200:
                assert answer.status_code == 503, answer.read()
                return
            for event in events(answer.iter_lines()):
                if event.name == "message":
                    record = event.json
                    self.seen.append((record["partition"], record["offset"], record["key"]))
                    self.last_id = event.id
                else:
                    assert event.name == "error", event
                if self.is_stopping.is_set():
                    return


@pytest.fixture
def broker(tmp_path):
    with BrokerProcess(tmp_path / "data") as process:
        yield process


def test_kills_of_gateway_and_broker(tmp_path, broker):
    topic = "killed"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(TIMEOUT_S)
    with GatewayProcess(tmp_path, broker.address) as gateway:
        writers = [Writer(gateway, topic, number) for number in range(WRITERS)]
        reader = Reader(gateway, topic)
        for thread in (*writers, reader):
            thread.start()
        for number in range(kills(quick=2, full=30)):
            progress(writers)
            victim = broker if number % 2 else gateway
            victim.kill()
            victim.start()
        progress(writers)
        for writer in writers:
            writer.is_stopping.set()
        for writer in writers:
            writer.join(TIMEOUT_S)
            assert writer.error is None, writer.error
        found = read_all(broker.address, topic)
        wait_until(lambda: len(reader.seen) >= len(found) or reader.error)
        reader.is_stopping.set()
        assert reader.error is None, reader.error
    ids = [record.key.decode() for record in found]
    keyed = [one for writer in writers for one in writer.keyed]
    plain = [one for writer in writers for one in writer.plain]
    assert sorted(one for one in ids if not one.endswith("plain")) == sorted(keyed)
    assert set(plain) <= set(ids)
    assert sum(writer.repeated for writer in writers) > 0  # the kills have been noticed
    by_place = [(partition, offset) for partition, offset, _ in reader.seen]
    assert len(set(by_place)) == len(by_place)
    assert sorted(key for _, _, key in reader.seen) == sorted(ids)
    for partition in range(PARTITIONS):
        offsets = [offset for number, offset in by_place if number == partition]
        assert offsets == sorted(offsets)


def progress(writers):
    """Until each has had some requests acknowledged since now."""
    goals = [writer.acknowledged + PROGRESS for writer in writers]
    wait_until(
        lambda: all(
            writer.acknowledged >= goal or writer.error
            for writer, goal in zip(writers, goals, strict=True)
        )
    )


def wait_until(condition):
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s, "it did not come true in time"
        time.sleep(0.05)
