"""A replayed topic with a condition has exactly the rows that meet it, whatever happened."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.capture.contract import Begin, Change, Column, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

TABLE = Table(
    "public",
    "orders",
    (
        Column("id", "integer", {"type": "int32"}, optional=False),
        Column("line", "text", {"type": "string"}, optional=False),
        Column("total", "numeric(10,2)", {"type": "string"}),
        Column("country", "character(3)", {"type": "string"}),
    ),
    ("id", "line"),
)
CONDITION = "total > 9.5 and (country = 'DE' or country is null)"

_keys = st.tuples(st.integers(1, 3), st.sampled_from("ab"))
_values = st.tuples(
    st.sampled_from([None, "9.50", "9.51", "10.00", "100.00"]),
    st.sampled_from([None, "DE ", "FR "]),
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _keys, _values),
        st.tuples(st.just("move"), _keys, _keys, _values),
        st.tuples(st.just("delete"), _keys),
        st.tuples(st.just("truncate")),
        st.tuples(st.just("copy")),
    ),
    max_size=25,
)


def _meets(row) -> bool:
    return (
        row["total"] is not None and float(row["total"]) > 9.5 and row["country"] in (None, "DE ")
    )


def _changes(steps, image):
    """Changes as a database reports them, and the table behind each: (change or rows, table)."""
    rows: dict = {}

    def old(row, *, is_key_changed=True):
        if image == "full":
            return row
        return {name: row[name] for name in TABLE.key} if is_key_changed else None

    def row_of(key, values):
        return dict(zip(("id", "line", "total", "country"), (*key, *values), strict=True))

    for step in steps:
        match step:
            case ("put", key, values):
                after, before = row_of(key, values), rows.get(key)
                rows[key] = after
                if before is None:
                    yield ("c", None, after), rows
                else:
                    yield ("u", old(before, is_key_changed=False), after), rows
            case ("move", key, target, values) if key in rows and target not in rows:
                before, after = rows.pop(key), row_of(target, values)
                rows[target] = after
                yield ("u", old(before), after), rows
            case ("delete", key) if key in rows:
                yield ("d", old(rows.pop(key)), None), rows
            case ("truncate",):
                rows.clear()
                yield ("t", None, None), rows
            case ("copy",):
                yield None, rows


def _replay(records, table):
    for _, key, value, _ in records:
        if value is None:
            table.pop(key, None)
            continue
        event = json.loads(value)
        if event["op"] == "t":
            table.clear()
        elif event["op"] == "d":
            table.pop(key, None)
        else:
            assert _meets(event["after"])
            table[key] = event["after"]
        if event["before"] is not None and None not in event["before"].values():
            assert _meets(event["before"]), "a row that must not be published"


@pytest.mark.parametrize("image", ["full", "key"])
@given(steps=_steps, tombstones=st.booleans())
def test_a_replayed_topic_is_what_the_condition_selects(image, steps, tombstones):
    settings = CaptureSettings(
        "shop", Secret("postgresql://x"), rows={"public.orders": CONDITION}, tombstones=tombstones
    )
    shaper = Shaper(settings, "postgresql", "db")
    replayed: dict = {}
    for ordinal, (change, rows) in enumerate(_changes(steps, image)):
        if change is None:
            records = list(shaper.rows(TABLE, list(rows.values()), "incremental"))
        else:
            shaper.begin(Begin({}, "1", 0, {}))
            records = shaper.change(Change(TABLE, *change, ordinal, {"lsn": ordinal}))
        _replay(records, replayed)
        assert sorted(map(str, replayed.values())) == sorted(
            str(row) for row in rows.values() if _meets(row)
        )
