"""The operators of hw.join_tables one behind the other, without Spark: what one gives goes to the
next in any order, as a shuffle leaves it.

    tables = Tables(posts, follows, on="author", how="inner", directory=tmp_path)
    tables.batch([post(1, "ann", "hello")], [follow("bob", "ann")])    # changes of the result
    tables.rows                                                        # its rows by now
"""

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headwater.pipelines.operators.joins.tables.join_tables import joined_tables, planned
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from support.pipelines.operator_driver import Driver, Source


@dataclass(frozen=True)
class Table:
    schema: pa.Schema
    key: tuple[str, ...]
    topic: str


class Tables:
    def __init__(
        self,
        left: Table,
        right: Table,
        *,
        on,
        how: str = "inner",
        directory: Path | None = None,
        buckets: int = 3,
        seed: int = 0,
    ) -> None:
        self._tables = left, right
        self._random = random.Random(seed)
        pairs = [(on, on)] if isinstance(on, str) else [(a, a) if a == b else (a, b) for a, b in on]
        joined = joined_tables([left.schema, right.schema], [left.key, right.key], pairs, how)
        join, last = planned(joined, pairs, how)

        def place(name):
            return None if directory is None else directory / name

        self._changes = [
            Driver(
                TableChanges(table.name, table.columns, table.key, table.on),
                [
                    Source(
                        table.columns,
                        table.key,
                        (*table.columns.names, "_op"),
                        everywhere=lambda row: row["_op"] == "t",
                    )
                ],
                place(table.name),
                buckets,
            )
            for table in joined
        ]
        sources = [
            Source(table.columns, table.on, (*table.columns.names, "_op")) for table in joined
        ]
        self.join = Driver(join, sources, place("join"), buckets)
        self._last = None
        if last is not None:
            columns = [field for field in join.output if field.name not in ("_op", "_position")]
            names = [field.name for field in columns]
            source = Source(pa.schema(columns), last.key, (*names, "_op"))
            self._last = Driver(last, [source], place("last"), buckets)
        self.key = tuple(dict.fromkeys((*left.key, *right.key)))
        self.rows: dict[tuple, dict] = {}

    @property
    def is_consolidated_apart(self) -> bool:
        return self._last is not None

    def batch(self, left, right=(), *, times: int = 1) -> list[dict]:
        """Rows, or rows by partition. Each operator runs its batch `times` times. The changes must
        be such that they can be applied; `rows` is what they lead to."""
        moves = []
        for table, driver, given in zip(self._tables, self._changes, (left, right), strict=True):
            by_partition = given if isinstance(given, dict) else {0: given}
            by_partition = {
                (table.topic, part): rows for part, rows in by_partition.items() if rows
            }
            moves.append(self._run(driver, [by_partition], times))
        found = self._run(self.join, [self._placed(move) for move in moves], times)
        if self._last is not None:
            found = self._run(self._last, [self._placed(found)], times)
        self._apply(found)
        return found

    def _run(self, driver, given, times):
        found = driver.batch(*given)
        for _ in range(times - 1):
            assert driver.again() == found
        self._random.shuffle(found)
        return found

    def _placed(self, rows):
        by_partition = defaultdict(list)
        for row in rows:
            place = row["_position"]
            by_partition[place["topic"], place["partition"]].append(
                {**row, "_position": place["offset"]}
            )
        return by_partition

    def _apply(self, changes):
        seen = set()
        for change in changes:
            row = {name: value for name, value in change.items() if name[0] != "_"}
            key = tuple(row[name] for name in self.key)
            assert key not in seen, f"two changes of {key} in one batch"
            seen.add(key)
            if change["_op"] == "c":
                assert key not in self.rows, f"{key} is there already"
                self.rows[key] = row
            elif change["_op"] == "u":
                assert key in self.rows, f"{key} is not there"
                assert self.rows[key] != row, f"{key} is as it was"
                self.rows[key] = row
            else:
                assert change["_op"] == "d"
                del self.rows[key]
