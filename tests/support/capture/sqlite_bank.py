"""A bank in SQLite, at work until it is killed: python sqlite_bank.py PATH SEED

Money only moves, so the sum of balances is the same at the end of every transaction. Every
transaction leaves one row in `journal`.
"""

import os
import random
import sqlite3
import sys
import time

ACCOUNTS, MONEY = 40, 1_000
SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, number INTEGER UNIQUE);
CREATE TABLE journal (id INTEGER PRIMARY KEY, what TEXT NOT NULL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ACCOUNTS})
  INSERT INTO accounts SELECT i, {MONEY}, i FROM n;
"""


def main(path: str, seed: str) -> None:
    rng = random.Random(f"{seed} {os.getpid()}")  # another one after each kill
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = OFF")  # it is killed, the machine is not
    columns = 0
    while True:
        connection.execute("BEGIN IMMEDIATE")
        what = rng.choices(
            ["transfer", "renumber", "replace", "merge", "alter"], [60, 10, 10, 6, 1]
        )[0]
        connection.execute("INSERT INTO journal (what) VALUES (?)", (what,))
        ids = [
            row[0]
            for row in connection.execute("SELECT id FROM accounts ORDER BY random() LIMIT 2")
        ]
        match what:
            case "transfer":
                amount = rng.randrange(1, 50)
                move = "UPDATE accounts SET balance = balance + ? WHERE id = ?"
                connection.executemany(move, [(amount, ids[0]), (-amount, ids[1])])
            case "renumber":
                sql = "UPDATE OR IGNORE accounts SET id = ? WHERE id = ?"
                connection.execute(sql, (rng.randrange(10_000), ids[0]))
            case "replace":  # two become one: the key of the first, the number of the second
                sql = (
                    "REPLACE INTO accounts (id, balance, number)"
                    " SELECT a.id, a.balance + b.balance, b.number"
                    " FROM accounts a, accounts b WHERE a.id = ? AND b.id = ?"
                )
                connection.execute(sql, ids)
                sql = "INSERT OR IGNORE INTO accounts (id, balance, number) VALUES (?, 0, ?)"
                connection.execute(sql, (rng.randrange(10_000), rng.randrange(10_000)))
            case "merge":
                sql = (
                    "INSERT INTO accounts (id, balance) VALUES (?, 5)"
                    " ON CONFLICT (id) DO UPDATE SET balance = balance + 5"
                )
                connection.execute(sql, (ids[0],))
                connection.execute(
                    "UPDATE accounts SET balance = balance - 5 WHERE id = ?", (ids[1],)
                )
            case "alter" if columns < 2:
                columns += 1
                sql = f"ALTER TABLE accounts ADD COLUMN extra_{os.getpid()}_{columns} DEFAULT 'x'"
                connection.execute(sql)
        connection.execute("COMMIT" if rng.random() < 0.95 else "ROLLBACK")
        time.sleep(rng.random() * 0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
