"""Lookups in a live database: batched, cached, retried, and without a key in any statement."""

import pickle
import sqlite3
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError, PipelineError, StoreUnreachable
from headwater.pipelines.operators.joins import lookup as module
from headwater.pipelines.operators.joins.lookup import CachedRows, LookupJoin
from headwater.pipelines.operators.joins.lookup_queries import check_url, connect
from headwater.settings import Secret

EVENTS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("shop", pa.int64())])
FIELDS = pa.schema([("country", pa.string()), ("rating", pa.int32())])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name TEXT, shop INT, country TEXT, rating)")
    rows = [("ann", 1, "NO", 5), ("ann", 2, "SE", "7"), ("o'b\" %s", 1, "IE", None)]
    connection.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def looking_up(file, **how):
    settings = {
        "url": Secret(f"sqlite:///{file}"),
        "table": "customers",
        "event_key": ("customer", "shop"),
        "key": ("name", "shop"),
        "fields": FIELDS,
        "output": pa.schema([*EVENTS, *FIELDS]),
        "is_inner": False,
        "cache_s": 60.0,
    }
    return LookupJoin(**settings | how)


def rows(look, *events):
    columns = list(zip(*events, strict=True))
    batch = pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)],
        schema=EVENTS,
    )
    found = [row for out in look(iter([batch])) for row in out.to_pylist()]
    return [(row["id"], row["country"], row["rating"]) for row in found]


def test_events_get_their_row_whatever_the_key_has_in_it(file):
    look = pickle.loads(pickle.dumps(looking_up(file)))
    events = [(1, "ann", 1), (2, "ann", 2), (3, "o'b\" %s", 1), (4, "bob", 1), (5, None, 1)]
    assert rows(look, *events, (6, "ann", 1)) == [
        (1, "NO", 5),
        (2, "SE", 7),
        (3, "IE", None),
        (4, None, None),
        (5, None, None),
        (6, "NO", 5),
    ]


def test_inner_leaves_out_events_without_a_row(file):
    look = looking_up(file, is_inner=True)
    assert rows(look, (1, "ann", 1), (2, "bob", 1)) == [(1, "NO", 5)]


class Counting:
    def __init__(self, answers):
        self.asked = []
        self._answers = list(answers)

    def rows(self, keys):
        self.asked.append(sorted(keys))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


def cached(monkeypatch, file, answers, **how):
    database = Counting(answers)
    clock = [0.0]
    monkeypatch.setattr(module, "connect", lambda *_: database)
    # Of that module alone: other threads of this process have timeouts of their own.
    time = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s)
    )
    monkeypatch.setattr(module, "time", time)
    return CachedRows(looking_up(file, **how)), database, clock


def test_one_query_for_all_keys_of_a_batch_and_none_for_cached_ones(monkeypatch, file):
    found, database, clock = cached(monkeypatch, file, [[("a", 1, "NO", 1)], [("b", 1, "SE", 2)]])
    assert found.get([("a", 1), ("x", 1)]) == {("a", 1): ("NO", 1), ("x", 1): None}
    clock[0] = 59.9
    assert found.get([("a", 1), ("b", 1), ("x", 1)])[("b", 1)] == ("SE", 2)
    assert database.asked == [[("a", 1), ("x", 1)], [("b", 1)]]


def test_what_was_found_is_asked_for_again_after_its_time(monkeypatch, file):
    answers = [[("a", 1, "NO", 1)], [("a", 1, "SE", 1)]]
    found, _, clock = cached(monkeypatch, file, answers)
    found.get([("a", 1)])
    clock[0] = 60.0
    assert found.get([("a", 1)]) == {("a", 1): ("SE", 1)}


def test_the_cache_is_bounded(monkeypatch, file):
    monkeypatch.setattr(module, "_MOST_CACHED", 2)
    found, database, _ = cached(monkeypatch, file, [[], [], []])
    found.get([("a", 1), ("b", 1), ("c", 1)])
    found.get([("b", 1), ("c", 1)])
    found.get([("a", 1)])
    assert database.asked[1:] == [[("a", 1)]]


def test_a_database_that_is_down_for_a_moment_is_asked_again(monkeypatch, file):
    down = StoreUnreachable("it is down")
    found, database, _ = cached(monkeypatch, file, [down, down, [("a", 1, "NO", 1)]])
    assert found.get([("a", 1)]) == {("a", 1): ("NO", 1)}
    assert len(database.asked) == 3


