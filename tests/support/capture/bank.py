"""A bank in PostgreSQL: transfers and all else that happens to tables, by several clients at once,
and what must then be true of the topics.

Money only moves, so the sum of balances is the same at the end of every transaction. Every
transaction leaves one row in `journal`, with its own id.
"""

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2

from support.capture.capture_harness import Seen

ACCOUNTS, MONEY = 40, 1_000
SCHEMA = f"""
create table accounts (id int primary key, balance bigint not null, owner text);
create table journal (id bigserial primary key, what text not null, txid bigint not null);
insert into accounts select n, {MONEY}, 'owner ' || n from generate_series(1, {ACCOUNTS}) n;
"""


class Client:
    """Does business until it is stopped, and connects again whenever it must."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.committed = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    connection = psycopg2.connect(self._url, connect_timeout=5)
                except psycopg2.OperationalError:
                    self._stop.wait(0.05)
                    continue
                try:
                    while not self._stop.is_set():
                        self._transact(connection)
                except (psycopg2.OperationalError, psycopg2.InterfaceError):
                    pass  # killed; whether the last one is committed, the database knows
                finally:
                    connection.close()
        except BaseException as error:
            self.failure = error

    def _transact(self, connection: Any) -> None:
        try:
            with connection, connection.cursor() as cursor:
                what = self._random.choices(
                    [_transfer, _many, _open_account, _close_account, _renumber, _alter, _undone],
                    [60, 4, 10, 8, 10, 1, 5],
                )[0]
                cursor.execute(
                    "insert into journal (what, txid) values (%s, txid_current())", (what.__name__,)
                )
                what(cursor, self._random)
            self.committed += 1
        except (
            psycopg2.errors.DeadlockDetected,
            psycopg2.errors.UniqueViolation,
            psycopg2.errors.LockNotAvailable,
            psycopg2.errors.DuplicateColumn,
            psycopg2.errors.UndefinedColumn,
            psycopg2.errors.FeatureNotSupported,
            ZeroDivisionError,
        ):
            pass  # rolled back: that is business, too
        self._stop.wait(self._random.random() * 0.01)


def _ids(cursor: Any, rng: random.Random, count: int) -> list[int]:
    cursor.execute("select id from accounts order by random() limit %s", (count,))
    return sorted(row[0] for row in cursor.fetchall())


def _transfer(cursor: Any, rng: random.Random) -> None:
    ids = _ids(cursor, rng, 2)
    if len(ids) == 2:
        for account, amount in zip(ids, ((m := rng.randrange(1, 50)), -m), strict=True):
            cursor.execute(
                "update accounts set balance = balance + %s where id = %s", (amount, account)
            )
            if not cursor.rowcount:
                raise ZeroDivisionError  # renumbered meanwhile


def _many(cursor: Any, rng: random.Random) -> None:
    ids = _ids(cursor, rng, 30)
    ids = ids[: len(ids) // 2 * 2]
    cursor.execute("select id from accounts where id = any(%s) order by id for update", (ids,))
    if cursor.rowcount != len(ids):
        raise ZeroDivisionError
    half = len(ids) // 2
    cursor.execute("update accounts set balance = balance + 1 where id = any(%s)", (ids[:half],))
    cursor.execute("update accounts set balance = balance - 1 where id = any(%s)", (ids[half:],))


def _open_account(cursor: Any, rng: random.Random) -> None:
    cursor.execute(
        "insert into accounts (id, balance, owner) values (%s, 0, 'new')", (rng.randrange(10_000),)
    )


def _close_account(cursor: Any, rng: random.Random) -> None:
    ids = _ids(cursor, rng, 2)
    if len(ids) == 2:
        cursor.execute("delete from accounts where id = %s returning balance", (ids[0],))
        for (balance,) in cursor.fetchall():
            cursor.execute(
                "update accounts set balance = balance + %s where id = %s", (balance, ids[1])
            )
            if not cursor.rowcount:
                raise ZeroDivisionError
        cursor.execute("select count(*) from accounts")
        if cursor.fetchone()[0] < 10:
            raise ZeroDivisionError


def _renumber(cursor: Any, rng: random.Random) -> None:
    for account in _ids(cursor, rng, 1):
        cursor.execute(
            "update accounts set id = %s where id = %s", (rng.randrange(10_000), account)
        )


def _alter(cursor: Any, rng: random.Random) -> None:
    cursor.execute("set local lock_timeout = '500ms'")
    if rng.random() < 0.5:
        cursor.execute(f"alter table accounts add column extra_{rng.randrange(4)} text default 'x'")
    else:
        cursor.execute(f"alter table accounts drop column extra_{rng.randrange(4)}")


def _undone(cursor: Any, rng: random.Random) -> None:
    _transfer(cursor, rng)
    raise ZeroDivisionError


def check(url: str, accounts: list[Seen], journal: list[Seen]) -> int:
    """Everything that must be true once all of it is in the topics. Returns how many transactions
    were looked at.
    """
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("select id, row_to_json(accounts) from accounts")
        expected = dict(cursor.fetchall())
        cursor.execute("select id, what, txid from journal")
        entries = {row[0]: (row[1], row[2]) for row in cursor.fetchall()}
    connection.close()

    seen_entries = [record for record in journal if record.op != "t"]
    assert {record.op for record in seen_entries} <= {"c", "r"}
    for op, kind in (("c", "false"), ("r", "true")):
        same = [e for e in seen_entries if e.op == op and e.value["source"]["snapshot"] == kind]
        ids = [record.key["id"] for record in same]
        assert len(ids) == len(set(ids)), "an entry of the journal came twice"
    once = [
        record for record in seen_entries if record.value["source"]["snapshot"] != "incremental"
    ]
    in_topic = {record.key["id"]: record.value["after"] for record in once}
    assert {id_: (row["what"], row["txid"]) for id_, row in in_topic.items()} == entries
    created = [record for record in once if record.op == "c"]
    assert all(
        record.value["source"]["txId"] == record.value["after"]["txid"] for record in created
    )
    _check_order(created)

    table: dict[int, dict[str, Any]] = {}
    count = 0
    seen: set[int] = set()
    copied = max(  # the sum counts from the end of the first copy on
        number
        for number, record in enumerate(accounts)
        if record.op == "r" and record.value["source"]["snapshot"] == "true"
    )
    read = 0
    for transaction, records in _transactions(accounts):
        if transaction is not None:
            assert transaction not in seen, "a transaction came twice, or not as a whole"
            seen.add(transaction)
        for record in records:
            _apply(table, record, is_settled=read > copied)
            read += 1
        if read > copied:
            total = sum(row["balance"] for row in table.values())
            assert total == ACCOUNTS * MONEY, f"{total} after transaction {transaction}"
            count += 1
    _check_order([record for record in accounts if record.op in ("c", "u", "d")])
    # A new column's default is in the rows without a change of them: which is not logged.
    columns = ("id", "balance", "owner")
    assert {key: {name: row.get(name) for name in columns} for key, row in table.items()} == {
        key: {name: row.get(name) for name in columns} for key, row in expected.items()
    }
    # What was altered between does not matter; what was captured as "c" in the journal does.
    assert seen <= {entry[1] for entry in entries.values()}
    return count


def _apply(table: dict[int, Any], record: Seen, *, is_settled: bool) -> None:
    key = record.key["id"] if record.key else None
    if record.value is None:
        assert key not in table
    elif record.op == "d":
        assert not is_settled or key in table, f"{key} was not there to be deleted"
        table.pop(key, None)
    elif record.op == "r" and is_settled:
        # A copy on request: the topic must say just that already.
        assert table[key]["balance"] == record.value["after"]["balance"], "a copy went back in time"
        table[key] = record.value["after"]
    else:
        table[key] = record.value["after"]


def _transactions(records: list[Seen]) -> Iterator[tuple[int | None, list[Seen]]]:
    """Runs of records of one source transaction; what was copied is by itself (None)."""
    current: list[Seen] = []
    transaction: int | None = None
    for record in records:
        if record.value is None:  # a tombstone goes with its delete
            current.append(record)
            continue
        is_copy = record.op == "r"
        this = None if is_copy else record.value["source"]["txId"]
        if current and this != transaction:
            yield transaction, current
            current = []
        transaction = this
        current.append(record)
    if current:
        yield transaction, current


def _check_order(records: list[Seen]) -> None:
    """In the order of commits: each change names the commit in front of its transaction, if the
    capture that read it had seen that one.
    """
    before = [json.loads(record.value["source"]["sequence"])[0] for record in records]
    commits = [int(commit) for commit in before if commit is not None]
    assert commits == sorted(commits), "not in the order of commits"
