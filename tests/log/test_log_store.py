"""Topics, the catalog, and what a data directory holds."""

import asyncio
import contextlib
import os
import threading

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log.log_harness import Log, batch_of
from tiers import examples

from headwater.errors import CorruptLog, DataDirectoryInUse
from headwater.log.catalog import Catalog
from headwater.log.disk import checkpoint_file
from headwater.log.disk.files import Files
from headwater.log.partitions.epochs import LeaderEpochs
from headwater.protocol.error_codes import ApiError


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


def delete_topic(log: Log, name: str = "t") -> None:
    log.run(log.store.delete_topic(name))
    log.settle()


class TestTopics:
    def test_survive(self, log: Log):
        log.create("a", 3, retention_ms=5000)
        log.create("b")
        log.run(log.store.add_partitions("b", 4))
        log.run(log.store.set_configs("a", {"segment.bytes": "2048"}))
        ids = {name: topic.id for name, topic in log.store.catalog.topics.items()}
        for again in (log.restart, log.crash, lambda: log.power_cut(1)):
            again()
            topics = log.store.catalog.topics
            assert {name: topic.id for name, topic in topics.items()} == ids
            assert (topics["a"].partitions, topics["b"].partitions) == (3, 4)
            assert log.partition("a", 2).config.segment_bytes == 2048
            assert len(log.store.partitions) == 7

    def test_a_new_one_is_there_when_its_partitions_are(self, log: Log, monkeypatch):
        """The catalog's thread has it before. Who sees it there and writes would find nothing."""
        store, create = log.store, log.store.catalog.create
        registered, go_on = threading.Event(), threading.Event()

        def create_slowly(*args):
            topic = create(*args)
            registered.set()
            go_on.wait(60)
            return topic

        async def two_at_once():
            first = asyncio.create_task(store.create_topic("t", 2, {}))
            await asyncio.to_thread(registered.wait, 10)
            assert "t" in store.catalog.topics
            assert not store.has_topic("t")
            second = asyncio.create_task(store.create_topic("t", 2, {}))
            go_on.set()
            assert await second == await first
            assert store.has_topic("t")

        monkeypatch.setattr(store.catalog, "create", create_slowly)
        log.run(two_at_once())

    def test_a_deleted_one_is_gone(self, log: Log):
        log.create()
        log.fill(3)
        delete_topic(log)
        assert not [name for name in os.listdir(log.path) if name.startswith("t-")]
        log.crash()
        assert log.store.catalog.topics == {}

    def test_recreated_it_starts_empty(self, log: Log):
        log.create(segment_bytes=1024)
        for sequence in range(10):
            log.append(batch_of(bytes(300), producer=(5, 0, sequence)))
        log.checkpoint()
        log.delete_records(7)
        delete_topic(log)
        log.create()
        log.append(batch_of(b"new", producer=(5, 0, 0)))
        for again in (log.crash, log.restart):
            again()
            assert log.values() == [b"new"]
            assert log.append(batch_of(b"new", producer=(5, 0, 0))) == 0

    @pytest.mark.parametrize("after", range(14))
    def test_recreated_after_a_crash_in_its_deletion(self, log: Log, after: int):
        log.create(segment_bytes=1024)
        log.fill(10)
        log.checkpoint()
        log.delete_records(7)
        log.files.die(after=after)
        with contextlib.suppress(OSError):
            delete_topic(log)
        log.power_cut(after)
        if "t" in log.store.catalog.topics:
            assert log.partition().high_watermark == 10
            return
        log.create()
        log.append(batch_of(b"new"))
        for again in (log.crash, log.restart):
            again()
            assert log.values() == [b"new"]

    def test_a_slow_reader_of_the_old_one_does_no_harm_to_the_new(self, log: Log):
        log.create()
        log.fill(3)
        old = log.partition()
        part = old.find(0, 1 << 20)
        assert old.pin(part)
        delete_topic(log)
        log.create()
        log.append(batch_of(b"new"))
        with pytest.raises(FileNotFoundError):
            part.read(memoryview(bytearray(part.size_bytes)), 0)
        part.release()
        log.settle()
        assert log.values() == [b"new"]
        log.crash()
        assert log.values() == [b"new"]

    def test_a_segment_that_was_being_sent_does_no_harm_to_the_new(self, log: Log):
        log.create()
        log.fill(3)
        old = log.partition()
        part = old.find(0, 1 << 20)
        assert old.pin(part)
        log.roll()
        log.delete_records(3)  # its files wait for the reader
        delete_topic(log)
        log.create()
        log.append(batch_of(b"new"))
        log.crash()
        assert log.values() == [b"new"]

    @pytest.mark.parametrize("after", range(14))
    def test_files_that_a_failing_disk_did_not_delete_do_not_affect_the_new(
        self, log: Log, after: int
    ):
        log.create()
        log.fill(3)
        log.files.die(after=after)
        with contextlib.suppress(OSError):
            delete_topic(log)
        log.files.revive()
        if "t" in log.store.catalog.topics:
            return
        log.create()
        log.append(batch_of(b"new"))
        log.crash()
        assert log.values() == [b"new"]

    def test_an_append_to_a_deleted_one_is_refused(self, log: Log):
        partition = log.create()
        delete_topic(log)
        batch = batch_of(b"x")
        from headwater.protocol.records import read_header

        with pytest.raises(ApiError):
            partition.append(memoryview(batch), read_header(batch), lambda _: None)


