"""A backup taken while writers are at work: whole, with all that was acknowledged, no transaction
half; and what is refused.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.wire import wait_until

from headwater.backup.restoring import restore
from headwater.backup.taking import take
from headwater.broker import control
from headwater.errors import CorruptLog, HeadwaterError
from headwater.log.store import LogStore
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker
from headwater.testing.clock import FakeClock

PLAIN, LEFT, RIGHT, COMPACTED = "plain", "left", "right", "compacted"
SMALL = {"segment.bytes": "60000"}


def headwater(*args, cwd, code=0):
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")
    }
    result = subprocess.run(
        [sys.executable, "-m", "headwater.cli.main", *args, "--json"],
        capture_output=True, cwd=cwd, env=inherited, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == code, (result.stdout, result.stderr)
    return json.loads(result.stdout if code == 0 else result.stderr)


@contextmanager
def broker_in(directory: Path):
    """A broker on directory/data; directory is where commands are run."""
    (directory / "headwater.toml").write_text('[broker]\ndata_dir = "data"\n')
    settings = BrokerSettings(listen="127.0.0.1:0", data_dir=str(directory / "data"))
    with InProcessBroker.serving(str(directory / "data"), settings) as broker:
        yield broker


class Writers:
    """Numbers into a plain topic; pairs of the same number into two topics, in one transaction;
    a few keys again and again into one that is compacted.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.plain: list[int] = []  # acknowledged
        self.pairs: list[int] = []
        self._stopped = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), daemon=True)
            for run in (self._write_plain, self._write_pairs, self._write_keys)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed

    def _guarded(self, run) -> None:
        try:
            run()
        except BaseException as error:
            self._failed.append(error)
            raise

    def _write_plain(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        for number in self._numbers():
            producer.produce(PLAIN, str(number).ljust(200), on_delivery=self._acknowledged(number))
            producer.poll(0.001)
        producer.flush()

    def _acknowledged(self, number: int):
        def delivered(error, message) -> None:
            assert error is None
            self.plain.append(number)

        return delivered

    def _write_pairs(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": "pairs", "linger.ms": 0}
        )
        producer.init_transactions()
        for number in self._numbers():
            producer.begin_transaction()
            for topic in (LEFT, RIGHT):
                producer.produce(topic, str(number).ljust(200))
            if number % 5 == 4:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                self.pairs.append(number)

    def _write_keys(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0})
        dice = random.Random(5)
        for number in self._numbers():
            producer.produce(COMPACTED, str(number).ljust(200), key=str(dice.randrange(5)))
            producer.poll(0.002)
        producer.flush()

    def _numbers(self):
        number = 0
        while not self._stopped.is_set():
            yield number
            number += 1


