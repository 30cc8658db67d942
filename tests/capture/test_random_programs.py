"""Random programs: transactions of every kind, copies asked for, limbo, and runs that are stopped,
fail or are fenced at any moment. Whatever happens, the topics have every change once and in order,
give the tables when replayed, and a row that was copied is never older than what was there.

The full tier has many more programs, or N with HEADWATER_LONG=N; HEADWATER_SEED=S begins with
another one.
"""

import contextlib
import os
import random
import time
from typing import Any

import pytest
from confluent_kafka import Producer
from support.capture.capture_harness import Running, Seen, read
from support.capture.memory_source import ACCOUNTS, NOTES, OUTBOX, MemoryDatabase, MemorySource
from tiers import kills

from headwater.capture import runner
from headwater.capture.contract import Change
from headwater.capture.positions import SIGNALS_TOPIC
from headwater.capture.publishing import writer
from headwater.capture.settings import CaptureSettings
from headwater.capture.signals import encode
from headwater.capture.tables import snapshots
from headwater.errors import Fenced, SourceUnreachable
from headwater.settings import Secret
from headwater.testing import InProcessBroker

PROGRAMS = kills(quick=3, full=100)
FIRST_SEED = int(os.environ.get("HEADWATER_SEED", "0"))
STEPS = 40
KEYS = 12
MOST_EVENTS = 200  # in the outbox while it is copied


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


@pytest.fixture(autouse=True)
def _everything_is_small(monkeypatch):
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 3)
    monkeypatch.setattr(snapshots, "GROWTH", 1)
    monkeypatch.setattr(snapshots, "AGAIN_S", 0.005)
    monkeypatch.setattr(snapshots, "MAX_TOUCHED_BYTES", 600)
    monkeypatch.setattr(writer, "PART_BYTES", 2_500)
    monkeypatch.setattr(writer, "GROUP_BYTES", 2_000)
    monkeypatch.setattr(runner, "SPLIT_BYTES", 4_000)
    monkeypatch.setattr(runner, "SPLIT_LOOK", 3)
    monkeypatch.setattr(runner, "TABLES_S", 0.05)