def test_one_process_at_a_time(log: Log):
    with pytest.raises(DataDirectoryInUse) as error, Log(log.path):
        pass
    assert str(os.getpid()) in error.value.detail


def test_producer_ids_are_never_given_twice(log: Log):
    given: list[int] = []
    for again in (log.restart, log.crash, lambda: log.power_cut(3), log.restart):
        given += [log.store.catalog.next_producer_id() for _ in range(3)]
        again()
    assert len(set(given)) == 12


class TestCatalog:
    def lines(self, log: Log) -> bytes:
        with open(f"{log.path}/catalog.jsonl", "rb") as file:
            return file.read()

    def test_torn_at_every_byte(self, log: Log, tmp_path):
        log.create("a")
        before = self.lines(log)
        log.create("b" * 240, 2, headwater_overload_group="g" * 600)
        whole = self.lines(log)
        for size in range(len(before), len(whole) + 1):
            path = tmp_path / "catalog.jsonl"
            path.write_bytes(whole[:size])
            catalog = Catalog(Files(), str(tmp_path))
            catalog.open()
            assert set(catalog.topics) == ({"a"} if size < len(whole) else {"a", "b" * 240})
            catalog.create("c", 1, {})
            catalog = Catalog(Files(), str(tmp_path))
            catalog.open()
            assert "c" in catalog.topics

    def test_power_cuts_while_it_is_written(self, log: Log):
        names = set()
        for seed in range(30):
            name = f"{seed}-x"
            log.files.die(after=seed % 5)
            try:
                log.create(name, headwater_overload_group="g" * 700)  # longer than a sector
            except OSError:
                pass
            else:
                names.add(name)
            log.power_cut(seed)
            assert names <= set(log.store.catalog.topics)

    def test_a_name_that_leads_elsewhere_is_not_written(self, log: Log):
        before = self.lines(log)
        with pytest.raises(CorruptLog):
            log.create("../../escaped")
        assert self.lines(log) == before

    def test_damage_in_the_middle_is_refused(self, log: Log):
        log.create("a")
        log.create("b")
        log.store.abandon()
        lines = self.lines(log).splitlines(keepends=True)
        lines[-2] = b"{" + lines[-2]
        with open(f"{log.path}/catalog.jsonl", "wb") as file:
            file.writelines(lines)
        with pytest.raises(CorruptLog) as error:
            log.open()
        assert error.value.hint

    def test_it_may_be_walked_while_a_thread_changes_it(self, log: Log):
        log.create("a")
        log.create("b")
        catalog = log.store.catalog
        for change in (lambda: log.create("c"), lambda: delete_topic(log, "a")):
            topics, ids = iter(catalog.topics.values()), iter(catalog.by_id)
            next(topics), next(ids)
            change()
            assert list(topics)
            assert list(ids)

    def test_history_is_dropped_in_time(self, log: Log):
        log.create("a")
        for number in range(150):
            log.run(log.store.set_configs("a", {"retention.ms": str(number)}))
        long = len(self.lines(log))
        log.restart()
        assert len(self.lines(log)) < long / 10
        assert log.partition("a").config.retention_ms == 149

    @settings(max_examples=examples(200), deadline=None)
    @given(
        st.lists(
            st.recursive(
                st.none() | st.integers(-9, 9) | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(["topic", "id", "partitions", "configs", "deleted"]), inner
                    )
                ),
            ).map(orjson.dumps)
            | st.binary(max_size=40),
            max_size=4,
        )
    )
    def test_any_bytes(self, tmp_path_factory, lines: list[bytes]):
        directory = tmp_path_factory.mktemp("catalog")
        (directory / "catalog.jsonl").write_bytes(b"\n".join(lines))
        with contextlib.suppress(CorruptLog):
            Catalog(Files(), str(directory)).open()


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=80) | st.text("0123456789 \nab-", max_size=60).map(str.encode))
def test_any_bytes_in_checkpoints_and_leader_epochs(tmp_path_factory, data: bytes):
    directory = tmp_path_factory.mktemp("files")
    (directory / "points").write_bytes(data)
    (directory / "leader-epoch-checkpoint").write_bytes(data)
    for offset in checkpoint_file.read(Files(), str(directory / "points")).values():
        assert isinstance(offset, int)
    LeaderEpochs.load(Files(), str(directory)).end_of(1, 5, 9)


def test_a_checkpoint_round_trips(tmp_path):
    offsets = {("orders", 0): 12, ("a-b.c_d", 77): 2**62}
    checkpoint_file.write(Files(), str(tmp_path / "c"), offsets)
    assert checkpoint_file.read(Files(), str(tmp_path / "c")) == offsets
    assert (tmp_path / "c").read_text() == f"0\n2\norders 0 12\na-b.c_d 77 {2**62}\n"


def test_open_files_are_bounded(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with Log(tmp_path, max_open_files=50) as log:
        log.create("many", 500)
        for number in range(500):
            log.append(batch_of(b"%d" % number), "many", number)
        assert len(log.store.storage.open_files) <= 50
        assert len(os.listdir("/proc/self/fd")) < before + 100
        log.restart()
        for number in range(500):
            part = log.partition("many", number).find(0, 1000)
            buffer = bytearray(part.size_bytes)
            assert part.read(memoryview(buffer), 0) == part.size_bytes
            assert b"%d" % number in buffer
        assert len(log.store.storage.open_files) <= 50
