"""The seam of state files: directories and object stores keep the same promises."""

import functools
import os
from uuid import uuid4

import pyarrow as pa
import pytest
from support.pipelines.faulty_objects import FaultyObjects

from bench.peers.s3proxy import BUCKET, s3_server
from headwater.errors import PipelineError, StateLost
from headwater.pipelines.operators.state import object_state
from headwater.pipelines.operators.state.object_state import FileCache, ObjectDirectory
from headwater.pipelines.operators.state.state_files import (
    FileState,
    TableLocation,
    begin,
    check_begun,
    pack_tables,
    read_table,
)
from headwater.pipelines.operators.state.state_store import state_directory
from headwater.pipelines.state_url import StateUrl


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return StateUrl(BUCKET, f"state/{uuid4().hex[:8]}", s3.endpoint)


@pytest.fixture(params=["directory", "memory", pytest.param("s3", marks=pytest.mark.java)])
def directory(request, tmp_path):
    if request.param == "memory":
        return FaultyObjects(tmp_path / "cache").directory
    if request.param == "s3":
        return state_directory(request.getfixturevalue("s3_url").address)
    found = state_directory(tmp_path / "operators")
    found.create()
    return found


def rows(*values):
    return pa.table({"n": pa.array(values, pa.int64())})


def test_files(directory):
    bucket = directory / "enrich-1" / "0"
    bucket.create()
    assert bucket.names() == []
    assert not bucket.has("1.json")
    bucket.write("1.json", b"one")
    bucket.write("1.json", b"two")
    bucket.write("1-ab.arrow", memoryview(b"x" * 1000))
    bucket.sync()
    assert bucket.exists()
    assert bucket.has("1.json")
    assert bucket.read("1.json") == b"two"
    assert sorted(bucket.names()) == ["1-ab.arrow", "1.json"]
    assert bucket.size_bytes("1-ab.arrow") == directory.size_bytes("enrich-1/0/1-ab.arrow") == 1000
    assert directory.directories() == ["enrich-1"]
    assert (directory / "none").directories() == []
    bucket.remove(["1.json", "never.json"])
    assert bucket.names() == ["1-ab.arrow"]
    directory.remove_all()
    (directory / "enrich-1").create()
    assert (directory / "enrich-1").directories() == []
    (directory / "enrich-1" / "0").create()
    assert bucket.names() == []


def test_what_is_missing(directory):
    (directory / "a").create()
    for call in (directory.read, directory.map, directory.size_bytes):
        with pytest.raises(FileNotFoundError):
            call("a/7-ab.arrow")


def test_a_table_stays_usable_when_its_file_is_removed(directory):
    directory.create()
    content, (location,) = pack_tables("5-ab.arrow", [rows(1, 2, 3)])
    directory.write("5-ab.arrow", content)
    table = read_table(directory, location)
    directory.remove(["5-ab.arrow"])
    assert table["n"].to_pylist() == [1, 2, 3]
    with pytest.raises(StateLost):
        read_table(directory, location)


def test_another_process_opens_the_same_directory(directory):
    inner = directory / "session-1"
    inner.create()
    inner.write("begun", b'{"buckets": 1}')
    if isinstance(directory, ObjectDirectory) and isinstance(directory._store, FaultyObjects):
        return  # in the memory of this process
    assert state_directory(inner.address).read("begun") == b'{"buckets": 1}'


@pytest.mark.parametrize("name", ["with space", "per%20cent", "a%b", "é", "a+b", "=", "a..b"])
def test_names_of_pipelines_and_tables(directory, name):
    inner = directory / name / "v1"
    inner.create()
    inner.write("begun", b"1")
    assert inner.names() == ["begun"]
    assert directory.directories() == [name]
    directory.remove_all()
    directory.create()
    assert directory.directories() == []


# ── the cache of an object store ──────────────────────────────────────────────────────────────


