"""SQLite: what its triggers, its files and its locks bring that other sources do not know."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.capture.source_contract import Reader, Transaction, flat

from headwater.capture.contract import Change, Row, SourcePosition
from headwater.capture.settings import CaptureSettings
from headwater.capture.sqlite import SqliteSource
from headwater.errors import PositionLost, SourceRefused, SourceUnreachable, TableRefused
from headwater.settings import Secret

# As SQLite's documentation recommends it, and most tools for migrations do.
REBUILD = (
    "BEGIN",
    "CREATE TABLE new_t (id INTEGER PRIMARY KEY, a TEXT NOT NULL)",
    "INSERT INTO new_t SELECT * FROM t",
    "DROP TABLE t",
    "ALTER TABLE new_t RENAME TO t",
    "COMMIT",
)


class Shop:
    """A database, a writer and a capture of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = sqlite3.connect(path, isolation_level=None)
        self.writer.execute("PRAGMA journal_mode = WAL")
        self.reader: Reader | None = None

    def source(self, name: str = "shop", **options: object) -> SqliteSource:
        return SqliteSource(CaptureSettings(name, Secret(f"sqlite:///{self.path}"), **options))

    def execute(self, *statements: str) -> None:
        for sql in statements:
            self.writer.execute(sql)

    def follow(self, **options: object) -> Reader:
        source = self.source(**options)
        self.reader = Reader(source, SourcePosition(source.open(None, {})))
        return self.reader

    def schema(self) -> list[str]:
        return [sql for (sql,) in self.writer.execute("SELECT sql FROM sqlite_master")]

    def close(self) -> None:
        self.writer.close()
        if self.reader is not None:
            self.reader.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


def _read_until(reader: Reader, is_it: object) -> list[Change]:
    """Changes until one of them has this row."""
    found = reader.until(lambda found: any(change.after == is_it for change in flat(found)))
    return flat(found)


# ------------------------------------------------------------------------------- writers


def test_another_process_is_seen(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    reader = shop.follow()
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "c.execute('INSERT INTO t VALUES (1, 2)'); c.commit()"
    )
    subprocess.run([sys.executable, "-c", script, shop.path], check=True)
    [change] = flat(reader.changes(1))
    assert change.after == {"id": 1, "a": 2}


