"""A run that fails at its first, second, third … call of the producer, before the call has done
anything or after it has: the next one goes on, and nothing is lost, repeated or left open.
"""

import contextlib

import pytest
from support.capture.capture_harness import Running, Seen, read
from support.capture.memory_source import ACCOUNTS, NOTES, MemoryDatabase, MemorySource
from test_runner import bootstrap, broker

from headwater.capture import runner
from headwater.capture.publishing import writer
from headwater.capture.settings import CaptureSettings
from headwater.capture.tables import snapshots
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable
from headwater.settings import Secret

__all__ = ["bootstrap", "broker"]  # fixtures

CALLS = 7


class Failing(TransactionalProducer):
    """Fails once: at the call of this number."""

    fails_at = 0
    is_done_before = False

    def _counted(self, call, *arguments):
        kind = type(self)
        kind.fails_at -= 1
        if kind.fails_at != 0:
            return call(*arguments)
        if kind.is_done_before:
            call(*arguments)
        raise BrokerUnreachable("gone")

    def fence(self) -> None:
        self._counted(super().fence)

    def send(self, batches):
        return self._counted(super().send, batches)

    def commit(self) -> None:
        self._counted(super().commit)


@pytest.fixture
def db(monkeypatch):
    db = MemoryDatabase(ACCOUNTS, NOTES)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    monkeypatch.setattr(runner, "TransactionalProducer", Failing)
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 5)
    monkeypatch.setattr(writer, "PART_BYTES", 3_000)
    monkeypatch.setattr(runner, "SPLIT_BYTES", 5_000)
    monkeypatch.setattr(runner, "SPLIT_LOOK", 3)
    return db


@pytest.mark.parametrize("is_done_before", [False, True])
def test_the_producer_fails_at_every_call(bootstrap, db, monkeypatch, is_done_before):
    monkeypatch.setattr(Failing, "is_done_before", is_done_before)
    settings = CaptureSettings(
        name="shop", source=Secret("sqlite:///unused"), chunk_rows=5, heartbeat_s=0.05
    )
    for number in range(20):
        db.transact(account(-1 - number), note(-1 - number))
    for number in range(1, CALLS + 1):
        Failing.fails_at = number
        capture = Running(settings, bootstrap)
        count = 0
        with contextlib.suppress(BrokerUnreachable):
            while Failing.fails_at > 0 and capture.failure is None:
                many = 30 if count % 5 == 2 else 1
                db.transact(*(account(n) for n in ids(db, many)), note(len(db.log)))
                count += 1
                capture._thread.join(0.05)
            capture.stop()
        assert capture.failure is not None
    Failing.fails_at = 0
    capture = Running(settings, bootstrap)
    try:
        capture.wait_until(lambda: db.acknowledged == len(db.log))
        capture.wait_until(lambda: are_copied(capture))
    finally:
        capture.stop()
    # A topic that was made by a run which failed before its first commit is truncated first.
    accounts = without_leading_truncates(read(bootstrap, "shop.public.accounts"))
    changes = [record for record in accounts if record.op == "c"]
    at = [(change.value["source"]["txId"], change.value["source"]["lsn"]) for change in changes]
    assert at == sorted(set(at)), "a change came twice, or not in its order"
    made = [e for events in db.log for e in events if e.table is ACCOUNTS]
    in_topic = [record.key["id"] for record in accounts]
    assert set(in_topic) == {change.after["id"] for change in made}
    copied = [record.key["id"] for record in accounts if record.op == "r"]
    assert len(copied) == len(set(copied)), "a row was copied twice"
    first = min(number for number, _ in at)
    # What came before the first position is in the copy; from then on every change is there.
    assert len(at) == sum(
        len([e for e in events if e.table is ACCOUNTS])
        for number, events in enumerate(db.log, 1)
        if number >= first
    )
    found = without_leading_truncates(read(bootstrap, "shop.public.notes"))
    notes = [record.value["after"]["text"] for record in found]
    assert sorted(notes) == sorted(row["text"] for row in db.rows["public.notes"].values())


def without_leading_truncates(records: list[Seen]) -> list[Seen]:
    while records and records[0].op == "t":
        records = records[1:]
    return records


def ids(db: MemoryDatabase, count: int) -> list[int]:
    begin = len(db.log) * 100
    return list(range(begin, begin + count))


def account(number: int) -> tuple:
    return ("public.accounts", "c", None, {"id": number, "balance": 0})


def note(number: int) -> tuple:
    return ("public.notes", "c", None, {"text": f"note {number}"})


def are_copied(capture: Running) -> bool:
    tables = capture.stored().tables
    return len(tables) == 2 and all(
        table.snapshot is not None and table.snapshot.is_done for table in tables.values()
    )
