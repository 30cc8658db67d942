"""Cases in which table–table joins of other systems are wrong, one test each."""

from collections import Counter

import pyarrow as pa
import pytest
from support.pipelines.tables_driver import Table, Tables

from headwater.errors import PipelineError
from headwater.pipelines.operators.joins.tables.join_tables import joined_tables, planned
from headwater.pipelines.operators.runtime.contract import OFFSET, ORIGIN, Input
from headwater.pipelines.operators.state.state_files import MemoryState

POSTS = Table(
    pa.schema([("post", pa.int64()), ("author", pa.string()), ("text", pa.string())]),
    ("post",),
    "posts",
)
FOLLOWS = Table(
    pa.schema([("follower", pa.string()), ("author", pa.string())]),
    ("follower", "author"),
    "follows",
)
LEFT = Table(pa.schema([("l", pa.int64()), ("a", pa.int64()), ("x", pa.int64())]), ("l",), "left")
RIGHT = Table(pa.schema([("r", pa.int64()), ("b", pa.int64()), ("y", pa.int64())]), ("r",), "right")


def post(number, author, text, op="c"):
    return {"post": number, "author": author, "text": text, "_op": op}


def follow(follower, author, op="c"):
    return {"follower": follower, "author": author, "_op": op}


def left(number, a, x=0, op="c"):
    return {"l": number, "a": a, "x": x, "_op": op}


def right(number, b, y=0, op="c"):
    return {"r": number, "b": b, "y": y, "_op": op}


def ops(found):
    return sorted((row["_op"], row["l"], row["r"]) for row in found)


class TestTimeline:
    @pytest.fixture
    def tables(self, tmp_path):
        tables = Tables(FOLLOWS, POSTS, on="author", directory=tmp_path)
        tables.batch(
            [follow("bob", "ann"), follow("cleo", "ann"), follow("bob", "dan")],
            [post(1, "ann", "one"), post(2, "ann", "two"), post(3, "dan", "three")],
        )
        return tables

    def of(self, tables, follower):
        return {
            row["post"]: row["text"] for row in tables.rows.values() if row["follower"] == follower
        }

    def test_everybody_sees_whom_they_follow(self, tables):
        assert self.of(tables, "bob") == {1: "one", 2: "two", 3: "three"}
        assert self.of(tables, "cleo") == {1: "one", 2: "two"}

    def test_an_unfollow_removes_all_posts_of_that_author_and_no_others(self, tables):
        found = tables.batch([follow("bob", "ann", "d")])
        assert [row["_op"] for row in found] == ["d", "d"]
        assert self.of(tables, "bob") == {3: "three"}
        assert self.of(tables, "cleo") == {1: "one", 2: "two"}

    def test_a_follow_brings_the_posts_of_the_author_in(self, tables):
        found = tables.batch([follow("cleo", "dan")])
        assert [(row["_op"], row["post"]) for row in found] == [("c", 3)]

    def test_an_edit_changes_all_timelines(self, tables):
        found = tables.batch([], [post(1, "ann", "uno", "u")])
        assert sorted((row["_op"], row["follower"], row["text"]) for row in found) == [
            ("u", "bob", "uno"),
            ("u", "cleo", "uno"),
        ]

    def test_a_deleted_post_leaves_all_timelines(self, tables):
        found = tables.batch([], [{"post": 1, "_op": "d"}])
        assert sorted((row["_op"], row["follower"], row["post"]) for row in found) == [
            ("d", "bob", 1),
            ("d", "cleo", 1),
        ]

    def test_unfollowed_and_followed_again_in_one_batch_is_no_change(self, tables):
        assert tables.batch([follow("bob", "ann", "d"), follow("bob", "ann")]) == []

    def test_a_follow_and_a_post_in_one_batch_meet_once(self, tables):
        found = tables.batch([follow("eve", "fay")], [post(4, "fay", "four")])
        assert [(row["_op"], row["follower"], row["post"]) for row in found] == [("c", "eve", 4)]

    def test_an_unfollow_and_an_edit_in_one_batch(self, tables):
        tables.batch([follow("bob", "ann", "d")], [post(1, "ann", "uno", "u")])
        assert self.of(tables, "bob") == {3: "three"}
        assert self.of(tables, "cleo") == {1: "uno", 2: "two"}