def test_a_file_is_fetched_once(tmp_path):
    writer = FaultyObjects(tmp_path / "writer")
    content, (location,) = pack_tables("5-ab.arrow", [rows(1, 2, 3)])
    writer.directory.write("5-ab.arrow", content)
    requests = len(writer.requests)
    assert read_table(writer.directory, location)["n"].to_pylist() == [1, 2, 3]
    assert len(writer.requests) == requests, "what was written is cached"
    reader = FaultyObjects(tmp_path / "reader", writer.objects)
    for _ in range(3):
        assert read_table(reader.directory, location)["n"].to_pylist() == [1, 2, 3]
    assert len(reader.requests) == 1
    assert len(list((tmp_path / "reader").iterdir())) == 1
    reader.directory.remove(["5-ab.arrow"])
    assert list((tmp_path / "reader").iterdir()) == []


def test_manifests_are_not_cached(tmp_path):
    one = FaultyObjects(tmp_path / "one")
    other = FaultyObjects(tmp_path / "other", one.objects)
    one.directory.write("3.json", b"first")
    assert other.directory.read("3.json") == b"first"
    one.directory.write("3.json", b"second attempt")
    assert other.directory.read("3.json") == b"second attempt"


def test_the_cache_is_bounded(tmp_path):
    cache = FileCache(tmp_path, "bucket", limit_bytes=100_000)
    for number in range(200):
        cache.add(f"{number}.arrow", b"x" * 5_000)
        assert cache.map("0.arrow"), "it is used all the time"
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 120_000
    assert cache.map("199.arrow")
    assert cache.map("100.arrow") is None


def test_many_small_files_are_bounded_too(tmp_path, monkeypatch):
    monkeypatch.setattr(object_state, "_MOST_FILES", 10)
    cache = FileCache(tmp_path, "bucket")
    for number in range(2000):
        cache.add(f"{number}.arrow", b"x")
    assert len(list(tmp_path.iterdir())) <= 10 + object_state._EVICT_AFTER_FILES


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = FaultyObjects(tmp_path / "file" / "cache")
    content, (location,) = pack_tables("5-ab.arrow", [rows(1, 2, 3)])
    store.directory.write("5-ab.arrow", content)
    assert read_table(store.directory, location)["n"].to_pylist() == [1, 2, 3]


def test_the_cache_of_a_task_is_below_the_directory_of_its_executor(tmp_path, monkeypatch):
    found = functools.partial(object_state.cache_directory.__wrapped__)
    local = tmp_path / "blockmgr-1a2b"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{local},{tmp_path / 'blockmgr-3c4d'}")
    assert found() == local / "headwater-state"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for elsewhere in (str(tmp_path), ""):  # a driver's
        monkeypatch.setenv("SPARK_LOCAL_DIRS", elsewhere)
        assert found().name.startswith("headwater-state-")
        assert found().parent == tmp_path


# ── failures ──────────────────────────────────────────────────────────────────────────────────


def step(directory, batch):
    """Two buckets, of which one changes with each batch, and side outputs."""
    for bucket in range(2):
        state = FileState(directory, bucket, batch, buckets=2, is_begun=True)
        if bucket == 0 or batch % 2:
            before = state.table("all")
            state.put("all", rows(*(before["n"].to_pylist() if before else ()), batch))
            state.put("slow", rows(batch) if batch % 3 == 0 else state.table("slow"))
            state.document["last"] = batch
            state.side("late", rows(batch))
        state.commit()


def found_in(directory, batch):
    states = [FileState(directory, n, batch + 1, buckets=2, is_begun=True) for n in range(2)]
    return [
        (state.table("all")["n"].to_pylist(), state.table("slow")["n"].to_pylist(), state.document)
        for state in states
    ]


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "response_lost"])
def test_a_failure_of_any_request_lets_the_batch_run_again(tmp_path, is_done):
    def run(store, batch):
        operator = store.directory / "enrich-1"
        if batch == 0:
            begin(operator, 2)
        check_begun(operator)
        step(operator, batch)

    whole = FaultyObjects(tmp_path / "whole")
    for batch in range(4):
        run(whole, batch)
    expected = found_in(whole.directory / "enrich-1", 3)
    failures = 0
    for after in range(500):
        store = FaultyObjects(tmp_path / str(after))
        store.fail(after, is_done=is_done)
        for batch in range(4):
            try:
                run(store, batch)
            except StateLost:
                raise
            except PipelineError:
                assert store.has_failed
                # Another process takes over, with an empty cache.
                store = FaultyObjects(tmp_path / f"{after}-again", store.objects)
                run(store, batch)
                failures += 1
        other = FaultyObjects(tmp_path / f"{after}-later", store.objects)
        assert found_in(other.directory / "enrich-1", 3) == expected, after
        if not store.has_failed and store.cache.directory.name == str(after):
            break
    assert failures > 40


