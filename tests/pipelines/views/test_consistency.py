"""Jamie Brandon's bank: money moves between tables, and no reader of a view ever misses any.

Every output is checked: a reader looks at the store all the time, and a topic has all that the same
view has ever written. In `make test` capture and pipelines restart; the full tier kills them, and
the broker (HEADWATER_LONG=N: N times).
"""

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from support.capture.capture_harness import Running, read
from support.capture.killing import CaptureProcess, HeadwaterBroker, wait_for_copies
from support.pipelines.project import Project, wait_for
from support.pipelines.spark_killing import Victim
from tiers import count, kills, long

from headwater.capture.settings import CaptureSettings
from headwater.pipelines.engine import local_run
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.settings import Secret

# Two tables, three aggregates, a join.
TOTAL = """
WITH d AS (SELECT account, sum(amount) AS amount FROM {name}.public.debits GROUP BY account),
     c AS (SELECT account, sum(amount) AS amount FROM {name}.public.credits GROUP BY account),
     b AS (SELECT coalesce(c.amount, 0) - coalesce(d.amount, 0) AS balance
           FROM c FULL JOIN d ON c.account = d.account)
SELECT sum(balance) AS total FROM b
"""
ROUNDS = count(quick=2, full=5)
TRANSFERS = count(quick=40, full=1000)  # in each
LOOKS_S = 0.02  # between two of the reader
BATCH_ROWS = 40  # of the micro-batches of queries
KILLS = kills(quick=3, full=30)


class Bank:
    """Tables whose transfers are rows in both, and views of their sum, in a store and a topic."""

    def __init__(self, postgres, project: Project, name: str, **settings: str) -> None:
        """`settings` of the views."""
        self._postgres = postgres
        self._project = project
        self.name = name
        self._next_id = 0
        postgres.run("CREATE TABLE credits (id int PRIMARY KEY, account int, amount int)")
        postgres.run("CREATE TABLE debits (id int PRIMARY KEY, account int, amount int, memo text)")
        for view, into in (("total", "cache"), ("totals", "topic")):
            (project.directory / f"{view}.sql").write_text(TOTAL.format(name=name))
            given = {"file": f"{view}.sql", "into": into, "table": f"sum_{name}", **settings}
            lines = [f'{key} = "{value}"' for key, value in given.items()]
            project.section("\n".join([f"[view.{view}]", *lines]))
        self.transfer(1)

    def transfer(self, number: int) -> None:
        """In one transaction: one to three new transfers, and one that is made larger."""
        rng = random.Random(number)
        statements = []
        for id_ in self._ids(number % 3 + 1):
            amount, debtor, creditor = (rng.randint(1, 99) for _ in range(3))
            statements.append(f"INSERT INTO debits VALUES ({id_}, {debtor % 10}, {amount})")
            statements.append(f"INSERT INTO credits VALUES ({id_}, {creditor % 10}, {amount})")
        other = rng.randrange(self._next_id)
        statements += [
            f"UPDATE {table} SET amount = amount + 7 WHERE id = {other}"
            for table in rng.sample(["debits", "credits"], 2)
        ]
        self._postgres.run("; ".join(statements))

    def transfer_many(self, transfers: int, memo_bytes: int) -> None:
        """One transaction that a reader cannot fetch at once: one topic has more of it than the
        other, so its records arrive later.
        """
        ids = self._ids(transfers)
        values = f"SELECT i, i % 10, i % 99 FROM generate_series({ids.start}, {ids.stop - 1}) i"
        memo = f"SELECT *, repeat('x', {memo_bytes}) FROM ({values}) t"
        self._postgres.run(f"INSERT INTO debits {memo}; INSERT INTO credits {values}")

    def _ids(self, number: int) -> range:
        self._next_id += number
        return range(self._next_id - number, self._next_id)

    def total(self) -> list[tuple]:
        return self._project.rows(f"SELECT total FROM sum_{self.name}")

    def written(self) -> set:
        """All totals that the topic ever had."""
        records = read(self._project.bootstrap, f"sum_{self.name}")
        return {record.value["total"] for record in records if record.value}

    def is_captured(self) -> bool:
        """Whether the log has all transfers."""
        records = read(self._project.bootstrap, f"{self.name}.public.credits")
        return any(record.key == {"id": self._next_id - 1} for record in records)

    def wait_until_at_end(self, spark) -> None:
        with self._project.running(spark, "total", "totals"):
            for table in ("debits", "credits"):
                topic = f"{self.name}.public.{table}"
                self._project.wait_until_at_end(spark, topic, "total", "totals")


@contextlib.contextmanager
def repeating(step: Callable[[], object]) -> Iterator[None]:
    """In another thread."""
    done = threading.Event()
    failures = []

    def repeat() -> None:
        try:
            while not done.wait(LOOKS_S):
                step()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.timeout(600)
