"""kill -9, again and again, while everything that the broker can do is in use at once.

Transactions of both kinds, a copier with its offsets in the transaction, a topic that is being
compacted, one that is archived while its local files go, a queue with dead letters, and users,
ACLs and quotas that change. Each client has a model; after every start the broker is compared with
it, and at the end all of it once more.

The full tier kills some hundreds of times; HEADWATER_SEED chooses other moments.
"""

import contextlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SUPPORT
from support.broker.queue_harness import GROUP, GROUP_RESOURCE
from support.broker.secured import PASSWORD, USER, secured_broker
from support.clients.broker_process import BrokerProcess
from support.crash.rights_workload import RightsWorker
from support.crash.steady_client import MECHANISM, SteadyClient, create_topics
from support.crash.workloads import Copier, LatestWriter, PairWriter, QueueBook, QueueWorker, Worker
from support.wire import wait_until
from test_kill_loop import Writer
from tiers import IS_FULL, kills

from headwater.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

KILLS = kills(quick=4, full=400)
SEED = int(os.environ.get("HEADWATER_SEED", "20261115"))
HURRIED = [sys.executable, str(SUPPORT / "crash" / "hurried_broker.py")]
ENVIRONMENT = {
    "AUTHENTICATION": "sasl",
    "SASL_MECHANISMS": MECHANISM,
    "SUPER_USERS": USER,
}
# Compiled once for all tests; a broker would do it once for its data directory.
NUMBA_CACHE = Path(__file__).parents[2] / ".work" / "numba-cache"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": MECHANISM,
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}
LATEST = {
    "cleanup.policy": "compact",
    "segment.bytes": 4096,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 500,
}
ARCHIVED = {
    "segment.bytes": 4096,
    "remote.storage.enable": "true",
    "local.retention.bytes": 8192,
    "retention.ms": -1,
}
TOPICS = {
    "left": {"segment.bytes": 16384},
    "right": {},
    "copied": {},
    "latest": LATEST,
    "archived": ARCHIVED,
    "jobs": {"segment.bytes": 16384},
}
QUEUE = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": 10,
    "share.record.lock.duration.ms": 5000,
}


