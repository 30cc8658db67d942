"""What every derived store promises (sinks/contract.py), as tests on the real thing.

A store plugs in with two classes, in tests/sinks/<store>/test_<store>_contract.py:

    class Postgres(Backend): ...                   # where the store is, and what it cannot do

    class TestPostgresContract(SinkContract):      # the tests
        @pytest.fixture
        def backend(self, postgres):
            return Postgres(...)                   # empty, of its own per test

The flags of `Backend` state what a store cannot do; the suite then tests that it refuses with a
clear error. Everything is written and read through contract.Store, except `Backend.live_rows`,
which reads as any application would. sink_killing.py is the other half: kills.
"""

import dataclasses
import math
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples, representative

from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    RowRefused,
    SinkError,
    StoreDiverged,
    StoreRefused,
    StoreUnreachable,
)
from headwater.settings import Secret
from headwater.sinks.contract import OP, Batch, Log, Store, Target, Writer
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from support.sinks.cut_proxy import CutProxy
from support.sinks.sink_rows import (
    NUL,
    QUERY,
    UNREADABLE,
    VALUES,
    applied_to,
    batch,
    comparable,
    contents,
    position,
    rows_of,
    table,
)
from support.sinks.staged_store import StagedStore

ID = pa.schema([("id", pa.int64()), ("v", pa.string())])
ID_N = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
TIMEOUT_S = 60.0


@dataclass
class Unfit:
    """A row that the store does not take. Its key is `id`."""

    fields: pa.Schema
    row: Mapping[str, Any]
    fitting: Mapping[str, Any]  # the same row, if it were right; of any id
    column: str  # which one the error names; "" if the store cannot determine it
    prepare: Callable[[str], None] | None = None  # given the table's name, after its first batch


class Backend(ABC):
    """An empty store of one kind. The flags state what it cannot do."""

    password = "secret"  # no error may show it
    has_keys = True  # upserts and deletes; otherwise rows are only added
    has_appends = True  # targets without a key
    has_versions = True  # more than one version, promote and drop
    has_columns = True  # a column can be added to what is there
    widens = True  # int32 to int64 in place
    keeps_type: Callable[[pa.DataType], bool] | None = None
    # Of sink_rows.VALUES: types that the store has not (StoreRefused names the column), and by
    # type's name the repr of values it does not take (RowRefused names the column).
    lacks_types: frozenset[str] = frozenset()
    lacks_values: ClassVar[Mapping[str, frozenset[str]]] = {}
    odd_names: Sequence[str] = (
        "select", "Mixed Case", 'Größe "x"', "it's", "表", "100%s", "a`b", "back\\slash", "user;--",
    )  # fmt: skip
    odd_columns: Sequence[str] = (
        *odd_names, "{}", "$1", ":a", "?", "ID", "order", "_at", "_row", "_state", "row",
        "excluded", "name", "name.raw",
    )  # fmt: skip
    large_rows = 30_000

    @property
    @abstractmethod
    def settings(self) -> SinkSettings: ...

    @property
    def log(self) -> Log:
        return Log("127.0.0.1:1")

    is_staged = False  # by tasks, where a store can do that

    def store(self, target: Target, settings: SinkSettings | None = None) -> Store:
        store = store_of(settings or self.settings, target, self.log)
        return StagedStore(store, target.key) if self.is_staged else store

    @abstractmethod
    def live_rows(self, name: str) -> list[dict[str, Any]]:
        """What an application reads under that name: columns `id` and `v`, and `n` if it is there,
        in one statement.
        """

    def put_foreign(self, name: str) -> None:
        """Something of that name that is not ours, with something in it."""
        raise NotImplementedError

    def foreign(self, name: str) -> object:
        """What is in it."""
        raise NotImplementedError

    def unfit(self) -> Sequence[Unfit]:
        return ()

    def stranger(self) -> SinkSettings | None:
        """With wrong credentials, whose password is `wrong-secret`. None: there are none."""
        return None

    def nowhere(self) -> SinkSettings | None:
        """Where nothing answers, with the password. None: it is in this process."""
        return None

    @property
    def address(self) -> tuple[str, int] | None:
        """Of the server, if there is one that connections go to."""
        return None

    def through(self, port: int) -> SinkSettings:
        """The same store by 127.0.0.1 and another port."""
        host, own = self.address
        url = self.settings.url.reveal().replace(f"{host}:{own}", f"127.0.0.1:{port}")
        return dataclasses.replace(self.settings, url=Secret(url))

    def restart(self) -> None:
        """Ends the server as a crash does, and starts it again. Only if `can_restart`."""
        raise NotImplementedError

    can_restart = False


@dataclass
class RefusalRecorder:
    """Collects refused rows, and what the store had at that moment."""

    store: Store
    version: int = 1
    refused: list[RowRefused] = field(default_factory=list)
    batch_then: list[int | None] = field(default_factory=list)

    def __call__(self, refused: Sequence[RowRefused]) -> None:
        self.refused.extend(refused)
        [found] = [version for version in self.store.versions() if version.number == self.version]
        self.batch_then.append(found.position and found.position.batch)