def test_what_the_writer_sees_of_its_own_is_unchanged(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", "INSERT INTO t VALUES (41, 1)")
    shop.follow()
    cursor = shop.writer.execute("INSERT INTO t (a) VALUES (5)")
    assert cursor.lastrowid == 42
    assert shop.writer.execute("SELECT last_insert_rowid(), changes()").fetchone() == (42, 1)
    assert shop.writer.execute("UPDATE t SET a = 1").rowcount == 2
    returned = shop.writer.execute("DELETE FROM t RETURNING id").fetchall()
    assert sorted(returned) == [(41,), (42,)]


def test_two_captures_of_one_database(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    before = shop.schema()
    one, two = shop.source("a"), shop.source("a_1")
    readers = [Reader(source, SourcePosition(source.open(None, {}))) for source in (one, two)]
    shop.execute("INSERT INTO t VALUES (1)")
    assert [len(flat(reader.changes(1))) for reader in readers] == [1, 1]
    one.remove()
    shop.execute("INSERT INTO t VALUES (2)")
    assert len(flat(readers[1].changes(1))) == 1
    two.remove()
    assert shop.schema() == before


def test_text_that_is_no_utf8_is_captured_with_replacements(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
    reader = shop.follow()
    shop.execute("INSERT INTO t VALUES (1, CAST(x'41ff42' AS TEXT)), (2, 'ü')")
    rows = [change.after for change in flat(reader.changes(2))]
    assert rows == [{"id": 1, "a": "A\ufffdB"}, {"id": 2, "a": "ü"}]
    table = reader.source.tables()[0]
    assert list(reader.source.read_chunk(table, None, 10).rows) == rows


def test_views_virtual_and_shadow_tables_are_left_out(shop):
    shop.execute(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE VIRTUAL TABLE words USING fts5(text)",
        "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT)",
        'CREATE TABLE "Odd ""Name" (id INTEGER PRIMARY KEY)',
    )
    names = [table.name for table in shop.source().tables()]
    assert names == ['Odd "Name', "counted", "t"]
    assert [table.name for table in shop.source(tables=("main.odd*",)).tables()] == ['Odd "Name']
    assert [table.name for table in shop.source(exclude=("MAIN.T",)).tables()] == names[:2]
    reader = shop.follow()
    shop.execute('INSERT INTO "odd ""name" VALUES (1)', "INSERT INTO words VALUES ('duck')")
    [change] = flat(reader.changes(1))
    assert change.table.id == 'main.Odd "Name'


def test_keys_of_every_type_are_paged_through(shop):
    shop.execute("CREATE TABLE t (k PRIMARY KEY, n)")
    keys = "NULL, NULL, -9e999, -1.5, 0, 1, 1.5, 9007199254740993, 9e999, '', 'a', 'B', x'', x'00'"
    for number, key in enumerate(keys.split(", ")):
        shop.execute(f"INSERT INTO t VALUES ({key}, {number})")
    source = shop.source()
    source.open(None, {})
    [table] = source.tables()
    found: list[Row] = []
    after = None
    while True:
        chunk = source.read_chunk(table, after, 1)
        found += chunk.rows
        after = chunk.after
        if after is None:
            break
    source.close()
    assert sorted(row["n"] for row in found) == list(range(14))


def test_a_large_table_without_a_key_is_read_whole_and_locks_nothing(shop):
    shop.execute("PRAGMA journal_mode = DELETE", "CREATE TABLE t (a, b)")
    shop.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
        " INSERT INTO t SELECT i, zeroblob(1000) FROM n"
    )
    source = shop.source()
    source.open(None, {})
    chunk = source.read_chunk(source.tables()[0], None, 10)
    rows = iter(chunk.rows)
    assert next(rows)["a"] == 1
    shop.execute("PRAGMA busy_timeout = 0", "INSERT INTO t VALUES (0, 0)")
    assert sum(1 for _ in rows) == 4999
    source.close()


# ------------------------------------------------------------------------------- schema


def test_columns_are_added_and_renamed(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", "INSERT INTO t VALUES (1, 1)")
    reader = shop.follow()
    shop.execute("ALTER TABLE t ADD COLUMN b DEFAULT 7", "UPDATE t SET a = 2")
    # The triggers did not know b yet; the row is logged again as it is.
    changes = _read_until(reader, {"id": 1, "a": 2, "b": 7})
    assert [change.op for change in changes] == ["u", "u"]
    assert changes[0].after == {"id": 1, "a": 2}
    shop.execute("UPDATE t SET b = 8")
    [change] = flat(reader.changes(1))
    assert change.before == {"id": 1, "a": 2, "b": 7}
    shop.execute("ALTER TABLE t RENAME COLUMN b TO c", "UPDATE t SET c = 9")
    _read_until(reader, {"id": 1, "a": 2, "c": 9})
    assert [change.table.columns[-1].name for change in reader.schema_changes] == ["b", "c"]


def test_a_row_that_was_deleted_before_the_new_columns_were_seen_stays_deleted(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    reader = shop.follow()
    shop.execute(
        "ALTER TABLE t ADD COLUMN b",
        "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET id = 3",
    )
    changes = _read_until(reader, {"id": 3, "a": 2, "b": 2})
    assert [change.op for change in changes] == ["c", "c", "d", "u", "u"]


def test_an_alter_while_the_capture_is_down(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    reader = shop.follow()
    shop.execute("INSERT INTO t VALUES (1, 1)")
    log_position = reader.changes(1)[-1].begin.at
    reader.close()
    shop.execute("ALTER TABLE t ADD COLUMN b", "INSERT INTO t VALUES (2, 2, 2)")
    source = shop.source()
    source.open(SourcePosition(log_position), {})
    changes = _read_until(Reader(source, SourcePosition(log_position)), {"id": 2, "a": 2, "b": 2})
    assert [change.op for change in changes] == ["c", "u"]
    source.close()


def test_columns_come_again_and_again_before_anything_is_read(shop):
    """Each time the table is looked at behind the same position: what an earlier look has put into
    the log (marks, keys of deleted rows) are no changes of its rows.
    """
    shop.execute("CREATE TABLE t (a, id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("INSERT INTO t VALUES ('first', 1)")
    log_position = SourcePosition(reader.changes(1)[-1].begin.at)
    reader.close()
    trigger = "CREATE TRIGGER gone AFTER INSERT ON t WHEN NEW.a = 'gone'"
    looks = [
        (
            f"{trigger} BEGIN DELETE FROM t WHERE id = NEW.id; END",
            "INSERT INTO t VALUES ('gone', 2), ('stays', 3)",
        ),
        ("ALTER TABLE t ADD COLUMN b",),
        ("ALTER TABLE t ADD COLUMN c", "UPDATE t SET c = 7 WHERE id = 3"),
    ]
    for statements in looks:
        shop.execute(*statements)
        source = shop.source()
        source.open(log_position, {})
        source.close()
    source = shop.source()
    source.open(log_position, {})
    changes = _read_until(Reader(source, log_position), {"a": "stays", "id": 3, "b": None, "c": 7})
    of_rows: dict[int, list[str]] = {}
    for change in changes:
        of_rows.setdefault((change.after or change.before)["id"], []).append(change.op)
    # The younger trigger's delete came before the insert, so that it was logged once more.
    assert of_rows.pop(2) == ["d", "c", "d"]
    assert of_rows.keys() == {3}
    assert "d" not in of_rows[3]
    source.close()


def test_a_column_can_be_dropped_once_the_triggers_are(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    reader = shop.follow(snapshot="never")
    with pytest.raises(sqlite3.OperationalError, match="_headwater_shop_"):
        shop.execute("ALTER TABLE t DROP COLUMN b")
    triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 't'"
    for (name,) in shop.writer.execute(triggers).fetchall():
        shop.execute(f'DROP TRIGGER "{name}"')
    shop.execute("ALTER TABLE t DROP COLUMN b")
    _wait(reader, lambda: reader.failed)
    assert reader.failed[0].table_id == "main.t"
    assert "triggers were dropped" in reader.failed[0].error.detail
    shop.execute("INSERT INTO t VALUES (1, 2)")
    [change] = flat(reader.changes(1))
    assert change.after == {"id": 1, "a": 2}


def test_a_rebuilt_table_is_a_new_one(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", "INSERT INTO t VALUES (1, 1)")
    reader = shop.follow()
    shop.execute(*REBUILD)
    _wait(reader, lambda: len(reader.schema_changes) == 2)
    gone, new = reader.schema_changes
    assert (gone.table_id, gone.table) == ("main.t", None)
    assert new.table == reader.source.tables()[0]
    shop.execute("INSERT INTO t VALUES (2, 'b')")
    [change] = flat(reader.changes(1))
    assert change.after == {"id": 2, "a": "b"}
    assert change.table is new.table


def test_a_table_is_renamed_and_dropped(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("ALTER TABLE t RENAME TO u")
    _wait(reader, lambda: len(reader.schema_changes) == 2)
    gone, new = reader.schema_changes
    assert (gone.table_id, gone.table) == ("main.t", None)
    assert new.table == reader.source.tables()[0]
    shop.execute("INSERT INTO u VALUES (1)")
    assert flat(reader.changes(1))[0].table.id == "main.u"
    shop.execute("DROP TABLE u")
    _wait(reader, lambda: len(reader.schema_changes) == 3)
    assert reader.schema_changes[2].table is None


def test_a_trigger_that_the_user_makes_later_does_not_turn_the_order_round(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    reader = shop.follow()
    shop.execute(
        "CREATE TRIGGER more AFTER INSERT ON t"
        " BEGIN UPDATE t SET a = a * 10 WHERE id = NEW.id; END",
        "INSERT INTO t VALUES (1, 1)",
    )
    # SQLite fires the younger trigger first: the update is logged before the insert. Then
    # the row is logged once more.
    changes = flat(reader.changes(3))
    assert [(change.op, change.after["a"]) for change in changes] == [
        ("u", 10), ("c", 1), ("u", 10),
    ]  # fmt: skip
    shop.execute("INSERT INTO t VALUES (2, 2)")
    assert [(change.op, change.after["a"]) for change in flat(reader.changes(2))] == [
        ("c", 2), ("u", 20),
    ]  # fmt: skip


def test_vacuum_changes_nothing(shop):
    shop.execute("CREATE TABLE t (a)", "CREATE TABLE k (id TEXT PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("INSERT INTO t VALUES (1), (2), (3)", "DELETE FROM t WHERE a < 3")
    reader.changes(5)
    shop.execute("VACUUM", "INSERT INTO t VALUES (4)", "INSERT INTO k VALUES ('x')")
    assert [change.after for change in flat(reader.changes(2))] == [{"a": 4}, {"id": "x"}]
    assert not reader.failed
    assert not reader.schema_changes


def test_a_change_of_other_tables_needs_no_write_lock(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow(exclude=("main.other",))
    shop.execute("CREATE TABLE other (a)", "INSERT INTO t VALUES (1)", "VACUUM", "BEGIN IMMEDIATE")
    assert len(flat(reader.changes(1))) == 1
    shop.execute("ROLLBACK")


def test_a_table_that_is_renamed_in_case_only(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("ALTER TABLE t RENAME TO other", "ALTER TABLE other RENAME TO T")
    _wait(reader, lambda: len(reader.schema_changes) == 2)
    assert [change.table_id for change in reader.schema_changes] == ["main.t", "main.T"]
    shop.execute("INSERT INTO t VALUES (1)")
    assert flat(reader.changes(1))[0].table.id == "main.T"


def test_a_wide_table_widens_the_log_and_a_wider_one_is_refused(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    columns = [f"c{i}" for i in range(60)]
    shop.execute(f"CREATE TABLE wide ({', '.join(columns)})")
    shop.execute(f"CREATE TABLE wider ({', '.join(f'c{i}' for i in range(1200))})")
    _wait(reader, lambda: reader.schema_changes)
    shop.execute(
        f"INSERT INTO wide VALUES ({', '.join(map(str, range(60)))})", "UPDATE wide SET c0 = 1"
    )
    changes = flat(reader.changes(2))
    assert list(changes[1].after.values()) == [1, *range(1, 60)]
    [error] = shop.source().check()
    assert isinstance(error, TableRefused)
    assert [failed.table_id for failed in reader.failed] == ["main.wider"]


# --------------------------------------------------------------------- positions and files


def test_a_lost_position_is_explained(shop, tmp_path):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    start = reader.position
    shop.execute("INSERT INTO t VALUES (1), (2), (3)")
    end = reader.changes(3)[-1].begin.at
    reader.source.acknowledge(end)
    _wait(reader, lambda: reader.source.lag(end).retained_bytes < 200)
    with pytest.raises(PositionLost, match="the log no longer goes back"):
        shop.source().open(SourcePosition(start), {})
    with pytest.raises(PositionLost):
        shop.source().open(SourcePosition({**end, "id": 1000, "first": 1000}), {})
    reader.source.remove()
    with pytest.raises(PositionLost) as lost:
        shop.source().open(SourcePosition(end), {})
    assert "headwater capture reset shop" in lost.value.hint
    again = shop.source()
    again.open(None, {})
    again.close()
    with pytest.raises(PositionLost):
        shop.source().open(SourcePosition({**end, "id": 1, "first": 1}), {})


def test_a_log_that_is_removed_while_it_is_read(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    reader.next()
    shop.source().remove()
    with pytest.raises(PositionLost):
        _wait(reader, lambda: False)


def test_a_file_that_is_replaced_is_noticed(shop, tmp_path):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    reader.next()
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.touch()
    other.replace(shop.path)
    with pytest.raises(SourceUnreachable, match="replaced"):
        _wait(reader, lambda: False)


def test_problems_of_a_file_are_reported(shop, tmp_path):
    def errors(path: Path, **options: object) -> list[object]:
        return SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{path}"), **options)).check()

    [missing] = errors(tmp_path / "missing.db")
    assert isinstance(missing, SourceUnreachable)
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text.db").write_text("no database at all " * 100)
    [no_database] = errors(tmp_path / "text.db")
    assert isinstance(no_database, SourceRefused)
    assert "no SQLite database" in str(no_database)
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    [no_table] = errors(shop.path, tables=("public.*",))
    assert "main.*" in no_table.hint
    shop.execute("PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE")
    [locked] = errors(shop.path)
    assert isinstance(locked, SourceUnreachable)
    assert "locked" in str(locked)


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_long_write_transaction_does_not_end_the_stream(shop, journal_mode):
    shop.execute(f"PRAGMA journal_mode = {journal_mode}", "CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("BEGIN EXCLUSIVE", "INSERT INTO t VALUES (1)")
    for _ in range(4):
        assert not isinstance(reader.next(), Transaction)
    shop.execute("COMMIT")
    assert len(flat(reader.changes(1))) == 1


def test_acknowledging_goes_on_when_a_writer_had_the_lock(shop):
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    reader = shop.follow()
    shop.execute("INSERT INTO t VALUES (1), (2), (3)")
    end = reader.changes(3)[-1].begin.at
    shop.execute("BEGIN IMMEDIATE")
    started_s = time.monotonic()
    reader.source.acknowledge(end)
    assert time.monotonic() - started_s < 4  # and not the 5 of a connection that waits for locks
    shop.execute("ROLLBACK")
    log = "SELECT count(*) FROM _headwater_shop_log"
    _wait(reader, lambda: shop.writer.execute(log).fetchone() == (1,))


def _wait(reader: Reader, is_it_so: object) -> None:
    deadline_s = time.monotonic() + 10
    while not is_it_so():
        assert time.monotonic() < deadline_s, "it does not come"
        reader.next()
