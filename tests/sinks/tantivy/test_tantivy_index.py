"""Specific to the full-text index: what is found, in which order, by which options."""

import os
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_tantivy_contract import TantivyBackend, memory_directory

from headwater.errors import ConfigError, Fenced, RowRefused, StoreRefused, StoreUnreachable
from headwater.sinks.contract import Target
from headwater.sinks.tantivy import store as tantivy_index
from headwater.sinks.tantivy.store import search

__all__ = ["memory_directory"]

FIELDS = pa.schema(
    [("id", pa.int64()), ("title", pa.string()), ("body", pa.string()),
     ("tags", pa.list_(pa.string())), ("price", pa.decimal128(10, 2)),
     ("at", pa.timestamp("us", "UTC")), ("open", pa.bool_())]
)  # fmt: skip
ROWS = [
    {"id": 1, "title": "River maps", "body": "maps of rivers, and of one lake", "tags": ["Paper"],
     "price": Decimal("9.50"), "at": datetime(2024, 1, 1, tzinfo=UTC), "open": True},
    {"id": 2, "title": "Lake", "body": "a lake, a lake, and a lake again", "tags":
     ["paper", "blue"], "price": Decimal("20.00"), "at": datetime(2025, 1, 1, tzinfo=UTC),
     "open": False},
    {"id": 3, "title": "Mountains", "body": "a long text about mountains where a lake is named once"
     " among very many other words that have nothing to do with it", "tags": None, "price": None,
     "at": datetime(1, 1, 1, tzinfo=UTC), "open": None},
]  # fmt: skip
ID = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def backend(memory_directory):
    return TantivyBackend(memory_directory)


@pytest.fixture
def written(backend):
    """A function from options to the path of an index of ROWS."""

    def write(**options):
        name = f"n{len(options)}"
        store = backend.store(Target("shop", name, ("id",), options))
        with closing(store), store.writer(1, FIELDS) as writer:
            writer.apply(batch(0, table(FIELDS, ROWS)))
        return backend.directory / name

    return write


def found(path, query, **options):
    return [hit.row["id"] for hit in search(path, query, **options)]


def test_rows_that_say_more_about_it_come_first(written):
    path = written()
    assert found(path, "lake") == [2, 1, 3]
    scores = [hit.score for hit in search(path, "lake")]
    assert scores == sorted(scores, reverse=True)
    assert found(path, "lake", limit=1) == [2]
    assert found(path, "zebra") == []
    assert search(path, "lake")[0].row == ROWS[1]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("title:lake", {2}),
        ('body:"of one lake"', {1}),
        ("lake NOT rivers", {2, 3}),
        ('title.raw:"River maps"', {1}),
        ("title.raw:river", set()),
        ("tags:paper", {1, 2}),
        ("tags.raw:Paper", {1}),
        ("price:[9 TO 10]", {1}),
        ("at:[2024-06-01T00:00:00Z TO 2026-01-01T00:00:00Z]", {2}),
        ("open:true", {1}),
        ("id:3", {3}),
        ("*", {1, 2, 3}),
    ],
)  # fmt: skip
def test_columns_are_found_by_what_they_are(written, query, expected):
    assert set(found(written(), query)) == expected


def test_stems_of_a_language_and_which_columns_are_text(written, backend):
    assert found(written(), "mountain") == []
    path = written(language="english", text="title")
    assert found(path, "mountain") == [3]
    assert found(path, "body:lake") == []  # as it is only
    assert found(path, f'body:"{ROWS[1]["body"]}"') == [2]
    with pytest.raises(ConfigError, match="klingon"):
        backend.store(Target("shop", "x", ("id",), {"language": "klingon"}))


def test_other_options_are_a_new_index_with_the_same_rows(backend):
    for options, expected in (({}, []), ({"language": "english"}, [3])):
        with closing(backend.store(Target("shop", "pages", ("id",), options))) as store:
            with store.writer(1, FIELDS) as writer:
                writer.apply(batch(0, table(FIELDS, ROWS)))
                assert writer.position == position(0)
            assert found(backend.directory / "pages", "mountain") == expected
            assert contents(store)[1].num_rows == 3


def test_what_cannot_be_searched_is_said(written, backend):
    with pytest.raises(StoreRefused, match="query"):
        search(written(), "nosuch:x")
    with pytest.raises(StoreRefused, match="query"):
        search(written(), "title:(((")
    (backend.directory / "empty").mkdir()
    with pytest.raises(StoreRefused, match="cannot be read"):
        search(backend.directory / "empty", "x")


def test_a_key_that_is_longer_than_a_term_is_refused(backend):
    fields = pa.schema([("k", pa.string())])
    store = backend.store(Target("shop", "long", ("k",)))
    with closing(store), store.writer(1, fields) as writer:
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(0, table(fields, [{"k": "x" * 65_531}])))
        assert caught.value.column == "k"
        writer.apply(batch(0, table(fields, [{"k": "x" * 65_530}])))
        writer.apply(batch(1, table(fields, [{"k": "x" * 65_530}], ["d"])))
    assert rows_of(store) == []


def test_a_writer_whose_commit_is_overtaken_is_fenced_behind_it(backend, monkeypatch):
    """Another one takes over between its look at the epoch and its commit, and goes on from what it
    found: the commit is invisible, and never reported as done.
    """
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        zombie = store.writer(1, ID)
        zombie.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        successors = []
        commit = zombie._commit

        def late(documents, at):
            if not successors:
                successors.append(store.writer(1, ID))
            commit(documents, at)

        monkeypatch.setattr(zombie, "_commit", late)
        with pytest.raises(Fenced):
            zombie.apply(batch(1, table(ID, [{"id": 2, "v": "zombie"}])))
        assert rows_of(store) == [{"id": 1, "v": "a"}]
        [writer] = successors
        assert writer.position == position(0)
        writer.apply(batch(1, table(ID, [{"id": 3, "v": "b"}])))
        assert rows_of(store) == [{"id": 1, "v": "a"}, {"id": 3, "v": "b"}]
        zombie.close()
        writer.close()


def test_a_lock_that_is_held_names_the_process(backend, monkeypatch):
    monkeypatch.setattr(tantivy_index, "_LOCK_TIMEOUT_S", 0.05)
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        with store.writer(1, ID):
            pass
        with store.locked(), pytest.raises(StoreUnreachable, match=f"process {os.getpid()}"):
            store.writer(1, ID)


def test_no_files_are_left_of_what_was_replaced(backend):
    more = ID.append(pa.field("n", pa.int64()))
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        with store.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
            writer.apply(batch(1, table(more, [{"id": 1, "v": "a", "n": 1}])))
        with store.writer(1, more):
            pass
    own = backend.directory / ".headwater" / "orders"
    assert len([path for path in own.iterdir() if path.is_dir()]) == 1
