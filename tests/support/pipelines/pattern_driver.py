"""hw.match over the driverless harness: what Spark would compute of each row is computed here."""

import pyarrow as pa

from headwater.pipelines.operators.patterns.corrected_matching import CorrectedMatching
from headwater.pipelines.operators.patterns.match_arguments import read_arguments
from headwater.pipelines.operators.patterns.match_operator import Matching
from headwater.pipelines.operators.patterns.matching.leaves import Aggregate, MatchNumber
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from support.pipelines.event_log import SECOND, at
from support.pipelines.operator_driver import Driver, Source

INPUT = {
    "name": pa.string(),
    "time": pa.timestamp("us", "UTC"),
    "id": pa.int64(),
    "price": pa.int64(),
}


class Matcher:
    """hw.match over the rows of a Driver: what Spark would compute is computed here."""

    def __init__(self, directory, pattern, delay=0, late="drop", buckets=2, allowed=0, **arguments):
        given = read_arguments(list(INPUT), ("name",), pattern, unbounded=True, **arguments)
        self.given = given
        self._computed = [_function(text) for text in given.names.computed]
        kinds = [pa.bool_() if _is_condition(t) else pa.int64() for t in given.names.computed]
        computed = pa.schema([(f"__e{n}", kind) for n, kind in enumerate(kinds)])
        results = pa.schema(
            [(f"__m{n}", _type_of(leaf, kinds)) for n, leaf in enumerate(given.rules.measures)]
        )
        rows = pa.schema([(name, INPUT[name]) for name in given.shown])
        time = EventTime("time", delay * SECOND)
        kind = CorrectedMatching if late == "correct" else Matching
        lateness = Lateness(late, allowed * SECOND)
        operator = kind(("name",), given.rules, time, lateness, rows, computed, results)
        schema = pa.schema([*INPUT.items(), *computed])
        columns = (*INPUT, *computed.names, "_op")
        source = Source(schema, ("name",), columns, time)
        self.driver = Driver(operator.with_topic("operator/m"), [source], directory, buckets)

    def batch(self, rows):
        """Result rows with the measures' own names (of those that are a leaf alone)."""
        complete = {
            place: [
                {**row, **{f"__e{n}": f(row) for n, f in enumerate(self._computed)}}
                for row in of_place
            ]
            for place, of_place in rows.items()
        }
        return [self._named(row) for row in self.driver.batch(complete)]

    def again(self):
        return [self._named(row) for row in self.driver.again()]

    def _named(self, row):
        others = {name: value for name, value in row.items() if not name.startswith("__m")}
        return others | {name: row[text] for name, text in self.given.measures.items()}


def _is_condition(text):
    return any(sign in text for sign in "=<>")


def _function(text):
    for sql, python in ((" = ", " == "), ("NOT ", "not "), ("false", "False")):
        text = text.replace(sql, python)
    code = compile(text, "condition", "eval")
    return lambda row: eval(
        code, {"coalesce": lambda one, other: other if one is None else one}, row
    )


def _type_of(leaf, kinds):
    if isinstance(leaf, MatchNumber | Aggregate):
        return pa.int64()
    return pa.string() if leaf.column is None else kinds[leaf.column]


def events(prices, name="a", step=1, start=0):
    """One partition: a row each second, and the last one far behind, so that all others count."""
    rows = [
        {"name": name, "time": at(start + step * n), "id": n, "price": price}
        for n, price in enumerate(prices)
    ]
    return {("t", 0): [*rows, {"name": "other", "time": at(10_000), "id": -1, "price": -1}]}
