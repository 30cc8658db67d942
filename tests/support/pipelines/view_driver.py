"""A query as a view, without a broker: batches of changes go through its plan as in the driver.

view = ViewDriver(spark, tmp_path, query, {"o": Table("id bigint, n int", ("id",))})
view.batch({"o": [{"id": 1, "n": 5}], "c": [...]})     # rows with `_op`, "c" if they have none
view.rows                                              # the result as a store would have it
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from math import isnan
from pathlib import Path

import pyarrow as pa

from headwater.pipelines.engine.local_batch import LocalBatch
from headwater.pipelines.engine.local_plan import plan_locally
from headwater.pipelines.engine.local_state import LocalState
from headwater.pipelines.flow import Flow
from headwater.pipelines.operators.runtime.naming import building
from headwater.pipelines.operators.state.state_files import begin
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.views.query import sql
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log
from support.pipelines.operator_driver import Unsynced


@dataclass(frozen=True)
class Table:
    schema: str
    key: tuple[str, ...] = ()


class ViewDriver:
    def __init__(self, spark, directory: Path, query: str, tables: Mapping[str, Table], key=()):
        self._directory = directory
        self._stack = ExitStack()
        reader = LiveReader(
            spark, Log("127.0.0.1:1", ClientSettings()), PipelineSettings("view", file="view.py")
        )
        with building("view"):
            flow = Flow(spark, "view", reader, None)
            frames = {name: flow.changes(name, table.schema) for name, table in tables.items()}
            keys = {name: table.key for name, table in tables.items() if table.key}
            result = sql(query, key=key, keys=keys, **frames)
            flow.write(result, to="topic", table="result", key=key or result.columns[0])
            (self.write,) = flow.writes
        self.plan = plan_locally(self.write)
        self._stack.callback(self.plan.close)
        directory.mkdir(parents=True, exist_ok=True)
        for operator in self.write.operators:
            begin(directory / operator.name, operator.buckets, files=Unsynced())
        self._state = self._loaded(-1)
        self._committed = -1
        self._offsets = {name: count() for name in tables}
        self.key = next(
            operator.operator.key for operator in self.write.operators if "result" in operator.name
        )
        self._rows: dict[tuple, dict] = {}
        self.last: list[dict] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _loaded(self, batch: int) -> LocalState:
        state = LocalState(self.write.operators, self._directory, files=Unsynced())
        state.load(batch)
        return state

    def batch(
        self, changes: Mapping[str, Sequence[dict]], *, restart: bool = False, now_ms: int = 1_000
    ) -> list[dict]:
        """Without changes it is a batch because time has passed."""
        number = self._committed + 1
        if restart:
            self._state = self._loaded(number - 1)
        given = {}
        for source in self.plan.sources:
            (name,) = source.options.topic
            given[source.number] = self._frame(name, source.no_rows.schema, changes.get(name, ()))
        self._state.begin_batch()
        is_tick = not any(changes.values())
        rows = LocalBatch(self._state, given, now_ms, is_tick=is_tick).rows(self.plan)
        self._state.commit(number)
        self._committed = number
        self.last = rows.to_pylist()
        for row in self.last:
            self._apply(row)
        return self.last

    def _apply(self, row: dict) -> None:
        key = tuple(_equal_to_itself(row[name]) for name in self.key)
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        if row["_op"] == "d":
            assert key in self._rows, f"{key} is deleted and was not there"
            del self._rows[key]
        elif row["_op"] == "c":
            assert key not in self._rows, f"{key} is created and was there"
            self._rows[key] = values
        else:
            assert key in self._rows, f"{key} is updated and was not there"
            self._rows[key] = values

    @property
    def rows(self) -> list[tuple]:
        return [tuple(row.values()) for row in self._rows.values()]

    def state_rows(self, node: str) -> int:
        """Of the nodes with this in their name."""
        return sum(
            bucket.counters.get("rows", 0)
            for name, buckets in self._state.of.items()
            if name.endswith(node)
            for bucket in buckets
        )

    def _frame(self, name: str, schema: pa.Schema, rows: Sequence[dict]) -> pa.Table:
        completed = [
            {
                "_op": "u",
                **row,
                "_position": {"topic": name, "partition": 0, "offset": next(self._offsets[name])},
            }
            for row in rows
        ]
        return pa.Table.from_pylist(completed, schema=schema)


def _equal_to_itself(value: object) -> object:
    return "NaN" if isinstance(value, float) and isnan(value) else value