class SinkContract:
    """Subclass it with a fixture `backend`, see above."""

    names = count()
    has_all_of_it = False  # in the quick tier; see conftest.py

    @pytest.fixture
    def keyed(self, backend: Backend) -> Iterator[Store]:
        if not backend.has_keys:
            pytest.skip("rows are only added to this store")
        with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
            yield store

    @pytest.fixture
    def plain(self, backend: Backend) -> Iterator[Store]:
        """A target that the store can keep, with or without a key; each row is written once."""
        key = ("id",) if backend.has_keys else ()
        with closing(backend.store(Target("shop", "orders", key))) as store:
            yield store

    # ---------------------------------------------------------------------------- contents

    def test_a_good_store_has_nothing_in_the_way_and_no_versions(self, plain):
        plain.check()
        assert plain.versions() == []

    def test_the_first_batch_makes_a_live_version(self, backend, plain):
        with plain.writer(1, ID) as writer:
            assert writer.position is None
            [version] = plain.versions()
            assert (version.number, version.is_live, version.position) == (1, True, None)
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}, {"id": 2, "v": None}])))
            assert writer.position == position(0)
        [version] = plain.versions()
        assert (version.number, version.is_live) == (1, True)
        assert version.position == position(0)
        assert version.fields.equals(ID)
        assert contents(plain)[0] == position(0)
        assert rows_of(plain) == [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
        assert comparable(backend.live_rows("orders")) == rows_of(plain)
        plain.check()

    @representative
    def test_changes_of_a_key_in_log_order(self, keyed):
        if_last = [("c", 1, "a"), ("u", 1, "b"), ("d", 2, None), ("c", 2, "new"), ("c", 3, "x"),
                   ("d", 3, None), (None, 4, "null op"), ("r", 5, "read")]  # fmt: skip
        with keyed.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 2, "v": "old"}, {"id": 3, "v": "old"}])))
            rows = [{"id": id_, "v": v} for _, id_, v in if_last]
            writer.apply(batch(1, table(ID, rows, [op for op, _, _ in if_last])))
            assert rows_of(keyed) == [
                {"id": 1, "v": "b"}, {"id": 2, "v": "new"}, {"id": 4, "v": "null op"},
                {"id": 5, "v": "read"},
            ]  # fmt: skip
            writer.apply(batch(2, table(ID, [{"id": 1}, {"id": 9}], ["d", "d"])))
            assert [row["id"] for row in rows_of(keyed)] == [2, 4, 5]

    def test_a_truncate_takes_what_was_before_it(self, keyed):
        with keyed.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])))
            rows = table(ID, [{"id": 3, "v": "c"}, {}, {"id": 2, "v": "d"}], ["c", "t", "c"])
            writer.apply(batch(1, rows))
            assert rows_of(keyed) == [{"id": 2, "v": "d"}]
            writer.apply(batch(2, table(ID, [{}], ["t"])))
            assert rows_of(keyed) == []
            assert contents(keyed)[0] == position(2)

    def test_rows_without_a_key_are_added(self, backend):
        target = Target("shop", "events", ())
        with closing(backend.store(target)) as store:
            if not backend.has_appends:
                with pytest.raises(HeadwaterError, match="key"):
                    store.check()
                return
            with store.writer(1, ID) as writer:
                same = {"id": 1, "v": "a"}
                writer.apply(batch(0, table(ID, [same, same, {"id": None, "v": None}])))
                writer.apply(batch(1, table(ID, [same])))
                writer.apply(batch(1, table(ID, [same])))
            assert rows_of(store) == comparable([same, same, same, {"id": None, "v": None}])

    def test_a_store_without_keys_says_so(self, backend):
        if backend.has_keys:
            return
        with (
            closing(backend.store(Target("shop", "orders", ("id",)))) as store,
            pytest.raises(HeadwaterError, match="key"),
        ):
            store.check()

    def test_composite_keys(self, backend):
        if not backend.has_keys:
            pytest.skip("rows are only added to this store")
        fields = pa.schema(
            [("n", pa.int64()), ("day", pa.date32()), ("shop", pa.string()), ("amount", pa.int64())]
        )
        key = ("shop", "n", "day")
        days = [date(1, 1, 1), date(2024, 2, 29)]
        shops = ["", "a", "A", "a ", "ä", "a\u0308", "b"]
        rows = [
            {"n": n, "day": day, "shop": shop, "amount": n}
            for n in (-1, 0)
            for day in days
            for shop in shops
        ]
        with closing(backend.store(Target("shop", "sales", key))) as store:
            with store.writer(1, fields) as writer:
                writer.apply(batch(0, table(fields, rows)))
                assert rows_of(store) == comparable(rows)
                changed = [{**row, "amount": 7} for row in rows[::2]]
                deleted = [{**row, "amount": None} for row in rows[1::2]]
                ops = ["u"] * len(changed) + ["d"] * len(deleted)
                writer.apply(batch(1, table(fields, changed + deleted, ops)))
            assert rows_of(store) == comparable(changed)

    @pytest.mark.parametrize("name", ["int32", "integral", "decimal", "string", "binary", "date",
                                      "timestamp", "instant", "bool"])  # fmt: skip
    def test_a_key_of_any_type(self, backend, name):
        if not backend.has_keys or name in backend.lacks_types:
            pytest.skip("the store has no such keys")
        type_, values = VALUES[name]
        lacks = backend.lacks_values.get(name, ())
        values = [value for value in values if repr(value) not in lacks and len(repr(value)) < 1000]
        fields = pa.schema([("k", type_), ("n", pa.int64())])
        rows = [{"k": value, "n": n} for n, value in enumerate(values)]
        with closing(backend.store(Target("shop", f"by_{name}", ("k",)))) as store:
            with store.writer(1, fields) as writer:
                writer.apply(batch(0, table(fields, rows)))
                writer.apply(batch(1, table(fields, [{**row, "n": 7} for row in rows])))
                assert rows_of(store) == comparable([{**row, "n": 7} for row in rows])
                writer.apply(batch(2, table(fields, rows[1:], ["d"] * (len(rows) - 1))))
            assert rows_of(store) == comparable([{**rows[0], "n": 7}])

    def test_a_key_that_is_null_is_refused(self, keyed):
        with keyed.writer(1, ID) as writer:
            with pytest.raises(RowRefused) as caught:
                writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}, {"id": None, "v": "b"}])))
            assert caught.value.column == "id"
            assert caught.value.row["v"] == "b"
            assert contents(keyed)[0] is None
            refusals = RefusalRecorder(keyed)
            writer.apply(
                batch(0, table(ID, [{"id": 1, "v": "a"}, {"id": None, "v": "b"}])), refusals
            )
            assert [error.row["v"] for error in refusals.refused] == ["b"]
            assert refusals.batch_then == [None]
        assert rows_of(keyed) == [{"id": 1, "v": "a"}]

    def test_keys_that_are_floats(self, backend):
        """0.0 and -0.0 are equal, NaN is equal to nothing: not every store would agree."""
        if not backend.has_keys:
            pytest.skip("rows are only added to this store")
        fields = pa.schema([("k", pa.float64()), ("v", pa.string())])
        rows = [{"k": 0.0, "v": "a"}, {"k": math.nan, "v": "b"}, {"k": -0.0, "v": "c"}]
        with closing(backend.store(Target("shop", "floats", ("k",)))) as store:
            with store.writer(1, fields) as writer:
                refusals = RefusalRecorder(store)
                writer.apply(batch(0, table(fields, rows)), refusals)
                assert [error.row["v"] for error in refusals.refused] == ["b"]
                assert rows_of(store) == [{"k": 0.0, "v": "c"}]
                writer.apply(batch(1, table(fields, rows[2:], ["d"])))
            assert rows_of(store) == []

    def test_what_cannot_be_a_key_is_refused(self, backend):
        fields = pa.schema([("k", pa.struct([("n", pa.int64())])), ("v", pa.string())])
        rows = table(fields, [{"k": {"n": 1}, "v": "a"}])
        with (
            closing(backend.store(Target("shop", "nested", ("k",)))) as store,
            pytest.raises(HeadwaterError, match="key"),
            store.writer(1, fields) as writer,
        ):
            writer.apply(batch(0, rows))

    @pytest.mark.parametrize("name", UNREADABLE)
    def test_rows_that_cannot_be_read_back_are_refused(self, backend, name):
        values = UNREADABLE[name]
        fields = pa.schema([("id", pa.int64()), ("v", values.type)])
        rows = pa.table([pa.array(range(len(values))), values], schema=fields)
        key = ("id",) if backend.has_keys else ()
        with closing(backend.store(Target("shop", "unreadable", key))) as store:
            with store.writer(1, fields) as writer:
                with pytest.raises(RowRefused) as caught:
                    writer.apply(batch(0, rows))
                assert (caught.value.row["id"], caught.value.column) == (1, "v")
                refusals = RefusalRecorder(store)
                writer.apply(batch(0, rows), refusals)
                assert [error.row["id"] for error in refusals.refused] == [1, 2, 3]
                if backend.has_keys:  # to remove a row takes its key only
                    ops = pa.array(["d"] * len(values))
                    writer.apply(batch(1, rows.append_column(OP, ops)), refusals)
                    assert len(refusals.refused) == 3
            assert [row["id"] for row in rows_of(store)] == ([] if backend.has_keys else [0])

    @pytest.mark.parametrize("name", ["timestamp", "date", "string"])
    def test_keys_that_cannot_be_read_back_are_refused(self, backend, name):
        if not backend.has_keys:
            pytest.skip("rows are only added to this store")
        values = UNREADABLE[name]
        fields = pa.schema([("k", values.type), ("n", pa.int64())])
        rows = pa.table([values, pa.array(range(len(values)))], schema=fields)
        with closing(backend.store(Target("shop", "unreadable", ("k",)))) as store:
            with store.writer(1, fields) as writer:
                refusals = RefusalRecorder(store)
                writer.apply(batch(0, rows), refusals)
                assert [error.row["n"] for error in refusals.refused] == [1, 2, 3]
                assert [row["n"] for row in rows_of(store)] == [0]
                deleted = rows.append_column(OP, pa.array(["d"] * len(values)))
                writer.apply(batch(1, deleted))  # there is no such row: nothing to report
            assert rows_of(store) == []

    @pytest.mark.parametrize("name", VALUES)
    def test_values_are_read_back_as_they_were(self, backend, name):
        type_, values = VALUES[name]
        fields = pa.schema([("id", pa.int64()), ("v", type_)])
        key = ("id",) if backend.has_keys else ()
        with closing(backend.store(Target("shop", "values", key))) as store:
            if name in backend.lacks_types:
                with pytest.raises(StoreRefused, match=r"\bv\b"):
                    store.writer(1, fields)
                return
            lacks = backend.lacks_values.get(name, frozenset())
            rows = [{"id": n, "v": value} for n, value in enumerate([*values, None])]
            taken = [row for row in rows if repr(row["v"]) not in lacks]
            with store.writer(1, fields) as writer:
                refusals = RefusalRecorder(store)
                writer.apply(batch(0, table(fields, rows)), refusals)
                assert [repr(error.row["v"]) in lacks for error in refusals.refused] == [True] * (
                    len(rows) - len(taken)
                )
                assert {error.column for error in refusals.refused} <= {"v"}
                if backend.has_keys:  # the same by way of an update, in few and in many rows
                    many = [{"id": 1000 + n, "v": None} for n in range(300)]
                    writer.apply(batch(1, table(fields, many)))
                    writer.apply(batch(2, table(fields, [*taken, *many])))
                    writer.apply(batch(3, table(fields, taken[::-1])))
                    writer.apply(batch(4, table(fields, many, ["d"] * len(many))))
            found = contents(store)[1]
            assert found.schema.equals(fields)
            assert comparable(found.to_pylist()) == comparable(taken)

    @representative
    def test_rows_of_all_types_at_once(self, backend):
        supported = {
            name: (type_, [value for value in values if repr(value) not in
                           backend.lacks_values.get(name, ())])
            for name, (type_, values) in VALUES.items() if name not in backend.lacks_types
        }  # fmt: skip
        fields = pa.schema(
            [("id", pa.int64()), *((name, type_) for name, (type_, _) in supported.items())]
        )
        rng = random.Random(5)
        small = {
            name: [value for value in [*values, None] if len(repr(value)) < 2000]
            for name, (_, values) in supported.items()
        }
        rows = [
            {"id": n, **{name: rng.choice(values) for name, values in small.items()}}
            for n in range(200)
        ]
        key = ("id",) if backend.has_keys else ()
        with closing(backend.store(Target("shop", "wide", key))) as store:
            with store.writer(1, fields) as writer:
                writer.apply(batch(0, table(fields, rows[:7])))
                writer.apply(batch(1, table(fields, rows[7:])))
            assert rows_of(store) == comparable(rows)

    def test_nothing_but_columns_and_no_rows(self, plain):
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [])))
            writer.apply(batch(1, table(ID, [{"id": 1, "v": "a"}])))
            writer.apply(batch(2, table(ID, [])))
            assert writer.position == position(2)
        position_, found = contents(plain)
        assert (position_, found.num_rows) == (position(2), 1)

    @settings(
        max_examples=examples(15),
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.differing_executors,  # one for each store
        ],
    )
    @given(
        batches=st.lists(
            st.tuples(
                st.lists(
                    st.tuples(
                        st.sampled_from(["c", "u", "d", "t", None]),
                        st.integers(0, 4),
                        st.sampled_from(["", "a", "b"]),
                        st.none() | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
                    ),
                    max_size=12,
                ),
                st.sampled_from(["", "again", "reconnect"]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_random_programs(self, backend, batches):
        if not backend.has_keys:
            pytest.skip("rows are only added to this store")
        fields = pa.schema([("a", pa.int32()), ("b", pa.string()), ("v", pa.string())])
        key = ("b", "a")
        expected: dict = {}
        with closing(backend.store(Target("random", f"t{next(self.names)}", key))) as store:
            writer = store.writer(1, fields)
            for number, (changes, then) in enumerate(batches):
                rows = table(
                    fields, [{"a": a, "b": b, "v": v} for _, a, b, v in changes],
                    [op for op, *_ in changes],
                ) if changes else table(fields, [])  # fmt: skip
                writer.apply(batch(number, rows))
                applied_to(expected, rows, key)
                if then == "reconnect":
                    writer.close()
                    writer = store.writer(1, fields)
                    assert writer.position == position(number)
                if then:
                    writer.apply(batch(number, rows))
                assert rows_of(store) == comparable(expected.values())
            writer.close()

    # ------------------------------------------------------------------------- exactly once

    @representative
    def test_a_replayed_batch_changes_nothing(self, backend, plain):
        first = batch(0, table(ID, [{"id": 1, "v": "a"}]))
        second = batch(1, table(ID, [{"id": 2, "v": "b"}]))
        with plain.writer(1, ID) as writer:
            for applied in (first, first, second, second, first):
                writer.apply(applied)
            assert writer.position == position(1)
        with plain.writer(1, ID) as writer:
            assert writer.position == position(1)
            writer.apply(first)
            writer.apply(second)
            assert writer.position == position(1)
        with closing(
            backend.store(Target("shop", "orders", ("id",) if backend.has_keys else ()))
        ) as it:
            assert rows_of(it) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            (lambda rows: batch(3, rows), "does not begin"),
            (lambda rows: batch(1, rows, query="other"), "another checkpoint"),
            (lambda rows: dataclasses.replace(batch(0, rows), offsets={"t": {9: 99}}), "other"),
        ],
    )
    def test_a_batch_that_is_not_the_next_one_is_refused(self, plain, wrong, why):
        rows = table(ID, [{"id": 1, "v": "a"}])
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, rows))
            with pytest.raises(StoreDiverged, match=why):
                writer.apply(wrong(table(ID, [{"id": 2, "v": "b"}])))
            assert rows_of(plain) == [{"id": 1, "v": "a"}]
            writer.apply(batch(1, table(ID, [{"id": 3, "v": "c"}])))  # it can go on
        assert contents(plain)[0] == position(1)

    @representative
    def test_a_zombie_cannot_write(self, plain):
        zombie = plain.writer(1, ID)
        zombie.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        with plain.writer(1, ID) as writer:
            for _ in range(2):
                with pytest.raises(Fenced):
                    zombie.apply(batch(1, table(ID, [{"id": 2, "v": "zombie"}])))
            assert rows_of(plain) == [{"id": 1, "v": "a"}]
            writer.apply(batch(1, table(ID, [{"id": 3, "v": "c"}])))
            with pytest.raises(Fenced):
                zombie.apply(batch(2, table(ID, [{"id": 4, "v": "zombie"}])))
        zombie.close()
        assert rows_of(plain) == [{"id": 1, "v": "a"}, {"id": 3, "v": "c"}]
        assert contents(plain)[0] == position(1)

    @representative
    def test_writers_that_take_over_from_each_other(self, backend):
        """Several threads that each make a writer, write, and are fenced: no batch is lost, none is
        there twice.
        """
        target = Target("shop", "orders", ("id",) if backend.has_keys else ())
        batches = [batch(n, table(ID, [{"id": n, "v": str(n)}])) for n in range(12)]
        problems: list[BaseException] = []

        def write(store: Store) -> None:
            refused: BaseException | None = None
            try:
                for attempt in range(300):
                    began_s = time.monotonic()
                    try:
                        with store.writer(1, ID) as writer:
                            while True:
                                done = -1 if writer.position is None else writer.position.batch
                                if done == len(batches) - 1:
                                    return
                                writer.apply(batches[done + 1])
                                if random.random() < 0.3:
                                    break
                    except (Fenced, StoreUnreachable) as error:
                        refused = error
                    # Longer each time, and longer than a write takes here and now, or they only
                    # ever fence each other.
                    took_s = time.monotonic() - began_s
                    time.sleep(random.random() * min(0.005 + took_s, 1) * min(attempt + 1, 20))
                raise AssertionError("it never came to an end") from refused
            except BaseException as error:
                problems.append(error)

        stores = [backend.store(target) for _ in range(3)]
        with stores[0].writer(1, ID):
            pass
        threads = [threading.Thread(target=write, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems, problems
        assert rows_of(stores[0]) == comparable({"id": n, "v": str(n)} for n in range(12))
        for store in stores:
            store.close()

    def test_owners_do_not_share_a_name(self, backend, plain):
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        other = Target("another", "orders", ("id",) if backend.has_keys else ())
        with closing(backend.store(other)) as store:
            assert store.versions() == []
            with pytest.raises(StoreRefused, match="orders"):
                store.writer(1, ID)
        assert rows_of(plain) == [{"id": 1, "v": "a"}]

    def test_owners_beside_each_other(self, backend):
        key = ("id",) if backend.has_keys else ()
        owners = ("a", "b", "a/b")
        stores = [backend.store(Target(owner, f"of_{n}", key)) for n, owner in enumerate(owners)]
        for n, store in enumerate(stores):
            with store.writer(1, ID) as writer:
                writer.apply(batch(0, table(ID, [{"id": n, "v": "x"}])))
        for n, store in enumerate(stores):
            assert [version.number for version in store.versions()] == [1]
            assert rows_of(store) == [{"id": n, "v": "x"}]
            store.close()

    def test_what_is_not_ours_is_not_touched(self, backend, plain):
        try:
            backend.put_foreign("orders")
        except NotImplementedError:
            pytest.skip("this store checks no owner of names")
        before = backend.foreign("orders")
        with pytest.raises(StoreRefused, match="orders"):
            plain.check()
        with pytest.raises(StoreRefused, match="orders") as caught:
            plain.writer(1, ID)
        assert caught.value.hint
        assert backend.foreign("orders") == before
        assert plain.versions() == []

    # ----------------------------------------------------------------------------- versions

    @representative
    def test_versions_are_promoted_and_dropped(self, backend, plain):
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "one"}])))
        if not backend.has_versions:
            with pytest.raises(StoreRefused, match="version"):
                plain.writer(2, ID)
            return
        with plain.writer(2, ID_N) as writer:
            assert writer.position is None
            writer.apply(batch(0, table(ID_N, [{"id": 1, "v": "two", "n": 2}]), query="rebuild"))
        assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]
        assert [(version.number, version.is_live) for version in plain.versions()] == [
            (1, True),
            (2, False),
        ]
        plain.promote(2)
        assert backend.live_rows("orders") == [{"id": 1, "v": "two", "n": 2}]
        assert [(version.number, version.is_live) for version in plain.versions()] == [
            (1, False),
            (2, True),
        ]
        plain.promote(2)  # nothing more to do
        assert rows_of(plain, 1) == [{"id": 1, "v": "one"}]
        assert rows_of(plain, 2) == [{"id": 1, "v": "two", "n": 2}]
        plain.promote(1)
        assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]
        plain.promote(2)
        with pytest.raises(StoreRefused, match="live"):
            plain.drop(2)
        plain.drop(1)
        assert [version.number for version in plain.versions()] == [2]
        for unknown in (plain.promote, plain.drop):
            with pytest.raises(StoreRefused, match="7"):
                unknown(7)
        with pytest.raises(StoreRefused, match="7"), plain.read(7):
            pass
        with plain.writer(1, ID) as writer:  # a new one of an old number begins empty
            assert writer.position is None
            assert rows_of(plain, 1) == []
        with plain.writer(2, ID_N) as writer:
            assert writer.position.query == "rebuild"

    def test_what_is_not_ours_stands_in_the_way_of_a_version(self, backend, plain):
        if not backend.has_versions:
            pytest.skip("the store has one version")
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "one"}])))
        try:
            backend.put_foreign("orders__v2")
        except NotImplementedError:
            pytest.skip("this store checks no owner of names")
        before = backend.foreign("orders__v2")
        with pytest.raises(StoreRefused, match="orders__v2"):
            plain.writer(2, ID)
        assert backend.foreign("orders__v2") == before
        assert [version.number for version in plain.versions()] == [1]

    def test_what_is_not_ours_is_not_replaced_by_a_promote(self, backend, plain):
        if not backend.has_versions:
            pytest.skip("the store has one version")
        for version in (1, 2):
            with plain.writer(version, ID) as writer:
                writer.apply(batch(0, table(ID, [{"id": version, "v": "a"}])))
        try:
            backend.put_foreign("orders__v1")
        except (NotImplementedError, FileExistsError):
            pytest.skip("versions are never renamed in this store")
        with pytest.raises(HeadwaterError, match="orders__v1"):
            plain.promote(2)
        assert backend.live_rows("orders") == [{"id": 1, "v": "a"}]
        assert backend.foreign("orders__v1")

    def test_a_version_that_is_promoted_where_none_was_live(self, backend, plain):
        if not backend.has_versions:
            pytest.skip("the store has one version")
        with plain.writer(2, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        plain.promote(2)
        assert [(version.number, version.is_live) for version in plain.versions()] == [(2, True)]
        assert backend.live_rows("orders") == [{"id": 1, "v": "a"}]

    @pytest.mark.parametrize("batches", [0, 2])
    def test_a_recreated_version_is_not_written_by_the_writer_of_the_old_one(
        self, backend, plain, batches
    ):
        if not backend.has_versions:
            pytest.skip("the store has one version")
        plain.writer(1, ID).close()
        with plain.writer(2, ID) as zombie:
            for number in range(batches):
                zombie.apply(batch(number, table(ID, [{"id": number, "v": "old"}]), query="old"))
            plain.drop(2)
            with plain.writer(2, ID) as writer:
                late = batch(batches, table(ID, [{"id": 7, "v": "old"}]), query="old")
                with pytest.raises(Fenced):
                    zombie.apply(late)
                writer.apply(batch(0, table(ID, [{"id": 1, "v": "new"}])))
                with pytest.raises(Fenced):
                    zombie.apply(late)
                writer.apply(batch(1, table(ID, [{"id": 2, "v": "new"}])))
        assert rows_of(plain, 2) == [{"id": 1, "v": "new"}, {"id": 2, "v": "new"}]

    @pytest.mark.parametrize("characters", [60, 63, 250])
    def test_a_long_name_is_refused_at_once_or_will_do(self, backend, characters):
        name = "x" * characters
        key = ("id",) if backend.has_keys else ()
        try:
            with closing(backend.store(Target("shop", name, key))) as store:
                store.check()
        except (ConfigError, StoreRefused):
            return
        with closing(backend.store(Target("shop", name, key))) as store:
            for version in (1, 2) if backend.has_versions else (1,):
                with store.writer(version, ID) as writer:
                    writer.apply(batch(0, table(ID, [{"id": version, "v": "a"}])))
            if backend.has_versions:
                store.promote(2)
            assert rows_of(store, 1) == [{"id": 1, "v": "a"}]

    def test_writers_and_readers_go_on_while_versions_are_swapped(self, backend):
        """Both versions are written all the time; a reader sees one of them, complete."""
        if not backend.has_versions or not backend.has_keys:
            pytest.skip("the store has one version")
        store = backend.store(Target("shop", "orders", ("id",)))
        over, problems, seen = threading.Event(), [], set()
        applied = {1: 0, 2: 0}

        def rows(version: int, number: int) -> pa.Table:
            return table(ID_N, [{"id": id_, "v": f"v{version}", "n": number} for id_ in range(20)])

        def write(version: int) -> None:
            own = backend.store(Target("shop", "orders", ("id",)))
            with closing(own), own.writer(version, ID_N) as writer:
                number = 0
                while not over.is_set() or number < 2:
                    number += 1
                    writer.apply(batch(number, rows(version, number)))
                    applied[version] = number

        def read() -> None:
            while not over.is_set():
                found = backend.live_rows("orders")
                assert len(found) == 20
                [(marker, _)] = {(row["v"], row["n"]) for row in found}
                seen.add(marker)

        def read_versions() -> None:
            with closing(backend.store(Target("shop", "orders", ("id",)))) as own:
                while not over.is_set():
                    for version in (1, 2):
                        at, found = contents(own, version)
                        assert found.num_rows == 20
                        assert set(found["n"].to_pylist()) == {at.batch}
                        assert set(found["v"].to_pylist()) == {f"v{version}"}

        def noting(work: Callable[..., None], *arguments: object) -> Callable[[], None]:
            def run() -> None:
                try:
                    work(*arguments)
                except BaseException as error:
                    problems.append(error)
                    over.set()

            return run

        for version in (1, 2):
            with store.writer(version, ID_N) as writer:
                writer.apply(batch(0, rows(version, 0)))
        work = [noting(write, 1), noting(write, 2), noting(read), noting(read_versions)]
        threads = [threading.Thread(target=task) for task in work]
        for thread in threads:
            thread.start()
        try:
            for n in range(6):
                wait_for = (2, 1)[n % 2]
                store.promote(wait_for)
                deadline_s = time.monotonic() + TIMEOUT_S
                seen.clear()
                while f"v{wait_for}" not in seen and not over.is_set():
                    assert time.monotonic() < deadline_s
                    time.sleep(0.005)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not problems
        for version in (1, 2):
            at, found = contents(store, version)
            assert at.batch == applied[version]
            assert set(found["n"].to_pylist()) == {applied[version]}
        store.close()

    # ------------------------------------------------------------------------------ columns

    def test_new_columns_are_added(self, backend, plain):
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
            if not backend.has_columns:
                with pytest.raises(StoreRefused, match=r"\bn\b"):
                    writer.apply(batch(1, table(ID_N, [{"id": 2, "v": "b", "n": 2}])))
                return
            writer.apply(batch(1, table(ID_N, [{"id": 2, "v": "b", "n": 2}])))
            writer.apply(batch(2, table(ID_N, [{"id": 3, "v": "c", "n": 3}])))
        more = ID_N.append(pa.field("later", pa.list_(pa.int64())))
        with plain.writer(1, more) as writer:
            writer.apply(batch(3, table(more, [{"id": 4, "v": "d", "n": 4, "later": [4]}])))
        [version] = plain.versions()
        assert version.fields.equals(more)
        assert rows_of(plain) == comparable(
            [
                {"id": 1, "v": "a", "n": None, "later": None},
                {"id": 2, "v": "b", "n": 2, "later": None},
                {"id": 3, "v": "c", "n": 3, "later": None},
                {"id": 4, "v": "d", "n": 4, "later": [4]},
            ]
        )

    def test_a_column_that_is_no_longer_there_is_null_from_then_on(self, backend, plain):
        with plain.writer(1, ID_N) as writer:
            writer.apply(batch(0, table(ID_N, [{"id": 1, "v": "a", "n": 1}])))
        changed = 1 if backend.has_keys else 2
        with plain.writer(1, ID) as writer:
            writer.apply(batch(1, table(ID, [{"id": changed, "v": "b"}])))
        [version] = plain.versions()
        assert version.fields.equals(ID_N)
        found = {row["id"]: row for row in rows_of(plain)}
        assert found[changed] == {"id": changed, "v": "b", "n": None}

    def test_a_wider_type(self, backend, plain):
        narrow = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("d", pa.decimal128(5, 2))])
        wide = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("d", pa.decimal128(20, 4))])
        old = {"id": 1, "n": 7, "d": Decimal("1.25")}
        new = {"id": 2, "n": 2**40, "d": Decimal("1234567890.1234")}
        with plain.writer(1, narrow) as writer:
            writer.apply(batch(0, table(narrow, [old])))
        if not backend.widens:
            with pytest.raises(StoreRefused, match=r"\bn\b"):
                plain.writer(1, wide)
            return
        with plain.writer(1, wide) as writer:
            writer.apply(batch(1, table(wide, [new])))
        with plain.writer(1, narrow) as writer:  # what is narrower fits
            writer.apply(batch(2, table(narrow, [{"id": 3, "n": 1, "d": None}])))
        assert plain.versions()[0].fields.equals(wide)
        assert rows_of(plain) == comparable([old, new, {"id": 3, "n": 1, "d": None}])

    def test_a_type_that_does_not_follow_is_refused(self, plain):
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        other = pa.schema([("id", pa.int64()), ("v", pa.int64())])
        with pytest.raises(StoreRefused, match=r"\bv\b") as caught:
            plain.writer(1, other)
        assert caught.value.hint
        with plain.writer(1, ID) as writer:
            with pytest.raises(StoreRefused, match=r"\bv\b"):
                writer.apply(batch(1, table(other, [{"id": 2, "v": 2}])))
            writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        assert rows_of(plain) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]

    def test_odd_names(self, backend):
        for n, name in enumerate(backend.odd_names):
            key = ("id",) if backend.has_keys else ()
            with closing(backend.store(Target(f"o{n} {name}", name, key))) as store:
                store.check()
                with store.writer(1, ID) as writer:
                    writer.apply(batch(0, table(ID, [{"id": 1, "v": name}])))
                if backend.has_versions:
                    with store.writer(2, ID) as writer:
                        writer.apply(batch(0, table(ID, [{"id": 1, "v": name}])))
                    store.promote(2)
                    store.drop(1)
                assert backend.live_rows(name) == [{"id": 1, "v": name}]
                assert rows_of(store, store.versions()[-1].number) == [{"id": 1, "v": name}]

    def test_odd_columns(self, backend):
        columns = list(dict.fromkeys(backend.odd_columns))
        fields = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in columns)])
        rows = [{"id": n, **{name: f"{name} {n}" for name in columns}} for n in range(3)]
        key = ("id", columns[0], columns[2]) if backend.has_keys else ()
        with closing(backend.store(Target("shop", "odd", key))) as store:
            with store.writer(1, fields) as writer:
                writer.apply(batch(0, table(fields, rows[:1])))
                writer.apply(batch(1, table(fields, rows[1:])))
                if backend.has_keys:
                    writer.apply(batch(2, table(fields, rows[:1], ["d"])))
            assert rows_of(store) == comparable(rows[1:] if backend.has_keys else rows)

    # ------------------------------------------------------------------------- what is wrong

    def test_rows_that_do_not_fit_are_named(self, backend):
        if not backend.unfit():
            pytest.skip("the store takes any row")
        for n, unfit in enumerate(backend.unfit()):
            key = ("id",) if backend.has_keys else ()
            name = f"unfit{n}"
            good = [{**unfit.fitting, "id": id_} for id_ in range(1, 60)]
            bad = {**unfit.row, "id": 40}
            rows = [*good[:39], bad, *good[40:]]
            rest = [*good[:39], *good[40:]]
            with closing(backend.store(Target("shop", name, key))) as store:
                with store.writer(1, unfit.fields) as writer:
                    writer.apply(batch(0, table(unfit.fields, [{**unfit.fitting, "id": 0}])))
                    if unfit.prepare:
                        unfit.prepare(name)
                    for some in (rows[38:41], rows):
                        with pytest.raises(RowRefused) as caught:
                            writer.apply(batch(1, table(unfit.fields, some)))
                        assert caught.value.row["id"] == 40
                        assert caught.value.column == unfit.column
                        assert contents(store)[1].num_rows == 1
                    refusals = RefusalRecorder(store)
                    writer.apply(batch(1, table(unfit.fields, rows)), refusals)
                    assert [error.row["id"] for error in refusals.refused] == [40]
                    assert [error.column for error in refusals.refused] == [unfit.column]
                    assert refusals.batch_then == [0], "reported after the commit"
                    writer.apply(batch(1, table(unfit.fields, rows)), refusals)
                    assert len(refusals.refused) == 1, "reported again for a batch that was applied"
                    assert writer.position == position(1)
                expected = [{**unfit.fitting, "id": 0}, *rest]
                assert [row["id"] for row in rows_of(store)] == [
                    row["id"] for row in comparable(expected)
                ]

    def test_when_the_refused_rows_cannot_be_reported_nothing_is_applied(self, backend):
        for n, unfit in enumerate(backend.unfit()[:1]):
            key = ("id",) if backend.has_keys else ()
            name = f"untold{n}"

            def fail(_: Sequence[RowRefused]) -> None:
                raise ZeroDivisionError

            store = backend.store(Target("shop", name, key))
            with closing(store), store.writer(1, unfit.fields) as writer:
                writer.apply(batch(0, table(unfit.fields, [{**unfit.fitting, "id": 0}])))
                if unfit.prepare:
                    unfit.prepare(name)
                rows = table(unfit.fields, [{**unfit.fitting, "id": 1}, {**unfit.row, "id": 2}])
                with pytest.raises(ZeroDivisionError):
                    writer.apply(batch(1, rows), fail)
                assert contents(store)[0] == position(0)
                assert contents(store)[1].num_rows == 1

    def test_an_unknown_type_is_refused_by_column(self, plain):
        fields = pa.schema([("id", pa.int64()), ("odd", pa.month_day_nano_interval())])
        with pytest.raises(StoreRefused, match="odd"):
            plain.writer(1, fields)
        assert plain.versions() == []

    def test_wrong_credentials(self, backend):
        strange = backend.stranger()
        if strange is None:
            pytest.skip("the store has no login")
        key = ("id",) if backend.has_keys else ()
        with closing(store_of(strange, Target("shop", "orders", key), backend.log)) as store:
            for ask in (store.check, store.versions, lambda: store.writer(1, ID)):
                with pytest.raises(StoreRefused) as caught:
                    ask()
                assert "wrong-secret" not in _all_of(caught.value)
                assert caught.value.hint

    def test_no_server_answers(self, backend):
        away = backend.nowhere()
        if away is None:
            pytest.skip("the store is in this process")
        key = ("id",) if backend.has_keys else ()
        with closing(store_of(away, Target("shop", "orders", key), backend.log)) as store:
            for ask in (store.check, store.versions, lambda: store.writer(1, ID)):
                began_s = time.monotonic()
                with pytest.raises(StoreUnreachable) as caught:
                    ask()
                assert time.monotonic() - began_s < 15
                assert backend.password not in _all_of(caught.value)

    def test_a_connection_lost_at_any_moment(self, backend):
        """Cut before and after every chunk of an `apply`, also between a commit and its answer: a
        new writer with the same batch makes it exactly once.
        """
        if backend.address is None:
            pytest.skip("the store has no connection")
        key = ("id",) if backend.has_keys else ()
        target = Target("shop", "orders", key)
        number, expected, cuts = 0, {}, 0
        rng = random.Random(3)
        with CutProxy(*backend.address) as proxy, closing(backend.store(target)) as direct:
            with direct.writer(1, ID) as writer:
                writer.apply(batch(0, table(ID, [])))
            for passes_last in (False, True):
                for moment in count():
                    number += 1
                    size = 1 if passes_last else 200
                    rows = [{"id": number * 1000 + n, "v": rng.choice("abc")} for n in range(size)]
                    if key and number > 3:
                        rows.append({"id": (number - 2) * 1000, "v": f"again {number}"})
                    made = batch(number, table(ID, rows))
                    applied_to(expected, made.rows, ("id",))
                    with closing(backend.store(target, backend.through(proxy.port))) as store:
                        writer = store.writer(1, ID)
                        proxy.cut_at(moment, passes_last=passes_last)
                        with suppress(StoreUnreachable):
                            writer.apply(made)
                        was_cut = proxy.was_cut.is_set()
                        writer.close()
                    proxy.cut_at(None)
                    with direct.writer(1, ID) as writer:
                        assert writer.position in (position(number), position(number - 1))
                        writer.apply(made)
                        assert writer.position == position(number)
                    if not was_cut:
                        break
                    cuts += 1
            assert cuts >= 2
            assert rows_of(direct) == comparable(expected.values())

    def test_a_server_that_is_restarted(self, backend, plain):
        if not backend.can_restart:
            pytest.skip("the store has no server of its own")
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
            backend.restart()
            with pytest.raises(StoreUnreachable):
                writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        with plain.writer(1, ID) as writer:
            assert writer.position == position(0)
            writer.apply(batch(1, table(ID, [{"id": 2, "v": "b"}])))
        assert rows_of(plain) == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]

    # ------------------------------------------------------------------------------- at work

    def test_a_large_batch(self, backend, plain):
        n = backend.large_rows
        fields = pa.schema(
            [("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(18, 2)),
             ("at", pa.timestamp("us", "UTC"))]
        )  # fmt: skip
        ids = pa.array(range(n), pa.int64())
        rows = pa.table(
            [ids, ids.cast(pa.string()), ids.cast(pa.decimal128(21, 2)).cast(pa.decimal128(18, 2)),
             ids.cast(pa.timestamp("us", "UTC"))],
            schema=fields,
        )  # fmt: skip
        with plain.writer(1, fields) as writer:
            began_s = time.monotonic()
            writer.apply(batch(0, rows.slice(0, 10)))
            writer.apply(batch(1, rows.slice(10)))
            assert time.monotonic() - began_s < 60
        position_, found = contents(plain)
        assert position_ == position(1)
        assert found.sort_by("id").equals(rows)

    def test_reading_is_consistent_while_a_writer_works(self, backend, plain):
        over, problems = threading.Event(), []

        def write() -> None:
            try:
                with plain.writer(1, ID_N) as writer:
                    for number in range(1, 1000):
                        ids = range(50) if backend.has_keys else [number]
                        rows = [{"id": id_, "v": "x", "n": number} for id_ in ids]
                        writer.apply(batch(number, table(ID_N, rows)))
                        if over.is_set():
                            return
            except BaseException as error:
                problems.append(error)

        with plain.writer(1, ID_N) as writer:
            first = [{"id": n, "v": "x", "n": 0} for n in range(50)] if backend.has_keys else []
            writer.apply(batch(0, table(ID_N, first)))
        thread = threading.Thread(target=write)
        thread.start()
        try:
            with closing(
                backend.store(Target("shop", "orders", ("id",) if backend.has_keys else ()))
            ) as store:
                seen = set()
                deadline_s = time.monotonic() + TIMEOUT_S
                while len(seen) < 5 and not problems:
                    at, found = contents(store)
                    seen.add(at.batch)
                    numbers = found["n"].to_pylist()
                    if backend.has_keys:
                        assert numbers == [at.batch] * 50
                    else:
                        assert sorted(numbers) == list(range(1, at.batch + 1))
                    assert time.monotonic() < deadline_s
        finally:
            over.set()
            thread.join()
        assert not problems


def _all_of(error: HeadwaterError) -> str:
    return f"{error} {error.detail} {error.hint} {error!r} {error.__cause__!r}"


__all__ = [
    "ID", "NUL", "QUERY", "Backend", "Batch", "RefusalRecorder", "SinkContract", "SinkError",
    "Unfit", "Writer",
]  # fmt: skip
