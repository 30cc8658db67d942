"""Personal columns of a captured table: encrypted in the topic, and gone with their key."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.capture.capture_harness import read, running
from support.subjects.customers import customers
from tiers import long

from headwater.errors import ConfigError, KeyStoreLost
from headwater.subjects.key_store import KeyStore
from headwater.subjects.keyring import Keyring
from headwater.subjects.sealing import ERASED
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def bootstrap(data_dir) -> Iterator[str]:
    with InProcessBroker.serving(str(data_dir)) as broker:
        yield broker.bootstrap


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, email TEXT, age INTEGER)"
        )
        yield connection


def address(database: sqlite3.Connection) -> str:
    return f"sqlite:///{database.execute('PRAGMA database_list').fetchone()[2]}"


def bytes_with(text: bytes, directory: Path) -> list[Path]:
    return [file for file in directory.rglob("*") if file.is_file() and text in file.read_bytes()]


def test_names_are_nowhere_in_the_log_and_read_back_with_the_keys(
    bootstrap, database, tmp_path, data_dir
):
    database.execute("INSERT INTO customers VALUES (42, 'Ann Zyxwv', 'ann@zyxwv.example', 33)")
    topic = "first.main.customers"
    personal = customers(tmp_path, topic, fields=("name", "email", "age"))
    with running(bootstrap, address(database), "first", personal) as capture:
        capture.wait_for_copies("main.customers")
        database.execute("UPDATE customers SET name = 'Ann Qponm', email = NULL WHERE id = 42")
        database.execute("INSERT INTO customers VALUES (43, 'Bob Zyxwv', NULL, 44)")
        database.execute("DELETE FROM customers WHERE id = 43")
        capture.wait_until(lambda: len(read(bootstrap, topic)) == 5, "all records")
    copied, updated, created, deleted, tombstone = read(bootstrap, topic)
    opened = personal.keyring.decrypt
    assert copied.value["after"]["id"] == 42
    assert copied.key == {"id": 42}
    assert opened(copied.value["after"]["name"], "name") == b'"Ann Zyxwv"'
    assert opened(copied.value["after"]["age"], "age") == b"33"
    assert updated.value["before"]["name"] == copied.value["after"]["name"]
    assert opened(updated.value["after"]["name"], "name") == b'"Ann Qponm"'
    assert updated.value["after"]["email"] is None
    assert deleted.value["before"]["name"] == created.value["after"]["name"]
    assert tombstone.value is None
    for name in (b"Zyxwv", b"Qponm", b"zyxwv"):
        assert not bytes_with(name, data_dir), name
    assert bytes_with(b"first.main.customers", data_dir)  # the search finds what is there


@long
def test_a_second_copy_gives_the_same_texts(bootstrap, database, tmp_path):
    database.executemany(
        "INSERT INTO customers VALUES (?, ?, NULL, NULL)", [(n, f"name {n}") for n in range(50)]
    )
    found = []
    for capture_name in ("again", "afresh"):  # two captures, two processes' worth of caches
        topic = f"{capture_name}.main.customers"
        personal = customers(tmp_path, topic)
        with running(bootstrap, address(database), capture_name, personal) as capture:
            capture.wait_for_copies("main.customers")
        found.append([record.value["after"] for record in read(bootstrap, topic)])
    assert found[0] == found[1]
    assert len(found[0]) == 50


def test_rows_of_an_erased_subject_have_a_marked_blank(bootstrap, database, tmp_path):
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "erased.main.customers"
    personal = customers(tmp_path, topic)
    with running(bootstrap, address(database), "erased", personal) as capture:
        capture.wait_for_copies("main.customers")
        store = KeyStore(personal.places)
        store.begin_erasure("customer", store.subject_hash("customer", "42"), {})
        old = read(bootstrap, topic)[0].value["after"]["name"]
        assert Keyring(store).decrypt(old, "name") is None

        def is_blank() -> bool:
            database.execute("UPDATE customers SET name = name || '.' WHERE id = 42")
            return read(bootstrap, topic)[-1].value["after"]["name"] == ERASED

        capture.wait_until(is_blank, "the capture has noticed")


def test_without_its_key_store_a_capture_ends_and_writes_nothing(bootstrap, database, tmp_path):
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "lost.main.customers"
    personal = customers(tmp_path, topic)
    with running(bootstrap, address(database), "lost", personal) as capture:
        capture.wait_for_copies("main.customers")
    for file in Path(personal.places.key_store).glob("keys.sqlite*"):
        file.unlink()
    database.execute("INSERT INTO customers VALUES (43, 'Bob', NULL, NULL)")
    with (
        pytest.raises(KeyStoreLost),
        running(bootstrap, address(database), "lost", personal) as capture,
    ):
        capture.wait_until(lambda: len(read(bootstrap, topic)) > 1, "a record")
    assert len(read(bootstrap, topic)) == 1


def test_a_column_that_does_not_exist_is_refused_before_anything_is_written(
    bootstrap, database, tmp_path
):
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "misspelt.main.customers"
    personal = customers(tmp_path, topic, fields=("nmae",))
    with (
        pytest.raises(ConfigError, match="does not have: nmae"),
        running(bootstrap, address(database), "misspelt", personal) as capture,
    ):
        capture.wait_until(lambda: bool(read(bootstrap, topic)), "a record")
    assert not read(bootstrap, topic)


def test_a_renamed_personal_column_stops_its_table(bootstrap, database, tmp_path):
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "renamed.main.customers"
    personal = customers(tmp_path, topic)
    with running(bootstrap, address(database), "renamed", personal) as capture:
        capture.wait_for_copies("main.customers")
        database.execute("ALTER TABLE customers RENAME COLUMN name TO full_name")
        database.execute("INSERT INTO customers VALUES (43, 'Bob', NULL, NULL)")
        capture.wait_until(
            lambda: capture.stored().tables["main.customers"].failed is not None, "the refusal"
        )
        failed = capture.stored().tables["main.customers"].failed
    assert "has no column name" in failed.what
    assert all(b"Bob" not in str(record.value).encode() for record in read(bootstrap, topic))


@long
def test_a_primary_key_cannot_be_personal(bootstrap, database, tmp_path):
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "keyed.main.customers"
    personal = customers(tmp_path, topic, id_field="name", fields=("id",))
    with running(bootstrap, address(database), "keyed", personal) as capture:
        capture.wait_until(
            lambda: any(table.failed for table in capture.stored().tables.values()), "the refusal"
        )
        failed = capture.stored().tables["main.customers"].failed
    assert "part of the key" in failed.what
    assert not read(bootstrap, topic)


def test_records_become_visible_after_their_keys_are_stored(
    bootstrap, database, tmp_path, monkeypatch
):
    """A crash between the two leaves keys without records, never records without keys."""
    database.execute("INSERT INTO customers VALUES (42, 'Ann', NULL, NULL)")
    topic = "ordered.main.customers"
    personal = customers(tmp_path, topic)

    def crash() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(personal.keyring, "flush", crash)
    with (
        pytest.raises(KeyboardInterrupt),
        running(bootstrap, address(database), "ordered", personal) as capture,
    ):
        capture.wait_until(lambda: bool(read(bootstrap, topic)), "a record")
    assert read(bootstrap, topic) == []
    monkeypatch.undo()
    with running(bootstrap, address(database), "ordered", personal) as capture:
        capture.wait_until(lambda: bool(read(bootstrap, topic)), "the record")
    stored = Keyring(KeyStore(personal.places))  # as another process has it
    copied = [record for record in read(bootstrap, topic) if record.op == "r"]
    assert len(copied) == 1
    assert stored.decrypt(copied[0].value["after"]["name"], "name") == b'"Ann"'