class Program:
    """What happens to a database and its capture. Every change has a version of its own in its
    rows, so the transaction of a row can be determined.
    """

    def __init__(self, seed: int, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.db = MemoryDatabase(ACCOUNTS, NOTES, OUTBOX)
        self.db.before_chunk = self._linger
        monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(self.db))
        self.bootstrap = bootstrap
        self.settings = CaptureSettings(
            name=f"p{seed}",
            source=Secret("sqlite:///unused"),
            outbox="public.outbox",
            chunk_rows=3,
            heartbeat_s=0.02,
        )
        self.signals = 0
        self.capture: Running | None = None
        self.version = 0
        self.locked: set[int] = set()  # keys of transactions in limbo
        self.start = 0

    # What the database does

    def transact(self, *, may_fail: bool = True) -> None:
        kinds = [self._create, self._update, self._delete, self._renumber, self._note, self._unnote]
        weights = [4, 6, 3, 3, 2, 1]
        rows = {key[0]: row for key, row in self.db.rows["public.accounts"].items()}
        notes = [row["text"] for row in self.db.rows["public.notes"].values()]
        count = self.rng.choice([1, 1, 2, 3, 8, 30])
        changes: list[Any] = []
        is_limbo = not self.db.limbo and self.rng.random() < 0.1
        touched: set[int] = set()
        for _ in range(count):
            (kind,) = self.rng.choices(kinds, weights)
            if kind in (self._note, self._unnote):
                if not is_limbo:
                    changes += kind(notes)
            else:
                changes += kind(rows, touched)
        if not is_limbo and self.rng.random() < 0.3:
            changes += self._publish()
        if not is_limbo and not self.locked and self.rng.random() < 0.04:
            changes.append(("public.accounts", "t", None, None))
        if may_fail and self.rng.random() < 0.05:
            changes.insert(self.rng.randrange(len(changes) + 1), SourceUnreachable("gone"))
        self.db.transact(*changes, limbo=is_limbo)
        if is_limbo:
            self.locked = touched

    def _free(self, keys: Any) -> int | None:
        found = [key for key in keys if key not in self.locked]
        return self.rng.choice(found) if found else None

    def _row(self, key: int) -> dict[str, int]:
        self.version += 1
        return {"id": key, "balance": self.version}

    def _create(self, rows: dict[int, Any], touched: set[int]) -> list[Any]:
        key = self._free(set(range(KEYS)) - set(rows))
        if key is None:
            return []
        touched.add(key)
        rows[key] = self._row(key)
        return [("public.accounts", "c", None, rows[key])]

    def _update(self, rows: dict[int, Any], touched: set[int]) -> list[Any]:
        key = self._free(rows)
        if key is None:
            return []
        touched.add(key)
        rows[key] = self._row(key)
        return [("public.accounts", "u", None, rows[key])]

    def _delete(self, rows: dict[int, Any], touched: set[int]) -> list[Any]:
        key = self._free(rows)
        if key is None:
            return []
        touched.add(key)
        del rows[key]
        return [("public.accounts", "d", {"id": key}, None)]

    def _renumber(self, rows: dict[int, Any], touched: set[int]) -> list[Any]:
        old, new = self._free(rows), self._free(set(range(KEYS)) - set(rows))
        if old is None or new is None:
            return []
        touched |= {old, new}
        del rows[old]
        rows[new] = self._row(new)
        return [("public.accounts", "u", {"id": old}, rows[new])]

    def _note(self, notes: list[str]) -> list[Any]:
        self.version += 1
        notes.append(f"note {self.version}")
        return [("public.notes", "c", None, {"text": notes[-1]})]

    def _unnote(self, notes: list[str]) -> list[Any]:
        if not notes:
            return []
        text = notes.pop(self.rng.randrange(len(notes)))
        return [("public.notes", "d", {"text": text}, None)]

    def _publish(self) -> list[Any]:
        """An event; some are deleted, at once or later."""
        self.version += 1
        columns = (str(self.version), self.settings.name, "key", "type", "{}")
        event = dict(zip((column.name for column in OUTBOX.columns), columns, strict=True))
        changes: list[Any] = [("public.outbox", "c", None, event)]
        if self.rng.random() < 0.3:
            old = [key[0] for key in self.db.rows["public.outbox"]] or [event["id"]]
            changes.append(("public.outbox", "d", {"id": self.rng.choice(old)}, None))
        return changes

    def end_limbo(self) -> None:
        self.db.end_limbo()
        self.locked = set()

    def _linger(self) -> None:
        time.sleep(random.random() * 0.01)

    # What is done to the capture

    def begin(self) -> None:
        self.end_limbo()  # of what was in front of the last transaction, only one run knows
        self.capture = Running(self.settings, self.bootstrap)

    def end(self) -> None:
        if self.capture is not None:
            with contextlib.suppress(SourceUnreachable, Fenced):
                self.capture.stop()
            self.capture = None

    def fail(self) -> None:
        self.db.failure = SourceUnreachable("gone")
        self.end()
        self.db.failure = None

    def take_over(self) -> None:
        self.end_limbo()
        old, self.capture = self.capture, Running(self.settings, self.bootstrap)
        time.sleep(self.rng.random() * 0.1)
        if old is not None:
            with contextlib.suppress(SourceUnreachable, Fenced):
                old.stop()

    def ask(self) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        tables = self.rng.choice([["public.accounts"], ["public.notes"], ["public.no"]])
        signal = encode("1", tables)
        producer.produce(SIGNALS_TOPIC, signal, self.settings.name, on_delivery=self._asked)
        assert producer.flush(60) == 0

    def _asked(self, error: Any, message: Any) -> None:
        assert error is None
        self.signals = message.offset() + 1

    def step(self) -> None:
        what = self.rng.choices(
            [self.transact, self.end_limbo, self.ask, self.end, self.fail, self.take_over,
             lambda: time.sleep(self.rng.random() * 0.05)],
            [20, 3, 1.5, 0.7, 0.7, 0.7, 5],
        )[0]  # fmt: skip
        what()
        if self.capture is None or self.capture.failure is not None:
            self.end()
            self.begin()

    def run(self) -> None:
        for _ in range(self.rng.randrange(8)):
            self.transact()
        self.end_limbo()
        self.start = len(self.db.log)
        self.events = [key[0] for key in self.db.rows["public.outbox"]]
        for events in self.db.log:
            events[:] = [event for event in events if isinstance(event, Change)]
        self.begin()
        assert self.capture is not None
        self.capture.wait_until(lambda: self.capture.stored().capture is not None)
        # What of an outbox was sent while it was copied for the first time, only one run knows.
        # On a slow machine it could grow faster than it is copied.
        while not self._is_copied("public.outbox"):
            if len(self.db.rows["public.outbox"]) < MOST_EVENTS:
                self.transact(may_fail=False)
            else:
                self.end_limbo()  # nothing is copied while the last transaction is in it
                time.sleep(0.01)
        try:
            for _ in range(STEPS):
                self.step()
            self.end_limbo()
            self._settle()
        finally:
            self.end()

    def _is_copied(self, table_id: str) -> bool:
        assert self.capture is not None
        assert self.capture.failure is None
        state = self.capture.stored().tables.get(table_id)
        return state is not None and state.snapshot is not None and state.snapshot.is_done

    def _settle(self) -> None:
        deadline_s = time.monotonic() + 60
        while not self._is_settled():
            assert time.monotonic() < deadline_s, "it does not come to rest"
            if self.capture is None or self.capture.failure is not None:
                self.end()
                self.begin()
            time.sleep(0.05)

    def _is_settled(self) -> bool:
        assert self.capture is not None
        stored = self.capture.stored()
        return (
            self.capture.failure is None
            and stored.capture is not None
            and stored.capture.position.at == {"n": len(self.db.log)}
            and stored.capture.position.changes is None
            and stored.capture.signals >= self.signals
            and len(stored.tables) == 3
            and all(table.snapshot and table.snapshot.is_done for table in stored.tables.values())
        )


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + PROGRAMS))
def test_a_random_program(seed, bootstrap, monkeypatch):
    program = Program(seed, bootstrap, monkeypatch)
    program.run()
    check_accounts(program, read(bootstrap, f"p{seed}.public.accounts"))
    check_notes(program, read(bootstrap, f"p{seed}.public.notes"))
    check_events(program, read(bootstrap, f"outbox.event.p{seed}"))


