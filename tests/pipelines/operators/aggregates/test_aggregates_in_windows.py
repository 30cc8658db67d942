"""All aggregates through the state of windows: panes merged, accumulators on disk, any cut."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import examples

import headwater as hw
from headwater.pipelines.operators.aggregates.bloom import _test
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import Sliding

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
S = 1_000_000
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("price", pa.decimal128(10, 2)),
    ]
)
NAMED = {
    "rows": hw.agg.count(),
    "numbers": hw.agg.count("number"),
    "rate": hw.agg.rate("1 second"),
    "total": hw.agg.sum("number"),
    "ratios": hw.agg.sum("ratio"),
    "mean": hw.agg.avg("ratio"),
    "paid": hw.agg.sum("price"),
    "least": hw.agg.min("name"),
    "greatest": hw.agg.max("price"),
    "first": hw.agg.first("number"),
    "last": hw.agg.last("name"),
    "median": hw.agg.percentile("number", 0.5),
    "tails": hw.agg.percentiles("ratio", [0.0, 1.0]),
    "distinct": hw.agg.distinct("name"),
    "top": hw.agg.top("name", 2),
    "seen": hw.agg.bloom("name", expected=100),
}
SIZE_S, HOP_S = 6, 2


def operator():
    aggregates = NamedAggregates(tuple(NAMED.items()), pa.schema([*SCHEMA, *ADDED[:1]]))
    time = EventTime("at", 0)
    return FixedWindows(aggregates, (), time, HOP_S * S, SIZE_S // HOP_S, Lateness("drop", 0))


def driver(directory):
    made = operator()
    columns = (*SCHEMA.names, "_op")
    return Driver(made, [Source(SCHEMA, (), columns, made.time)], directory, buckets=1)


def expected(rows):
    """Of one window: rows with the offset of each."""
    present = {name: [row[name] for row in rows if row[name] is not None] for name in SCHEMA.names}
    numbers, ratios, names = present["number"], present["ratio"], present["name"]

    def chosen(name, choose):
        met = [(row["at"], row["offset"], row[name]) for row in rows if row[name] is not None]
        return choose(met)[2] if met else None

    ranked = sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0]))
    ordered = sorted(numbers)
    return {
        "rows": len(rows),
        "numbers": len(numbers),
        "rate": len(rows) / SIZE_S,
        "total": sum(numbers) if numbers else None,
        "ratios": math.fsum(ratios) if ratios else None,
        "mean": math.fsum(ratios) / len(ratios) if ratios else None,
        "paid": sum(present["price"]) if present["price"] else None,
        "least": min(names, default=None),
        "greatest": max(present["price"], default=None),
        "first": chosen("number", min),
        "last": chosen("name", max),
        "median": ordered[math.ceil(Fraction(1, 2) * len(ordered)) - 1] if ordered else None,
        "tails": [min(ratios), max(ratios)] if ratios else None,
        "distinct": len(set(names)),
        "top": [{"value": value, "count": count} for value, count in ranked[:2]],
    }


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(0, 2),
            "name": st.none() | st.sampled_from(["a", "b", "日本", "Ä"]),
            "number": st.none() | st.integers(-50, 100),
            "ratio": st.none() | st.floats(-1e6, 1e6),
            "price": st.none() | st.decimals(0, 1000, places=2),
        }
    ),
    max_size=15,
)


def log(drawn):
    """In the order of time, and at the end a row that closes all windows before it."""
    second, rows = 0, []
    for draw in drawn:
        second += draw["step"]
        values = {name: value for name, value in draw.items() if name != "step"}
        rows.append({"at": EPOCH + timedelta(seconds=second), **values})
    rows.append({"at": EPOCH + timedelta(seconds=1000), **dict.fromkeys(SCHEMA.names[1:])})
    return rows


@settings(max_examples=examples(25), deadline=None)
@given(one=ROWS, other=ROWS, size=st.integers(1, 12))
def test_windows_are_what_plain_python_makes_of_them(one, other, size):
    logs = {("t", 0): log(one), ("t", 1): log(other)}
    windows = {}
    for rows in logs.values():
        for offset, row in enumerate(rows[:-1]):
            second = int((row["at"] - EPOCH).total_seconds())
            for start in range(second // HOP_S * HOP_S - SIZE_S + HOP_S, second + 1, HOP_S):
                windows.setdefault(start, []).append({**row, "offset": offset})

    with TemporaryDirectory() as directory:
        streamed, run = [], driver(Path(directory))
        parts = [
            [rows[at : at + size] for at in range(0, len(rows), size)] for rows in logs.values()
        ]
        for batch in zip_longest(*parts):
            run.batch(
                {partition: rows for partition, rows in zip(logs, batch, strict=True) if rows}
            )
            streamed += run.again()
    bounded = driver(None).batch(logs)

    def by_start(results):
        return {(result.pop("window_start") - EPOCH).total_seconds(): result for result in results}

    found = by_start(streamed)
    assert found == by_start(bounded)
    assert found.keys() == windows.keys()
    for start, rows in windows.items():
        seen = found[start].pop("seen")
        assert {name: found[start][name] for name in expected(rows)} == expected(rows)
        names = [row["name"] for row in rows if row["name"] is not None]
        asked = pa.array([*names, "another"])
        answers = _test(pa.array([seen] * len(asked)), asked).to_pylist()
        assert answers == [True] * len(names) + [False]
        assert isinstance(found[start]["paid"], Decimal | None)


@settings(max_examples=examples(25), deadline=None)
@given(drawn=ROWS, size=st.integers(1, 12))
def test_sessions_and_sliding_windows_take_them_too(drawn, size):
    rows = [{**row, "offset": offset} for offset, row in enumerate(log(drawn))]
    sessions: list[list[dict]] = []
    for row in rows[:-1]:
        if sessions and row["at"] - sessions[-1][-1]["at"] <= timedelta(seconds=1):
            sessions[-1].append(row)
        else:
            sessions.append([row])
    intervals = [
        [other for other in rows if 0 <= (row["at"] - other["at"]).total_seconds() < SIZE_S]
        for row in rows[:-1]
    ]
    aggregates, time = operator().aggregates, EventTime("at", 0)
    for made, groups in [
        (Sessions((), S, time, Lateness("drop", 0), False, aggregates), sessions),
        (Sliding((), (), SIZE_S * S, time, Lateness("drop", 0), False, aggregates), intervals),
    ]:
        with TemporaryDirectory() as directory:
            source = Source(SCHEMA, (), (*SCHEMA.names, "_op"), time)
            run = Driver(made, [source], Path(directory), buckets=1)
            plain = [{name: row[name] for name in SCHEMA.names} for row in rows]
            parts = [plain[at : at + size] for at in range(0, len(plain), size)]
            found = [row for part in parts for row in run.batch({("t", 0): part})]
        assert len(found) == len(groups)
        for window, members in zip(found, groups, strict=True):
            wanted = expected(members) | {"rate": window["rate"]}  # by another length
            assert {name: window[name] for name in wanted} == wanted
            names = [row["name"] for row in members if row["name"] is not None]
            asked = pa.array([*names, "another"])
            answers = _test(pa.array([window["seen"]] * len(asked)), asked).to_pylist()
            assert answers == [True] * len(names) + [False]
