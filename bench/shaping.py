"""`python -m bench.shaping`: CPU time per change, from a Change to its records."""

import time
import timeit
from functools import partial

from headwater.capture.contract import Begin, Change, Column, Commit, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

TABLE = Table(
    "public",
    "orders",
    (
        Column("id", "integer", {"type": "int32"}, optional=False),
        Column("name", "text"),
        Column("email", "text"),
        Column("total", "numeric(10,2)"),
        Column(
            "created", "timestamp", {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
        ),
        Column("ok", "boolean", {"type": "boolean"}),
    ),
    ("id",),
)
ROW = {
    "id": 12345,
    "name": "some customer",
    "email": "a@example.org",
    "total": "12.50",
    "created": 1_700_000_000_000_000,
    "ok": True,
}
BEGIN = Begin({}, "5:6", 1_700_000_000_000, {"txId": 5})
RULES = {"*.email": "hash:salt", "*.name": "mask", "*.total": "drop"}
VARIANTS = {
    "plain": {},
    "schemas": {"schemas": True},
    "transactions": {"transactions": True},
    "three column rules": {"columns": RULES},
    "a condition": {"rows": {"public.orders": "total > 5 and ok"}},
}
CHANGES = {
    "insert": ("c", None, ROW),
    "update": ("u", None, ROW),
    "update with before": ("u", ROW, ROW | {"name": "other"}),
    "delete + tombstone": ("d", {"id": 5}, None),
}
COUNT = 1000


def microseconds(run):
    return min(timeit.repeat(run, number=20, repeat=9, timer=time.process_time)) / COUNT / 20 * 1e6


def shape_all(shaper, changes):
    for change in changes:
        shaper.change(change)


def read_all(shaper, rows):
    for _ in shaper.rows(TABLE, rows, "true", 5):
        pass


def main():
    print(f"{'':20}" + "".join(f"{name:>20}" for name in [*CHANGES, "read"]))
    for name, settings in VARIANTS.items():
        shaper = Shaper(
            CaptureSettings("shop", Secret("postgresql://x"), **settings), "postgresql", "shop"
        )
        figures = []
        for op, before, after in CHANGES.values():
            changes = [Change(TABLE, op, before, after, n, {"lsn": n}) for n in range(COUNT)]
            shaper.begin(BEGIN)
            figures.append(microseconds(partial(shape_all, shaper, changes)))
        rows = [ROW] * COUNT
        figures.append(microseconds(partial(read_all, shaper, rows)))
        print(f"{name:20}" + "".join(f"{figure:17.2f} µs" for figure in figures))

    shaper = Shaper(CaptureSettings("shop", Secret("postgresql://x")), "postgresql", "shop")
    one = Change(TABLE, "c", None, ROW, 0, {"lsn": 1})

    def transactions():
        for _ in range(COUNT):
            shaper.begin(BEGIN)
            shaper.change(one)
            shaper.commit(Commit(1))

    print(f"transaction of one insert: {microseconds(transactions):.2f} µs")


if __name__ == "__main__":
    main()