def changes_of(program: Program, table_id: str) -> list[tuple[int, int]]:
    """Transaction and ordinal of each that has to be in the topic."""
    return [
        (number, event.ordinal)
        for number, events in enumerate(program.db.log, 1)
        for event in events
        if isinstance(event, Change) and event.table.id == table_id and number > program.start
    ]


def changes_in(records: list[Seen]) -> list[tuple[int, int]]:
    """The same, of what the topic has. A new key is a delete and a create of one change."""
    found: list[tuple[int, int]] = []
    for record in records:
        if record.value is None or record.op == "r" or record.value["source"]["txId"] is None:
            continue
        at = (record.value["source"]["txId"], record.value["source"]["lsn"])
        if record.op == "c" and any(name == "__debezium.oldkey" for name, _ in record.headers):
            assert found[-1] == at
        else:
            found.append(at)
    return found


def check_accounts(program: Program, records: list[Seen]) -> None:
    assert changes_in(records) == changes_of(program, "public.accounts")
    transaction_of = {
        event.after["balance"]: number
        for number, events in enumerate(program.db.log, 1)
        for event in events
        if isinstance(event, Change) and event.table.id == "public.accounts" and event.after
    }
    table: dict[int, int] = {}
    newest: dict[int, int] = {}  # key to the transaction that was the last to touch it
    truncated = 0
    for record in records:
        if record.value is None:
            continue
        if record.op == "t":
            table.clear()
            truncated = record.value["source"]["txId"] or truncated
            continue
        key = record.key["id"]
        after = record.value["after"]
        if record.op == "r":
            read_of = transaction_of[after["balance"]]
            assert read_of >= max(newest.get(key, 0), truncated), "a copied row went back in time"
            assert table.get(key, 0) <= after["balance"]
            newest[key] = read_of
        else:
            newest[key] = record.value["source"]["txId"]
        if record.op == "d":
            table.pop(key, None)
        else:
            table[key] = after["balance"]
    rows = program.db.rows["public.accounts"].values()
    assert table == {row["id"]: row["balance"] for row in rows}


def check_notes(program: Program, records: list[Seen]) -> None:
    found = changes_in(records)
    assert found == sorted(set(found)), "a change came twice, or not in its order"
    assert set(found) <= set(changes_of(program, "public.notes"))
    notes: set[str] = set()
    for record in records:
        if record.op == "t":
            notes.clear()
        elif record.op == "d":
            notes.discard(record.value["before"]["text"])
        else:
            text = record.value["after"]["text"]
            assert text not in notes, "a row without a key came twice"
            notes.add(text)
    assert notes == {row["text"] for row in program.db.rows["public.notes"].values()}


def check_events(program: Program, records: list[Seen]) -> None:
    later = [
        event.after["id"]
        for events in program.db.log[program.start :]
        for event in events
        if isinstance(event, Change) and event.table.id == "public.outbox" and event.op == "c"
    ]
    found = [dict(record.headers)["id"].decode() for record in records]
    assert sorted(set(found)) == sorted(found), "an event came twice"
    streamed = [event_id for event_id in found if event_id not in program.events]
    assert streamed == later
    # What was there at the start and deleted before it was copied is no event any more.
    stored = {key[0] for key in program.db.rows["public.outbox"]}
    assert stored <= set(found)