def test_no_output_has_half_a_transaction(tmp_path, broker_address, postgres, spark):
    """Over restarts of the capture and of the pipelines, in the midst of the load."""
    project = Project(tmp_path, broker_address)
    bank = Bank(postgres, project, f"c{uuid.uuid4().hex[:8]}")
    settings = CaptureSettings(name=bank.name, source=Secret(postgres.url), tables=["public.*"])
    capture = Running(settings, project.bootstrap)
    seen: set = set()
    try:
        capture.wait_for_copies("public.debits", "public.credits")
        with repeating(lambda: seen.update(bank.total())):
            for round_ in range(ROUNDS):
                with project.running(spark, "total", "totals"):
                    wait_for(bank.total, "a total")
                    for number in range(TRANSFERS):
                        bank.transfer(round_ * 10_000 + number)
                        if number % 20 == 10:
                            bank.transfer_many(2000, memo_bytes=2000)
                        if round_ == 0 and number == TRANSFERS // 2:
                            capture.stop()
                            capture = Running(settings, project.bootstrap)
                bank.transfer_many(15_000, memo_bytes=10)  # more than a batch in the driver
            bank.wait_until_at_end(spark)
    finally:
        capture.stop()
    assert seen == {(0,)}
    assert bank.written() == {0}


class Died(Exception):
    pass


@pytest.mark.timeout(600)
def test_a_backlog_is_worked_off_in_whole_transactions(
    tmp_path, broker_address, postgres, spark, monkeypatch
):
    """By queries, of which the first ones die with a batch that is not applied."""
    monkeypatch.setattr(local_run, "MOST_BACKLOG", 5)
    project = Project(tmp_path, broker_address)
    bank = Bank(postgres, project, f"c{uuid.uuid4().hex[:8]}", batch_rows=str(BATCH_ROWS))
    settings = CaptureSettings(name=bank.name, source=Secret(postgres.url), tables=["public.*"])
    capture = Running(settings, project.bootstrap)
    seen: set = set()
    apply, died = BatchApplier._apply_once, set()

    def dying(applier, batch, write):
        if batch.id > 3:
            died.add(applier._checkpoint.path)
            raise Died
        apply(applier, batch, write)

    try:
        capture.wait_for_copies("public.debits", "public.credits")
        for round_ in range(8):  # of one cut or several
            for number in range(5):
                bank.transfer(round_ * 5 + number)
            capture.wait_until(bank.is_captured, "the transfers in the log")
        bank.transfer_many(BATCH_ROWS, memo_bytes=10)  # more than a batch
        capture.wait_until(bank.is_captured, "all transfers in the log")
    finally:
        capture.stop()
    with repeating(lambda: seen.update(bank.total())):
        with monkeypatch.context() as patched:
            patched.setattr(BatchApplier, "_apply_once", dying)
            with project.running(spark, "total", "totals"):
                wait_for(lambda: len(died) == 2, "the death of both views")
        assert last_batch(project) == 3
        bank.wait_until_at_end(spark)
    assert last_batch(project) > 7  # each is an output
    assert seen == {(0,)}
    assert bank.written() == {0}


@long
@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize("most_backlog", [None, 2 * BATCH_ROWS], ids=["driver", "queries"])
def test_no_output_has_half_a_transaction_whatever_is_killed(
    tmp_path, postgres, spark, most_backlog
):
    """In the driver as a rule, or bursts are left to queries."""
    rng = random.Random(KILLS)
    broker = HeadwaterBroker(tmp_path / "broker")
    broker.start()
    project = Project(tmp_path, broker.bootstrap)
    bank = Bank(
        postgres, project, "shop", **({"batch_rows": str(BATCH_ROWS)} if most_backlog else {})
    )
    capture = CaptureProcess(postgres.url, broker.bootstrap, tmp_path / "capture.log")
    capture.start()
    seen: set = set()
    numbers = iter(range(10**9))
    victims = [Victim(project, "total", "totals", most_backlog=most_backlog)]

    def load() -> None:
        time.sleep(0.02)  # slower than the pipelines are
        number = next(numbers)
        bank.transfer(number)
        if number % 100 == 50:
            bank.transfer_many(2000, memo_bytes=2000)

    try:
        wait_for_copies(broker.bootstrap)
        wait_for(bank.total, "a total")
        with repeating(lambda: seen.update(bank.total())), repeating(load):
            for _ in range(KILLS):
                at = last_batch(project)
                victims[-1].wait_until(lambda at=at: last_batch(project) > at, "a batch")
                time.sleep(rng.uniform(0, 2))
                killed = rng.choice(["driver", "driver", "capture", "broker"])
                if killed == "driver":
                    victims[-1].kill()
                    victims.append(Victim(project, "total", "totals", most_backlog=most_backlog))
                else:
                    target = {"capture": capture, "broker": broker}[killed]
                    target.kill()
                    target.start()
        victims[-1].kill()
        for victim in victims:
            victim.wait_until_gone()
        bank.wait_until_at_end(spark)
    finally:
        for victim in victims:
            victim.end()
        capture.kill()
        broker.kill()
    assert seen == {(0,)}


def last_batch(project: Project) -> int:
    """The number of the last batch of any write."""
    return max(
        (int(path.name) for path in project.state_dir.rglob("commits/*") if path.name.isdigit()),
        default=-1,
    )
