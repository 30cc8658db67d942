"""`hw.match` and `hw.match_stored` without Spark: rows a second through the operators, by the
number of keys, and of stored patterns.

    .venv/bin/python -m bench.patterns [--rows 400000] [--batch-rows 20000] [--corrected]

Three steps (ordered, shipped, paid, with other rows in between) within an hour of event time, in
one process on one core, with state in memory. Every key goes through the steps in turn; a tenth of
the orders is never paid, and becomes a row when its hour is over. Of stored patterns, each order
begins one. Rates of stored patterns are by CPU time, which a busy machine changes less.
"""

import argparse
import json
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.pipelines.operators.patterns.corrected_matching import CorrectedMatching
from headwater.pipelines.operators.patterns.match_arguments import read_arguments
from headwater.pipelines.operators.patterns.match_operator import Matching
from headwater.pipelines.operators.patterns.stored.definitions import PATTERN_COLUMNS
from headwater.pipelines.operators.patterns.stored.stored_match_operator import StoredMatching
from headwater.pipelines.operators.patterns.stored.versioned_match import result_schema
from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    OFFSET,
    ORIGIN,
    SEEN,
    TIME,
    Input,
    PartitionProgress,
)
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, Lateness

STEPS: Final = 6  # of a key in turn: order, other, ship, other, pay, other
PAID_STEP: Final = 4
SPAN_US: Final = 600_000_000  # of event time between two rows of a key
_DAY_US: Final = 86_400_000_000

Int64s = npt.NDArray[np.int64]


def operator(*, is_corrected: bool = False) -> Matching:
    steps = {"ORDERED": "step = 0", "SHIPPED": "step = 2", "PAID": "step = 4"}
    given = read_arguments(
        ["k", "step", "v"],
        ("k",),
        "ORDERED X*? SHIPPED X*? PAID",
        define=steps,
        measures={"ordered": "ORDERED.v", "paid": "PAID.v", "rows": "count(*)"},
        within="1 hour",
        timed_out="is_unpaid",
    )
    kinds = [pa.bool_() if "=" in text else pa.int64() for text in given.names.computed]
    computed = pa.schema([(f"__e{number}", kind) for number, kind in enumerate(kinds)])
    results = pa.schema([(f"__m{number}", pa.int64()) for number in range(3)])
    rows = pa.schema([("k", pa.int64())])
    event_time = EventTime("at", 0)
    if is_corrected:
        lateness = Lateness(CORRECT, _DAY_US)
        return CorrectedMatching(("k",), given.rules, event_time, lateness, rows, computed, results)
    return Matching(("k",), given.rules, event_time, Lateness(DROP, 0), rows, computed, results)