class TestRowsThatMove:
    """From one join key to another, which is from one bucket to another."""

    def test_a_left_row_goes_from_one_right_row_to_another(self, tmp_path):
        for seed in range(3):
            tables = Tables(
                LEFT, RIGHT, on=[("a", "b")], directory=tmp_path / str(seed), buckets=8, seed=seed
            )
            assert tables.is_consolidated_apart
            tables.batch([left(1, 10)], [right(1, 10), right(2, 20)])
            found = tables.batch([left(1, 20, op="u")])
            assert ops(found) == [("c", 1, 2), ("d", 1, 1)]

    @pytest.mark.parametrize("how", ["inner", "left", "full"])
    def test_the_key_of_the_result_stays_while_both_sides_move(self, tmp_path, how):
        for seed in range(3):  # whichever bucket comes first
            tables = Tables(
                LEFT,
                RIGHT,
                on=[("a", "b")],
                how=how,
                directory=tmp_path / str(seed),
                buckets=8,
                seed=seed,
            )
            tables.batch([left(1, 10)], [right(1, 10)])
            found = tables.batch([left(1, 20, op="u")], [right(1, 20, op="u")])
            assert [(row["_op"], row["a"], row["b"]) for row in found] == [("u", 20, 20)]

    @pytest.mark.parametrize("how", ["inner", "left", "full"])
    def test_the_same_where_the_join_column_has_one_name(self, tmp_path, how):
        other = Table(pa.schema([("r", pa.int64()), ("a", pa.int64())]), ("r",), "right")
        tables = Tables(LEFT, other, on="a", how=how, directory=tmp_path, buckets=8)
        tables.batch([left(n, n) for n in range(4)], [{"r": n, "a": n} for n in range(4)])
        found = tables.batch(
            [left(n, n + 10, op="u") for n in range(4)], [{"r": n, "a": n + 10} for n in range(4)]
        )
        assert sorted((row["_op"], row["l"], row["r"], row["a"]) for row in found) == [
            ("u", n, n, n + 10) for n in range(4)
        ]

    @pytest.mark.parametrize(
        ("how", "on", "keys", "is_apart"),
        [
            ("inner", [("a", "a")], (("l",), ("r",)), True),
            ("inner", [("a", "a")], (("l",), ("a",)), False),
            ("full", [("a", "a")], (("l", "a"), ("r",)), False),
            ("inner", [("a", "b")], (("l",), ("r",)), True),
            ("inner", [("a", "b")], (("l",), ("b",)), False),
            ("left", [("a", "b")], (("l",), ("b",)), True),  # alone, it has no b
            ("left", [("a", "b")], (("l", "a"), ("r",)), False),
            ("right", [("a", "b")], (("l", "a"), ("r",)), True),
            ("right", [("a", "b")], (("l",), ("r", "b")), False),
            ("full", [("a", "b")], (("l", "a"), ("r",)), True),
            ("full", [("a", "b")], (("l", "a"), ("r", "b")), False),
            ("inner", [("a", "a"), ("x", "y")], (("l", "a"), ("r",)), True),
        ],
    )
    def test_a_third_step_only_where_rows_can_move(self, how, on, keys, is_apart):
        names = [["l", "a", "x"], ["r", *(other for _, other in on)]]
        schemas = [pa.schema([(name, pa.int64()) for name in of]) for of in names]
        _, last = planned(joined_tables(schemas, keys, on, how), on, how)
        assert (last is not None) == is_apart

    def test_a_row_without_a_partner_moves(self, tmp_path):
        tables = Tables(LEFT, RIGHT, on=[("a", "b")], how="left", directory=tmp_path, buckets=8)
        tables.batch([left(1, 10)])
        found = tables.batch([left(1, 20, op="u")])
        assert [(row["_op"], row["a"], row["r"]) for row in found] == [("u", 20, None)]
        found = tables.batch([left(1, None, op="u")])
        assert [(row["_op"], row["a"], row["r"]) for row in found] == [("u", None, None)]


