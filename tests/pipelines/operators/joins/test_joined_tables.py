"""Table–table joins against a plain join of both tables, after every batch."""

import zlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.tables_driver import Table, Tables
from tiers import examples

LEFT = Table(pa.schema([("l", pa.int64()), ("a", pa.string()), ("x", pa.int64())]), ("l",), "left")
RIGHT = Table(
    pa.schema([("r", pa.int64()), ("b", pa.string()), ("y", pa.float64())]), ("r",), "right"
)


class Reference:
    """Both tables as dictionaries, and their join by two loops."""

    def __init__(self, left, right, on, how):
        self.tables = {}, {}
        self._specs = left, right
        self._on = on
        self._how = how

    def apply(self, side, rows):
        spec = self._specs[side]
        for row in rows:
            if row.get("_op") == "t":
                self.tables[side].clear()
                continue
            key = tuple(row[name] for name in spec.key)
            if row.get("_op") == "d":
                self.tables[side].pop(key, None)
            else:
                self.tables[side][key] = {name: row.get(name) for name in spec.schema.names}

    def rows(self):
        lefts, rights = (list(table.values()) for table in self.tables)
        found = []
        matched = set()
        for one in lefts:
            partners = [
                (number, other)
                for number, other in enumerate(rights)
                if all(one[a] is not None and one[a] == other[b] for a, b in self._on)
            ]
            matched |= {number for number, _ in partners}
            found += [{**other, **one} for _, other in partners]
            if not partners and self._how in ("left", "full"):
                found.append({**dict.fromkeys(self._specs[1].schema.names), **one})
        if self._how in ("right", "full"):
            found += [
                {**dict.fromkeys(self._specs[0].schema.names), **other}
                for number, other in enumerate(rights)
                if number not in matched
            ]
        return found


def as_set(rows):
    found = {tuple(sorted(row.items())) for row in rows}
    assert len(found) == len(rows)
    return found


def changes(spec, values, partitions):
    """Rows that are there, or go; few keys, so that they meet. One partition can be truncated."""
    columns = {
        name: values[name] if name in values else st.integers(0, 3) for name in spec.schema.names
    }
    there = st.fixed_dictionaries({**columns, "_op": st.sampled_from(["c", "u", "r", None])})
    deleted = st.fixed_dictionaries(
        {**{name: columns[name] for name in spec.key}, "_op": st.just("d")}
    )
    if partitions > 1:
        return st.one_of(there, there, there, deleted)
    return st.one_of(*[there] * 8, deleted, deleted, st.just({"_op": "t"}))


def batches(left, right, values, partitions):
    def of(spec):
        rows = st.lists(changes(spec, values, partitions), min_size=1, max_size=6)
        return rows.flatmap(
            lambda given: st.booleans().map(lambda twice: given + given[-2:] if twice else given)
        )

    return st.lists(st.tuples(of(left), of(right)), min_size=2, max_size=5)


def partitioned(spec, rows, partitions):
    """All changes of a key in one partition, as producers do it."""
    found = {}
    for row in rows:
        key = tuple(row.get(name) for name in spec.key)
        found.setdefault(zlib.crc32(repr(key).encode()) % partitions, []).append(row)
    return found


SHARED = st.sampled_from(["p", "q", "q", None])
CASES = {
    "other names": (LEFT, RIGHT, [("a", "b")], {"a": SHARED, "b": SHARED}),
    "one name": (
        LEFT,
        Table(
            pa.schema([("r", pa.int64()), ("a", pa.string()), ("y", pa.float64())]), ("r",), "right"
        ),
        [("a", "a")],
        {"a": SHARED},
    ),
    "to a key": (
        Table(pa.schema([("l", pa.int64()), ("r", pa.int64()), ("x", pa.int64())]), ("l",), "left"),
        Table(pa.schema([("r", pa.int64()), ("y", pa.float64())]), ("r",), "right"),
        [("r", "r")],
        {"r": st.sampled_from([1, 2, 3])},
    ),
    "to a key of another name": (
        LEFT,
        Table(pa.schema([("b", pa.string()), ("y", pa.float64())]), ("b",), "right"),
        [("a", "b")],
        {"a": SHARED, "b": st.sampled_from(["p", "q", "s"])},
    ),
    "key to key": (
        Table(pa.schema([("k", pa.int64()), ("x", pa.int64())]), ("k",), "left"),
        Table(pa.schema([("k", pa.int64()), ("y", pa.float64())]), ("k",), "right"),
        [("k", "k")],
        {},
    ),
    "two columns": (
        Table(
            pa.schema([("l", pa.int64()), ("k", pa.int64()), ("a", pa.string())]),
            ("l", "k"),
            "left",
        ),
        Table(
            pa.schema([("r", pa.int64()), ("k", pa.int64()), ("b", pa.string())]),
            ("k", "r"),
            "right",
        ),
        [("k", "k"), ("a", "b")],
        {"a": SHARED, "b": SHARED, "k": st.integers(0, 2), "l": st.integers(0, 2)},
    ),
}


HOWS = st.sampled_from(["inner", "left", "right", "full"])


@settings(max_examples=examples(80), deadline=None)
@given(case=st.sampled_from(sorted(CASES)), how=HOWS, data=st.data())
def test_every_batch_leaves_the_join_of_both_tables(tmp_path_factory, case, how, data):
    left, right, on, values = CASES[case]
    partitions = data.draw(st.integers(1, 3))
    given_batches = data.draw(batches(left, right, values, partitions))
    tables = Tables(
        left,
        right,
        on=on,
        how=how,
        directory=tmp_path_factory.mktemp("state"),
        buckets=data.draw(st.sampled_from([1, 2, 3])),
        seed=data.draw(st.integers(0, 9)),
    )
    reference = Reference(left, right, on, how)
    for ours, theirs in given_batches:
        times = data.draw(st.integers(1, 2))
        tables.batch(
            partitioned(left, ours, partitions), partitioned(right, theirs, partitions), times=times
        )
        reference.apply(0, ours)
        reference.apply(1, theirs)
        assert as_set(tables.rows.values()) == as_set(reference.rows())
    bounded = Tables(left, right, on=on, how=how)
    everything = [[row for batch in given_batches for row in batch[side]] for side in (0, 1)]
    found = bounded.batch(
        partitioned(left, everything[0], partitions), partitioned(right, everything[1], partitions)
    )
    assert all(row["_op"] == "c" for row in found)
    assert bounded.rows == tables.rows
