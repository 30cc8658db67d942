"""Lookups in servers as they are: keys and columns of types that drivers have their own idea of."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.errors import PipelineError
from headwater.pipelines.operators.joins import lookup as module
from headwater.pipelines.operators.joins.lookup import LookupJoin
from headwater.settings import Secret

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UUID = "c56a4180-65aa-42ec-a945-5fd21dec0538"
COLUMNS = pa.schema(
    [
        ("name", pa.string()),
        ("since", pa.timestamp("us", "UTC")),
        ("born", pa.date32()),
        ("rate", pa.decimal128(10, 2)),
        ("is_new", pa.bool_()),
    ]
)
ROW = ["it's", WHEN, date(2026, 1, 2), Decimal("1.50"), True]


def found(url, key, keys, kinds, columns=COLUMNS):
    """The columns of each key's row."""
    events = pa.record_batch(
        [
            pa.array(column, kind)
            for column, kind in zip(zip(*keys, strict=True), kinds, strict=True)
        ],
        names=[f"e{n}" for n in range(len(key))],
    )
    output = pa.schema([*events.schema, *columns])
    names = tuple(events.schema.names)
    look = LookupJoin(Secret(url), "things", names, key, columns, output, False, 60.0)
    rows = [row for out in look(iter([events])) for row in out.to_pylist()]
    return [[row[name] for name in columns.names] for row in rows]


NONE = [None] * 5
KEYS = {
    "id": ([(1,), (2,), (None,)], [pa.int64()]),
    "code": ([("ab",), ("%s'; DROP TABLE things; --",), (None,)], [pa.string()]),
    "price": ([(Decimal("2.500"),), (Decimal("9.000"),), (None,)], [pa.decimal128(10, 3)]),
    "day": ([(date(2026, 3, 1),), (date(2026, 3, 2),), (None,)], [pa.date32()]),
    "at": ([(WHEN,), (WHEN.replace(year=1969),), (None,)], [pa.timestamp("us", "UTC")]),
    "raw": ([(b"\x00\xff",), (b"",), (None,)], [pa.binary()]),
    "flag": ([(True,), (False,), (None,)], [pa.bool_()]),
}


@pytest.mark.parametrize("key", KEYS)
def test_postgres_finds_rows_by_keys_of_any_type(postgres, key):
    postgres.run(
        "CREATE TABLE things (id int, code char(5), price numeric(10,2), day date, at timestamptz,"
        " raw bytea, flag bool, name text, since timestamptz, born date, rate numeric, is_new bool)"
    )
    postgres.run(
        "INSERT INTO things VALUES (1, 'ab', 2.5, '2026-03-01', %s, '\\x00ff', true, 'it''s', %s,"
        " '2026-01-02', 1.5, true)", WHEN, WHEN,
    )  # fmt: skip
    keys, kinds = KEYS[key]
    assert found(postgres.url, (key,), keys, kinds) == [ROW, NONE, NONE]
    both = [("1", *keys[0]), ("1", *keys[1]), ("1", None)]
    url, key_of_two = postgres.url, ("id", key)
    assert found(url, key_of_two, both, [pa.string(), *kinds]) == [ROW, NONE, NONE]


def test_postgres_finds_rows_by_a_uuid_and_none_by_a_text_that_it_cannot_have(postgres):
    postgres.run("CREATE TABLE things (id uuid, name text)")
    postgres.run("INSERT INTO things VALUES (%s, 'x')", UUID)
    name = pa.schema([("name", pa.string())])
    assert found(postgres.url, ("id",), [(UUID,)], [pa.string()], name) == [["x"]]
    assert found(postgres.url, ("name",), [("a\0b",), ("x",)], [pa.string()], name) == [
        [None],
        ["x"],
    ]


@pytest.mark.parametrize("key", KEYS)
def test_mariadb_finds_rows_by_keys_of_any_type(mariadb_server, shop, key):
    mariadb_server.execute(
        f"CREATE TABLE {shop}.things (id int, code char(5), price numeric(10,2), day date,"
        " at datetime, raw varbinary(9), flag bool, name text, since datetime(6), born date,"
        " rate numeric(9, 1), is_new bool)"
    )
    mariadb_server.execute(
        f"INSERT INTO {shop}.things VALUES (1, 'ab', 2.5, '2026-03-01', '2026-01-02 03:04:05',"
        " x'00ff', true, 'it''s', '2026-01-02 03:04:05', '2026-01-02', 1.5, true)"
    )
    keys, kinds = KEYS[key]
    url = f"mysql://root@127.0.0.1:{mariadb_server.port}/{shop}"
    assert found(url, (key,), keys, kinds) == [ROW, NONE, NONE]


def test_what_a_server_refuses_is_reported_without_the_password(postgres, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    host = postgres.url.partition("@")[2]
    for url in (f"postgresql://nobody:s3cr3t@{host}", "postgresql://u:s3cr3t@127.0.0.1:1/x"):
        with pytest.raises(PipelineError, match="things cannot be read") as error:
            found(url, ("id",), [(1,)], [pa.int64()])
        shown = [repr(raised) + str(raised) for raised in (error.value, error.value.__cause__)]
        assert "s3cr3t" not in "".join(shown)