def steps(number: Int64s, keys: int) -> tuple[Int64s, Int64s]:
    """The key and the step of each row, by its number."""
    key, turn = number % keys, number // keys
    step = turn % STEPS
    is_unpaid = ((key + turn // STEPS) % 10 == 0) & (step == PAID_STEP)
    step[is_unpaid] = 1
    return key, step


def batches(rows: int, keys: int, batch_rows: int) -> Iterator[Input]:
    """Rows of all keys in turn, in the order of time."""
    for first in range(0, rows, batch_rows):
        number = np.arange(first, min(first + batch_rows, rows), dtype=np.int64)
        key, step = steps(number, keys)
        times = number * SPAN_US // keys
        columns = {
            "k": key,
            "__e0": step == 0,
            "__e1": step == 2,
            "__e2": step == 4,
            "__e3": number,
            TIME: times,
            SEEN: times,
            FAULT: np.zeros(len(number), np.int8),
            ORIGIN: np.zeros(len(number), np.int32),
            OFFSET: number,
        }
        progress = PartitionProgress("t", 0, int(times[-1]), int(number[-1]))
        yield Input(pa.table(columns), (("t", 0),), (progress,), 0)


def measure(rows: int, keys: int, batch_rows: int, *, is_corrected: bool) -> tuple[float, int, int]:
    """Rows a second, results, and the rows of state at the end."""
    matching, state, found = operator(is_corrected=is_corrected), MemoryState(), 0
    inputs = list(batches(rows, keys, batch_rows))
    began_s = time.perf_counter()
    for given in inputs:
        found += len(matching.step(state, (given,)))
    took_s = time.perf_counter() - began_s
    return rows / took_s, found, state.counters["rows"]


def stored_operator() -> StoredMatching:
    rows = pa.schema([("k", pa.int64()), ("step", pa.int64()), ("v", pa.int64())])
    id_ = pa.field("id", pa.string())
    fields = (id_, *(pa.field(*column) for column in PATTERN_COLUMNS.items()))
    output = result_schema([rows.field("k")], id_)
    event_time, lateness = EventTime("at", 0), Lateness("drop", 0)
    return StoredMatching(output, ("k",), rows, "id", fields, event_time, lateness, False)


def definitions(operator: StoredMatching, patterns: int) -> Input:
    """Of as many patterns, of which each takes its share of the keys."""
    rows = []
    for number in range(patterns):
        steps = {"ORDERED": "step = 0", "SHIPPED": "step = 2", "PAID": "step = 4"}
        steps["ORDERED"] += f" AND k % {patterns} = {number}"
        row = {
            "id": str(number),
            "pattern": "ORDERED X*? SHIPPED X*? PAID",
            "define": json.dumps(steps),
            "measures": '{"ordered": "ORDERED.v", "paid": "PAID.v", "rows": "count(*)"}',
            "within": "1 hour",
            "timed_out": True,
            "from": "start",
        }
        rows.append({"_op": "u", TIME: 0, SEEN: 0, ORIGIN: 0, OFFSET: number} | row)
    schema = pa.schema(
        [*operator.patterns, ("_op", pa.string()), (TIME, pa.int64()), (SEEN, pa.int64()),
         (ORIGIN, pa.int32()), (OFFSET, pa.int64())]
    )  # fmt: skip
    progress = PartitionProgress("p", 0, 0, patterns - 1)
    return Input(pa.Table.from_pylist(rows, schema), (("p", 0),), (progress,), 0)


def measure_stored(rows: int, keys: int, batch_rows: int, patterns: int) -> tuple[float, int]:
    """Rows a second of CPU time, and results."""
    matching, state, found = stored_operator(), MemoryState(), 0
    changes = definitions(matching, patterns)
    none = Input(changes.rows.slice(0, 0), (), (), 0)
    inputs = list(batches(rows, keys, batch_rows))
    began_s = time.process_time()
    for number, given in enumerate(inputs):
        step = pa.array(
            np.select(
                [given.rows[f"__e{number}"].to_numpy() for number in range(3)], [0, 2, 4], 1
            ).astype(np.int64)
        )
        table = given.rows.append_column("step", step).append_column("v", given.rows["__e3"])
        of_rows = Input(table, given.origins, given.progress, 0)
        found += len(matching.step(state, (of_rows, none if number else changes)))
    return rows / (time.process_time() - began_s), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch-rows", type=int, default=20_000)
    parser.add_argument("--corrected", action="store_true", help='late="correct" for a day')
    options = parser.parse_args()
    for keys in (1_000, 100_000):
        rows = options.rows * (1 + (keys > 1_000))
        rate, found, stored = measure(
            rows, keys, options.batch_rows, is_corrected=options.corrected
        )
        print(f"{keys:>9,} keys: {rate:>9,.0f} rows/s, {found:,} results, {stored:,} rows of state")
    for patterns in (1, 10, 100):
        rows = options.rows // 4
        per_cpu_s, found = measure_stored(rows, 1_000, options.batch_rows, patterns)
        print(f"{patterns:>9,} stored patterns: {per_cpu_s:>9,.0f} rows/s, {found:,} results")


if __name__ == "__main__":
    main()