class Everything:
    """The workers, and what is compared."""

    def __init__(self, address: str, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.client = SteadyClient(address, secured=True)
        ids = create_topics(self.client, TOPICS)
        self._set_queue()
        self.modern = PairWriter(address, "modern", SEED)
        self.earlier = PairWriter(address, "earlier", SEED, modern=False)
        self.copier = Copier(address, "copier", SEED)
        self.latest = LatestWriter(address, "latest", SEED)
        self.rights = RightsWorker(address, "rights", SEED)
        self.book = QueueBook()
        self.takers = [
            QueueWorker(address, f"taker-{number}", SEED, self.book, ids["jobs"])
            for number in range(2)
        ]
        self.workers: list[Worker] = [
            self.modern, self.earlier, self.copier, self.latest, self.rights, *self.takers,
        ]  # fmt: skip
        idempotent = {"enable.idempotence": True, "linger.ms": 5, **LOGIN}
        self.archived = Writer(address, "archived", "archived", pause_s=0.02, **idempotent)
        self.jobs = Writer(address, "jobs", "jobs", pause_s=0.05, **idempotent)
        self._seen = {"left": 0, "right": 0}
        self.threads = [*self.workers, self.archived, self.jobs]
        for worker in self.workers:
            worker.start()
        self.archived.begin()
        self.jobs.begin()

    def _set_queue(self) -> None:
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig(name=name, value=str(value))
            for name, value in QUEUE.items()
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=changes
        )
        answer = self.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0, answer

    def close(self) -> None:
        for thread in self.threads:
            thread.over.set()
        self.client.close()

    def assert_well(self) -> None:
        for worker in self.workers:
            assert not worker.failure, f"{worker.name}: {worker.failure}"
        assert self.book.wrong == []

    @contextlib.contextmanager
    def _turn_of(self, worker: Worker) -> Iterator[None]:
        """While the worker is between two steps."""
        with worker.turn:
            self.assert_well()
            yield

    # ── after every start ─────────────────────────────────────────────────────────────────────

    def check_after_start(self) -> None:
        self.assert_well()
        with self._turn_of(self.rights):
            self.rights.check(self.client, USER)
        with self._turn_of(self.latest):
            self.latest.check(self.client)
        with self._turn_of(self.modern), self._turn_of(self.earlier):
            for topic in ("left", "right"):
                self._check_pairs(topic, since=self._seen[topic])
        for offset in (0, len(self.archived.acknowledged) // 2):
            self._check_archived_at(offset)
        self.assert_well()

    def _check_pairs(self, topic: str, since: int = 0) -> None:
        """Transactions that end behind `since` are there whole, if they were committed."""
        found = self.client.all_committed(topic, since)
        counts = Counter(record.key for record in found)
        sure = self.modern.committed | self.earlier.committed
        doubtful = self.modern.doubtful | self.earlier.doubtful
        for name, count in counts.items():
            expected = sure.get(name) or doubtful.get(name)
            assert count == expected, (topic, name, count, expected)
        if since == 0:
            assert set(sure) <= set(counts)
        if found:  # no transaction is open, so the next ones begin behind these
            self._seen[topic] = found[-1].offset + 1

    def _check_archived_at(self, offset: int) -> None:
        expected = self.archived.acknowledged.get((0, offset))
        if expected is not None:
            found = []
            while not found:
                found, _ = self.client.committed_from("archived", offset)
            assert (found[0].offset, found[0].key, found[0].value) == (offset, *expected)

    # ── at the end ────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Stops writing, lets the copier and the queue's consumers come to the end."""
        for writer in (self.archived, self.jobs, self.modern, self.earlier, self.latest):
            writer.over.set()
        for writer in (self.archived, self.jobs, self.modern, self.earlier, self.latest):
            writer.join(90)
            assert not writer.is_alive(), writer.name
        for taker in self.takers:
            taker.is_careful = True
        self.assert_well()
        end = self.client._fetched("left", 0).last_stable_offset
        wait_until(lambda: self._is_copied(end), 60, "all of left is copied")
        wait_until(self._is_queue_empty, 60, "every job is settled")
        wait_until(self._is_buried, 60, "every rejected job has its dead letter")
        for worker in self.workers:
            worker.over.set()
        for worker in self.workers:
            worker.join(60)
            assert not worker.is_alive(), worker.name

    def _is_copied(self, end: int) -> bool:
        self.assert_well()
        with self._turn_of(self.copier):
            return self.copier.position() >= end

    def _is_queue_empty(self) -> bool:
        self.assert_well()
        settled = {*self.book.accepted, *self.book.rejected, *self._letters()}
        left = {offset for _, offset in self.jobs.acknowledged} - settled
        return not left - self.book.tried_to_accept

    def _is_buried(self) -> bool:
        """A rejection is durable when it is answered; its dead letter is copied afterwards."""
        self.assert_well()
        return set(self.book.rejected) <= set(self._letters())

    def _letters(self) -> list[int]:
        """The offsets of the jobs that have dead letters."""
        with contextlib.suppress(AssertionError):  # there is no such topic yet
            found = self.client.all_committed("jobs.dlq")
            return [int(dict(record.headers)["headwater.dlq.offset"]) for record in found]
        return []

    def check_all(self) -> None:
        self.rights.check(self.client, USER)
        self.latest.check(self.client)
        for topic in ("left", "right"):
            self._check_pairs(topic)
        self._check_whole()
        self._check_copied()
        self._check_archived()
        self._check_queue()

    def _check_whole(self) -> None:
        left, right = (
            Counter(record.key for record in self.client.all_committed(topic))
            for topic in ("left", "right")
        )
        assert left == right  # also those whose end was not acknowledged

    def _check_copied(self) -> None:
        """Exactly once and in order."""
        source = self.client.all_committed("left")
        copies = self.client.all_committed("copied")
        expected = [(b"%d" % record.offset, record.key) for record in source]
        assert [(record.key, record.value) for record in copies] == expected

    def _check_archived(self) -> None:
        writer = self.archived
        assert writer.errors == []
        stored = {
            (0, record.offset): (record.key, record.value)
            for record in self.client.all_committed("archived")
        }
        assert stored == writer.acknowledged
        directory = self.data_dir / "archived-0"
        local = {path.stem for path in directory.glob("*.log")}
        assert {path.stem for path in directory.glob("*.archived")} - local, "nothing went"

    def _check_queue(self) -> None:
        book, letters = self.book, Counter(self._letters())
        assert self.jobs.errors == []
        assert [offset for offset, count in letters.items() if count > 1] == []
        # What a consumer heard to be accepted has no dead letter; what it heard to be rejected has.
        assert set(letters) & set(book.accepted) == set()
        assert set(book.rejected) - set(letters) == set()
        settled = {*book.accepted, *letters, *book.tried_to_accept}
        assert {offset for _, offset in self.jobs.acknowledged} - settled == set()

    def report(self) -> str:
        return (
            f"{len(self.modern.committed)} + {len(self.earlier.committed)} transactions,"
            f" {self.copier.steps} steps of the copier, {self.latest.written} values of keys,"
            f" {len(self.archived.acknowledged)} archived, {len(self.book.accepted)} jobs accepted,"
            f" {len(self.book.rejected)} rejected, {self.rights.steps} changes of rights"
        )


@pytest.mark.slow
@pytest.mark.timeout(300 + 10 * KILLS)
def test_everything_at_once(tmp_path, monkeypatch):
    chance = random.Random(SEED)
    with secured_broker(tmp_path / "data"):
        pass  # there is a user now
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(f"HEADWATER_BROKER__{name}", value)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(NUMBA_CACHE))
    monkeypatch.setenv("HEADWATER_BROKER__ARCHIVE", f"file://{tmp_path / 'archive'}")
    broker = BrokerProcess(tmp_path / "data", program=HURRIED)
    broker.start()
    everything = Everything(broker.address, tmp_path / "data")
    try:
        _kill_again_and_again(broker, everything, chance)
        log = tmp_path / "data.log"
        if IS_FULL:  # the kills fell into passes of compaction
            assert log.read_text().count("is clean up to") > KILLS / 10
        else:  # a busy machine gets to fewer, because its process is killed before
            wait_until(lambda: "is clean up to" in log.read_text(), 300, "compaction")
    finally:
        everything.close()
        broker.kill()


def _kill_again_and_again(broker, everything: Everything, chance: random.Random) -> None:
    for _ in range(KILLS):
        # Compaction needs some time: its process has to start.
        time.sleep(chance.choice([0.05, 0.3, 1.0, 3.0]) * (0.5 + chance.random()))
        broker.kill()
        broker.start()
        everything.check_after_start()
    everything.end()
    for _ in range(2):
        everything.check_all()
        broker.kill()
        broker.start()
    everything.check_all()
    print(f"{KILLS} kills, {everything.report()}")