def committed(bootstrap: str, *topics: str) -> list[list[int]]:
    """What each topic has, for a reader of committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
    values: dict[str, list[int]] = {topic: [] for topic in topics}
    at_end: set[str] = set()
    while at_end < set(topics):
        message = consumer.poll(60)
        assert message is not None
        if not message.error():
            values[message.topic()].append(int(message.value()))
            continue
        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        at_end.add(message.topic())
    consumer.close()
    return list(values.values())


def test_a_backup_of_writers_at_work_is_whole(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with broker_in(old) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        policies = {COMPACTED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}}
        topics = [
            NewTopic(topic, 1, config=SMALL | policies.get(topic, {}))
            for topic in (PLAIN, LEFT, RIGHT, COMPACTED)
        ]
        for made in admin.create_topics(topics).values():
            made.result(60)
        writers = Writers(broker.bootstrap)
        backups = []
        for number in range(2):
            plain, pairs = len(writers.plain) + 300, len(writers.pairs) + 30
            wait_until(lambda: len(writers.plain) > plain and len(writers.pairs) > pairs)  # noqa: B023
            before = set(writers.plain), set(writers.pairs)
            headwater("backup", f"../backup-{number}", cwd=old)
            backups.append(before)
        writers.stop()
        assert not [name for name in os.listdir(old / "data") if name.startswith("backup-")]
        assert committed(broker.bootstrap, PLAIN) == [sorted(writers.plain)]
    (new / "headwater.toml").write_text('[broker]\ndata_dir = "data"\n')
    for number, (plain, pairs) in enumerate(backups):
        headwater("restore", f"../backup-{number}", cwd=new)
        with broker_in(new) as broker:
            found, left, right, keys = committed(broker.bootstrap, PLAIN, LEFT, RIGHT, COMPACTED)
            assert found == list(range(len(found)))
            assert plain <= set(found)
            assert left == right, "a transaction is there whole or not at all"
            assert pairs <= set(left)
            assert not [number for number in left if number % 5 == 4]
            assert keys == sorted(keys)
            assert keys
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce(PLAIN, str(len(found)))
            assert producer.flush(60) == 0
            assert committed(broker.bootstrap, PLAIN) == [list(range(len(found) + 1))]
        os.rename(new / "data", new / f"data-{number}")


def test_what_comes_while_it_is_copied_is_not_in_it(tmp_path):
    """Else a transaction could be there in what is copied late, and missing in the rest."""
    with broker_in(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "pairs"})
        producer.init_transactions()
        numbers = itertools.count()

        def write_pairs():
            for number in itertools.islice(numbers, 5):
                producer.begin_transaction()
                for topic in (LEFT, RIGHT):
                    producer.produce(topic, str(number))
                producer.commit_transaction()

        write_pairs()
        pieces = []

        def copied(size_bytes):
            pieces.append(size_bytes)
            write_pairs()

        take(tmp_path / "data", tmp_path / "none", tmp_path / "saved", copied)
        assert len(pieces) > 5
    os.rename(tmp_path / "data", tmp_path / "lost")
    headwater("restore", "saved", cwd=tmp_path)
    with broker_in(tmp_path) as broker:
        assert committed(broker.bootstrap, LEFT, RIGHT) == [[0, 1, 2, 3, 4]] * 2


def test_a_log_that_is_not_in_use_is_backed_up_as_well(tmp_path):
    with broker_in(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(PLAIN, "7")
        assert producer.flush(60) == 0
    headwater("backup", "saved", cwd=tmp_path)
    os.rename(tmp_path / "data", tmp_path / "lost")
    headwater("restore", "saved", cwd=tmp_path)
    with broker_in(tmp_path) as broker:
        assert committed(broker.bootstrap, PLAIN) == [[7]]


def test_what_was_deleted_stays_deleted(tmp_path):
    with broker_in(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(20):
            producer.produce(PLAIN, str(number))
        assert producer.flush(60) == 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        place = TopicPartition(PLAIN, 0, 7)
        admin.delete_records([place])[place].result(60)
        headwater("backup", "saved", cwd=tmp_path)
    os.rename(tmp_path / "data", tmp_path / "lost")
    headwater("restore", "saved", cwd=tmp_path)
    with broker_in(tmp_path) as broker:
        assert committed(broker.bootstrap, PLAIN) == [list(range(7, 20))]


def test_what_is_there_is_never_overwritten(tmp_path):
    with broker_in(tmp_path):
        headwater("backup", "saved", cwd=tmp_path)
        assert "not empty" in headwater("backup", "saved", cwd=tmp_path, code=2)["error"]
        assert "inside" in headwater("backup", "data/saved", cwd=tmp_path, code=2)["error"]
        assert "not empty" in headwater("restore", "saved", cwd=tmp_path, code=2)["error"]
    assert "not empty" in headwater("restore", "saved", cwd=tmp_path, code=2)["error"]


@pytest.mark.parametrize("damage", ["flipped", "missing", "shorter", "unfinished"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(tmp_path, damage):
    with broker_in(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(PLAIN, "1")
        assert producer.flush(60) == 0
        headwater("backup", "saved", cwd=tmp_path)
    (log,) = (tmp_path / "saved" / "log" / f"{PLAIN}-0").glob("*.log")
    data = bytearray(log.read_bytes())
    if damage == "flipped":
        data[-1] ^= 1
        log.write_bytes(data)
    elif damage == "missing":
        log.unlink()
    elif damage == "shorter":
        log.write_bytes(data[:-1])
    else:
        (tmp_path / "saved" / "backup.json").unlink()
    os.rename(tmp_path / "data", tmp_path / "away")
    code = 2 if damage == "unfinished" else 1
    headwater("restore", "saved", cwd=tmp_path, code=code)
    assert not (tmp_path / "data").exists()
    assert not list(tmp_path.glob("*.restoring"))


@pytest.mark.parametrize(
    "files",
    [
        [["log/../../outside", 4, 0]],
        [["log//outside", 4, 0]],
        [["/outside", 4, 0]],
        [["pipelines/x/../../../outside", 4, 0]],
        [["outside", 4, 0]],
        [["log", 4, 0]],
        [["log/x", "4", 0]],
        [["log/x"]],
        [7],
        {"log/x": 1},
    ],
)
def test_a_backup_names_nothing_outside_of_it(tmp_path, files):
    """Another process may have made it."""
    saved = tmp_path / "below" / "saved"
    saved.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"mine")
    (saved / "backup.json").write_text(json.dumps({"format": 1, "version": "1", "files": files}))
    target = tmp_path / "a" / "b" / "data"
    with pytest.raises(HeadwaterError, match="damaged"):
        restore(saved, target, target / "pipelines", lambda _: None)
    assert not (tmp_path / "a").exists()


async def with_log(directory: Path, use):
    """What `use(store)` gives, of a log that is then closed."""
    store = LogStore(str(directory), FakeClock())
    store.open()
    try:
        return await use(store)
    finally:
        await store.close()


async def epoch_and_ids(store: LogStore) -> tuple[int, set[int]]:
    return store.leader_epoch, {await store.next_producer_id() for _ in range(3)}


@pytest.mark.parametrize("is_running", [False, True])
def test_a_restored_log_gives_out_nothing_that_the_original_gives_out(tmp_path, is_running):
    """Clients of the original, which went on, meet the copy: epochs and producer ids are new."""
    data, saved, copy = tmp_path / "data", tmp_path / "saved", tmp_path / "copy"

    async def begin(store: LogStore):
        await store.create_topic("t", 1, {})
        if is_running:
            staged = Path(await store.stage())
            shutil.copytree(staged, tmp_path / "staged")
        return await epoch_and_ids(store)

    before_epoch, before_ids = asyncio.run(with_log(data, begin))
    if is_running:  # what `headwater backup` copies
        names = json.loads((tmp_path / "staged" / "staged.json").read_text())
        files = []
        for name, size_bytes in names:
            content = (tmp_path / "staged" / name).read_bytes()[:size_bytes]
            (saved / "log" / name).parent.mkdir(parents=True, exist_ok=True)
            (saved / "log" / name).write_bytes(content)
            files.append([f"log/{name}", size_bytes, zlib.crc32(content)])
        about = {"format": 1, "version": "1", "files": files}
        (saved / "backup.json").write_text(json.dumps(about))
    else:
        take(data, data / "pipelines", saved, lambda _: None)
    after_epoch, after_ids = asyncio.run(with_log(data, epoch_and_ids))
    restore(saved, copy, copy / "pipelines", lambda _: None)
    assert not (copy / "clean-shutdown").exists()
    epoch, ids = asyncio.run(with_log(copy, epoch_and_ids))
    assert epoch > max(before_epoch, after_epoch)
    assert not ids & (before_ids | after_ids)


@pytest.mark.parametrize(
    "line",
    [
        {"topic": "../../escaped", "id": "0" * 32, "partitions": 1, "configs": {}},
        {"topic": "..", "id": "0" * 32, "partitions": 1, "configs": {}},
        {"topic": "a/b", "id": "0" * 32, "partitions": 1, "configs": {}},
        {"topic": "", "id": "0" * 32, "partitions": 1, "configs": {}},
        {"topic": ["a"], "id": "0" * 32, "partitions": 1, "configs": {}},
        {"topic": "t", "id": "0" * 32, "partitions": 10**12, "configs": {}},
        {"topic": "t", "id": "0" * 32, "partitions": "1", "configs": {}},
        {"topic": "t", "id": "0" * 32, "partitions": 1, "configs": {"retention.ms": 1}},
        {"cluster": "../../escaped"},
    ],
)
def test_a_catalog_names_nothing_outside_of_the_log(tmp_path, line):
    """A backup may come from elsewhere; its catalog must not lead a broker outside."""
    catalog = b"".join(
        json.dumps(document).encode() + b"\n" for document in ({"cluster": "c"}, line)
    )
    saved = tmp_path / "below" / "saved"
    (saved / "log").mkdir(parents=True)
    (saved / "log" / "catalog.jsonl").write_bytes(catalog)
    files = [["log/catalog.jsonl", len(catalog), zlib.crc32(catalog)]]
    (saved / "backup.json").write_text(json.dumps({"format": 1, "version": "1", "files": files}))
    target = tmp_path / "a" / "b" / "data"
    with pytest.raises(HeadwaterError, match="damaged"):
        restore(saved, target, target / "pipelines", lambda _: None)
    assert not target.exists()
    target.mkdir(parents=True)
    (target / "catalog.jsonl").write_bytes(catalog)

    async def nothing(_):
        raise AssertionError("it was opened")

    with pytest.raises(CorruptLog):
        asyncio.run(with_log(target, nothing))
    assert sorted(os.listdir(tmp_path)) == ["a", "below"]


def test_staging_that_fails_leaves_nothing(tmp_path, monkeypatch):
    with broker_in(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(PLAIN, "1")
        assert producer.flush(60) == 0

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("headwater.log.staging.os.link", full)
        answer = headwater("backup", "saved", cwd=tmp_path, code=1)
        assert "No space left" in answer["detail"]
        assert not list((tmp_path / "data").glob("backup-*"))


def test_kafka_is_not_ours_to_back_up(tmp_path):
    (tmp_path / "headwater.toml").write_text('[broker]\nbootstrap = "kafka:9092"\n')
    assert headwater("backup", "saved", cwd=tmp_path, code=2)["error"] == "the log is not here"


def test_a_command_that_is_killed_leaves_nothing_staged(tmp_path):
    with broker_in(tmp_path):
        data_dir = str(tmp_path / "data")
        with socket.socket(socket.AF_UNIX) as connection:
            with control.short_path(data_dir) as address:
                connection.connect(address)
            connection.sendall(b'{"stage": true}\n')
            with connection.makefile() as answers:
                staged = Path(json.loads(answers.readline())["staged"])
            assert (staged / "catalog.jsonl").exists()
            assert oct(os.stat(tmp_path / "data" / "control").st_mode)[-3:] == "600"
        wait_until(lambda: not staged.exists())


@pytest.mark.parametrize("request_line", [b"\n", b"{}\n", b'{"stage": false}\n', b"\xff\n", b""])
def test_a_request_that_is_none_is_refused(tmp_path, request_line):
    with broker_in(tmp_path), socket.socket(socket.AF_UNIX) as connection:
        with control.short_path(str(tmp_path / "data")) as address:
            connection.connect(address)
        connection.sendall(request_line)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answers:
            assert "error" in json.loads(answers.readline())


def test_the_address_of_state_in_an_object_store_is_left_out(tmp_path):
    """A restored checkpoint would write beside the one that it was copied from."""
    data, saved = tmp_path / "data", tmp_path / "saved"
    checkpoint = data / "pipelines" / "sums" / "cache.sums" / "v1" / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_bytes(b"v1")
    (checkpoint / "operators.json").write_bytes(b'{"address": "s3://bucket/sums"}')
    (data / "catalog.jsonl").touch()
    take(data, data / "pipelines", saved, lambda _: None)
    names = {path.name for path in (saved / "pipelines").rglob("*") if path.is_file()}
    assert names == {"0"}