class TestOuter:
    @pytest.fixture
    def tables(self, tmp_path):
        return Tables(LEFT, RIGHT, on=[("a", "b")], how="left", directory=tmp_path)

    def test_partners_come_and_go(self, tables):
        assert ops(tables.batch([left(1, 10)])) == [("c", 1, None)]
        first = tables.batch([], [right(1, 10)])
        assert {(row["_op"], row["r"]) for row in first} == {("d", None), ("c", 1)}
        assert ops(tables.batch([], [right(2, 10)])) == [("c", 1, 2)]
        assert ops(tables.batch([], [right(1, 10, op="d")])) == [("d", 1, 1)]
        last = tables.batch([], [right(2, 10, op="d")])
        assert {(row["_op"], row["r"]) for row in last} == {("d", 2), ("c", None)}

    def test_one_partner_replaces_another_without_a_moment_alone(self, tables):
        tables.batch([left(1, 10)], [right(1, 10)])
        found = tables.batch([], [right(1, 10, op="d"), right(2, 10)])
        assert ops(found) == [("c", 1, 2), ("d", 1, 1)]

    def test_a_row_without_a_partner_changes(self, tables):
        tables.batch([left(1, 10, 0)])
        assert ops(tables.batch([left(1, 10, 1, "u")])) == [("u", 1, None)]
        found = tables.batch([left(1, 10, 2, "u")], [right(1, 10)])
        assert {(row["_op"], row["r"]) for row in found} == {("d", None), ("c", 1)}
        found = tables.batch([left(1, 10, 3, "u")], [right(1, 10, op="d")])
        assert {(row["_op"], row["r"]) for row in found} == {("d", 1), ("c", None)}

    def test_null_meets_nothing_not_even_null(self, tables):
        found = tables.batch([left(1, None)], [right(1, None)])
        assert ops(found) == [("c", 1, None)]

    def test_the_row_without_a_partner_is_replaced_where_both_have_one_key(self, tmp_path):
        orders = Table(
            pa.schema([("order", pa.int64()), ("customer", pa.int64())]), ("order",), "orders"
        )
        customers = Table(
            pa.schema([("customer", pa.int64()), ("name", pa.string())]), ("customer",), "customers"
        )
        tables = Tables(orders, customers, on="customer", how="left", directory=tmp_path)
        assert not tables.is_consolidated_apart
        tables.batch([{"order": 1, "customer": 7}])
        found = tables.batch([], [{"customer": 7, "name": "ann"}])
        assert [(row["_op"], row["name"]) for row in found] == [("u", "ann")]
        found = tables.batch([], [{"customer": 7, "_op": "d"}])
        assert [(row["_op"], row["name"]) for row in found] == [("u", None)]


class TestBank:
    """Balances of accounts, and the same table beside itself: what is seen at any batch is one
    state of the bank, never half of a transfer."""

    def test_the_sum_of_all_balances_is_zero_at_every_batch(self, tmp_path):
        accounts = 10
        credits_ = Table(
            pa.schema([("account", pa.int64()), ("credit", pa.int64())]), ("account",), "credits"
        )
        debits = Table(
            pa.schema([("account", pa.int64()), ("debit", pa.int64())]), ("account",), "debits"
        )
        tables = Tables(credits_, debits, on="account", how="full", directory=tmp_path)
        came, went = dict.fromkeys(range(accounts), 0), dict.fromkeys(range(accounts), 0)
        for number in range(12):
            moved = number * 7919 % 100
            source, target = number * 31 % accounts, (number * 17 + 1) % accounts
            went[source] += moved
            came[target] += moved
            tables.batch(
                [{"account": target, "credit": came[target], "_op": "u"}],
                [{"account": source, "debit": went[source], "_op": "u"}],
            )
            balances = [(row["credit"] or 0) - (row["debit"] or 0) for row in tables.rows.values()]
            assert sum(balances) == 0

    def test_a_table_joined_with_itself_shows_one_state(self, tmp_path):
        one = Table(pa.schema([("id", pa.int64()), ("balance", pa.int64())]), ("id",), "accounts")
        same = Table(pa.schema([("id", pa.int64()), ("again", pa.int64())]), ("id",), "accounts")
        tables = Tables(one, same, on="id", how="full", directory=tmp_path)
        for number in range(8):
            rows = [{"id": id_, "balance": number * id_, "_op": "u"} for id_ in (number % 7, 3)]
            beside = [{"id": row["id"], "again": row["balance"], "_op": "u"} for row in rows]
            tables.batch(rows, beside)
            assert all(row["balance"] == row["again"] for row in tables.rows.values())


class TestChains:
    def test_a_row_comes_changes_and_goes_again_and_again(self, tmp_path):
        tables = Tables(LEFT, RIGHT, on=[("a", "b")], directory=tmp_path)
        tables.batch([left(1, 10)])
        for turn in range(6):
            assert ops(tables.batch([], [right(1, 10, turn)])) == [("c", 1, 1)]
            assert ops(tables.batch([], [right(1, 10, turn + 1, "u")])) == [("u", 1, 1)]
            assert ops(tables.batch([], [right(1, 10, op="d")])) == [("d", 1, 1)]
        assert tables.rows == {}

    def test_within_one_batch_only_what_is_left_comes_out(self, tmp_path):
        tables = Tables(LEFT, RIGHT, on=[("a", "b")], directory=tmp_path)
        chain = [right(1, 10), right(1, 11, op="u"), right(1, 1, op="d"), right(1, 10, 5)]
        found = tables.batch([left(1, 10)], chain)
        assert [(row["_op"], row["y"]) for row in found] == [("c", 5)]
        assert tables.batch([], [right(1, 10, 6, "u"), right(1, 10, 5, "u")]) == []

    def test_the_result_of_a_join_is_joined(self, tmp_path):
        joined = Tables(LEFT, RIGHT, on=[("a", "b")], how="left", directory=tmp_path / "1")
        schema = pa.schema([(name, pa.int64()) for name in ("l", "a", "x", "r", "b", "y")])
        third = Table(pa.schema([("y", pa.int64()), ("z", pa.int64())]), ("y",), "third")
        both = Tables(
            Table(schema, ("l", "r"), "joined"), third, on="y", how="left", directory=tmp_path / "2"
        )

        def batch(ours, theirs, others):
            found = [
                {**row, "_position": number}
                for number, row in enumerate(joined.batch(ours, theirs))
            ]
            both.batch(found, others)
            return sorted(
                tuple(row[name] for name in ("l", "r", "z")) for row in both.rows.values()
            )

        assert batch([left(1, 10)], [], [{"y": 5, "z": 50}]) == [(1, None, None)]
        assert batch([], [right(1, 10, 5)], []) == [(1, 1, 50)]
        assert batch([], [], [{"y": 5, "z": 51, "_op": "u"}]) == [(1, 1, 51)]
        assert batch([], [right(1, 10, op="d")], []) == [(1, None, None)]
        assert batch([left(1, 10, op="d")], [], []) == []