def test_a_missing_object_is_lost_state(tmp_path):
    store = FaultyObjects(tmp_path / "cache")
    operator = store.directory / "enrich-1"
    begin(operator, 2)
    step(operator, 1)
    other = FaultyObjects(tmp_path / "other", store.objects)
    names = [name for name in (operator / "0").names() if name.endswith(".arrow")]
    (operator / "0").remove(names)
    state = FileState(other.directory / "enrich-1", 0, 2, buckets=2, is_begun=True)
    with pytest.raises(StateLost):
        state.table("all")
    (operator / "0").remove(["1.json"])
    with pytest.raises(StateLost):
        FileState(operator, 0, 2, buckets=2, is_begun=True, required=1)
    operator.remove(["begun"])
    with pytest.raises(StateLost):
        check_begun(operator)
    with pytest.raises(StateLost):
        FileState(operator, 0, 2, buckets=2, is_begun=True)


@pytest.mark.java
@pytest.mark.parametrize("mistake", ["secret", "bucket", "endpoint"])
def test_a_store_that_refuses_is_no_lost_state_and_shows_no_secret(s3_url, monkeypatch, mistake):
    monkeypatch.setattr(object_state, "_store_of", object_state._store_of.__wrapped__)
    right = state_directory(s3_url.address) / "enrich-1"
    begin(right, 2)
    step(right, 1)
    secret = "a-wrong-one-that-no-text-may-have"
    bucket, endpoint = s3_url.bucket, s3_url.endpoint
    if mistake == "secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        monkeypatch.setenv("AWS_SESSION_TOKEN", secret)
    elif mistake == "bucket":
        bucket = "another"
    else:
        endpoint = "http://127.0.0.1:1"
    url = StateUrl(bucket, s3_url.prefix, endpoint)
    wrong = state_directory(url.address) / "enrich-1"
    calls = [
        lambda: begin(wrong, 2),
        lambda: check_begun(wrong),
        lambda: FileState(wrong, 0, 2, buckets=2),
        lambda: read_table(wrong / "0", TableLocation("1-ab.arrow", 0, 10, 1)),
    ]
    for call in calls:
        with pytest.raises(PipelineError) as caught:
            call()
        assert not isinstance(caught.value, StateLost), caught.value
        text = f"{caught.value} {caught.value.hint}"
        assert secret not in text
        assert os.environ["AWS_ACCESS_KEY_ID"] not in text
        assert "runs again" in text


# ── addresses ─────────────────────────────────────────────────────────────────────────────────


def test_addresses():
    url = StateUrl.parse("s3://bucket/a/b?endpoint=http%3A%2F%2Fminio:9000&region=eu-1")
    assert url == StateUrl("bucket", "a/b", "http://minio:9000", "eu-1")
    assert StateUrl.parse(url.address) == url
    assert str(url / "c") == "s3://bucket/a/b/c"
    assert StateUrl.parse("s3://bucket?endpoint=https://host:1").endpoint == "https://host:1"
    assert StateUrl.parse("s3://bucket/").address == "s3://bucket"


@pytest.mark.parametrize(
    "address",
    [
        "s3:///prefix",
        "s3a://bucket/x",
        "hdfs:///x",
        "s3://key:hunter2@bucket/x",
        "s3://bucket/x?endpoint=http://key:hunter2@host",
        "s3://bucket/x?secret=hunter2",
        "s3://bucket/x?endpoint=ftp://host",
        "s3://bucket/x#hunter2",
        "s3://[bucket/x",
    ],
)
def test_an_address_with_a_mistake_is_refused_and_not_repeated(address):
    with pytest.raises(ValueError, match="s3://bucket/prefix") as caught:
        StateUrl.parse(address)
    assert "hunter2" not in str(caught.value)


def test_a_file_of_a_store_is_not_found_under_another_bucket(tmp_path):
    one, other = FileCache(tmp_path, "http://a/bucket"), FileCache(tmp_path, "http://b/bucket")
    one.add("5-ab.arrow", b"x")
    assert one.map("5-ab.arrow")
    assert other.map("5-ab.arrow") is None