def test_a_database_that_stays_down_is_an_error(monkeypatch, file):
    found, database, _ = cached(monkeypatch, file, [StoreUnreachable("it is down")] * 9)
    with pytest.raises(PipelineError, match="customers cannot be read: it is down"):
        found.get([("a", 1)])
    assert len(database.asked) == 4


def test_a_column_of_another_type_is_an_error(file):
    wrong = pa.schema([("country", pa.int32())])
    look = looking_up(file, fields=wrong, output=pa.schema([*EVENTS, *wrong]))
    with pytest.raises(PipelineError, match="country is not of the type"):
        rows(look, (1, "ann", 1))


def test_addresses_are_not_shown(file):
    secret = Secret("postgresql://writer:s3cret@db/shop")
    assert "s3cret" not in repr(looking_up(file, url=secret))
    with pytest.raises(PipelineError) as error:
        check_url(Secret("oracle://writer:s3cret@db/shop"))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("key", [("name",), ("name", "shop")])
def test_keys_of_one_and_of_two_columns(file, key):
    database = connect(Secret(f"sqlite:///{file}"), "customers", key, ("country",))
    asked = [("ann", 2)[: len(key)], ("zoe", 2)[: len(key)]]
    assert (*asked[0], "SE") in database.rows(asked)
    assert len(database.rows(asked)) == (2 if len(key) == 1 else 1)
    database.close()


MAKE = (
    "CREATE TABLE customers (name VARCHAR(20), shop INT, country VARCHAR(9), rating DECIMAL(4,1))",
    "INSERT INTO customers VALUES ('ann', 1, 'NO', 5.0), ('o''b%s', 1, 'IE', NULL)",
)


def check(url):
    fields = pa.schema([("country", pa.string()), ("rating", pa.float64())])
    output = pa.schema([*EVENTS, *fields])
    events = [(1, "ann", 1), (2, "o'b%s", 1), (3, "bob", 1), (4, "ann", 9)]
    expected = [(1, "NO", 5.0), (2, "IE", None), (3, None, None)]
    both = looking_up(None, url=Secret(url), fields=fields, output=output)
    assert rows(both, *events) == [*expected, (4, None, None)]
    one = looking_up(
        None, url=Secret(url), fields=fields, output=output, event_key=("customer",), key=("name",)
    )
    assert rows(one, *events) == [*expected, (4, "NO", 5.0)]


def test_a_row_of_postgresql(postgres, postgres_server):
    for statement in MAKE:
        postgres.run(statement)
    name = postgres.run("SELECT current_database()")[0][0]
    check(postgres_server.url(name))


def test_a_row_of_mariadb(mariadb_server, shop):
    mariadb_server.execute(*MAKE, database=shop)
    check(mariadb_server.url(shop))


def test_lookups_with_other_times_to_keep_rows_do_not_share_them(file):
    look, now = looking_up(file, cache_s=3600.0), looking_up(file, cache_s=0.0)
    assert rows(look, (1, "ann", 1)) == rows(now, (1, "ann", 1)) == [(1, "NO", 5)]
    connection = sqlite3.connect(file)
    connection.execute("UPDATE customers SET country = 'DK'")
    connection.commit()
    connection.close()
    assert rows(look, (1, "ann", 1)) == [(1, "NO", 5)]
    assert rows(now, (1, "ann", 1)) == [(1, "DK", 5)]


@pytest.mark.parametrize(
    "url", [None, "", "sqlite:///", "oracle://u:s3cret@h/x", "mysql://u:s3cret@h:99999/x",
            "mysql://u:s3cret@h/x?foo=1"],
)  # fmt: skip
def test_an_address_that_cannot_be_right_is_refused_when_the_pipeline_is_built(url):
    with pytest.raises(HeadwaterError) as error:
        check_url(Secret(url))
    assert "s3cret" not in f"{error.value!r} {error.value.detail} {error.value.hint}"


@pytest.mark.parametrize("columns", [5, None, StructType([])])
def test_columns_that_are_none_are_refused(columns):
    with pytest.raises(PipelineError, match="does not name columns and their types"):
        module._kinds(columns)


def test_its_name_in_plans_is_that_of_earlier_versions(file):
    """Operators behind a lookup find their state by it."""
    assert looking_up(file).__name__ == "LookingUp"