class TestManyToMany:
    """A million rows of the result: as Arrow tables, through the join alone."""

    def step(self, state, join, ours, theirs):
        def given(table, rows):
            schema = pa.schema([*table.schema, ("_op", pa.string())])
            found = pa.Table.from_pylist(rows, schema=schema)
            found = found.append_column(ORIGIN, pa.array([0] * len(rows), pa.int32()))
            found = found.append_column(OFFSET, pa.array(range(len(rows)), pa.int64()))
            return Input(found, ((table.topic, 0),), (), 0)

        found = join.step(state, (given(LEFT, ours), given(RIGHT, theirs)))
        return Counter(found["_op"].to_pylist())

    def test_a_thousand_by_a_thousand(self):
        pairs = [("a", "b")]
        tables = joined_tables([LEFT.schema, RIGHT.schema], [("l",), ("r",)], pairs, "inner")
        join, _ = planned(tables, pairs, "inner")
        state = MemoryState()
        count = 1000
        both = [left(n, 7) for n in range(count)], [right(n, 7) for n in range(count)]
        assert self.step(state, join, *both) == {"c": count * count}
        moved = [left(6, 7, op="d"), left(6, 8)]
        changed = [left(5, 7, 1, "u"), *moved, left(7, 7, op="d")]
        assert self.step(state, join, changed, []) == {"u": count, "d": 2 * count}
        assert state.counters == {"left_rows": count - 1, "right_rows": count}


class TestTruncates:
    def test_all_rows_of_the_table_go_and_those_behind_it_stay(self, tmp_path):
        tables = Tables(LEFT, RIGHT, on=[("a", "b")], how="left", directory=tmp_path, buckets=8)
        tables.batch([left(n, n) for n in range(20)], [right(n, n) for n in range(20)])
        tables.batch([], [right(30, 3), {"_op": "t"}, right(1, 1, 9), right(31, 4)])
        partners = {row["l"]: row["r"] for row in tables.rows.values()}
        assert partners == {**dict.fromkeys(range(20)), 1: 1, 4: 31}
        tables.batch([{"_op": "t"}])
        assert tables.rows == {}
        assert tables.join.counter("left_rows") == 0

    def test_with_several_partitions_the_order_is_unknown(self, tmp_path):
        tables = Tables(LEFT, RIGHT, on=[("a", "b")], directory=tmp_path)
        tables.batch({0: [left(1, 1)], 1: [left(2, 2)]})
        with pytest.raises(PipelineError, match="left table was truncated"):
            tables.batch({1: [{"_op": "t"}]})


def test_a_key_in_several_partitions_is_what_the_last_partition_says(tmp_path):
    tables = Tables(LEFT, RIGHT, on=[("a", "b")], how="left", directory=tmp_path)
    tables.batch({1: [left(1, 10, 1)], 0: [left(1, 10, 0), left(1, 10, 3)]})
    assert [row["x"] for row in tables.rows.values()] == [1]


def test_a_full_join_whose_rows_have_no_key_of_their_own_is_refused():
    ours = Table(pa.schema([("k", pa.int64()), ("m", pa.int64())]), ("k",), "left")
    with pytest.raises(PipelineError, match="would not be identified by their keys"):
        Tables(ours, ours, on=[("k", "k"), ("m", "m")], how="full")


def test_state_has_no_more_rows_than_the_tables(tmp_path):
    tables = Tables(LEFT, RIGHT, on=[("a", "b")], directory=tmp_path)
    for turn in range(30):
        tables.batch([left(n, turn + n, turn) for n in range(20)])
    assert tables.join.counter("left_rows") == 20
    sizes = [
        len(table)
        for state in tables.join.states.values()
        for name in ("left", "left-new", "left-gone")
        if (table := state.table(name)) is not None
    ]
    assert sum(sizes) <= 60
