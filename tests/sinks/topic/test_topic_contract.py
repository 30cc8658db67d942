"""Topics, by the contract of derived stores, on our broker and on Apache Kafka."""

import dataclasses
import random
import re
from contextlib import closing
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID, ID_N, Backend, SinkContract, Unfit
from support.sinks.sink_rows import batch, position, rows_of, table
from support.sinks.topic_places import read_records, write_foreign
from support.wire import wait_until
from tiers import REAL_KAFKA, long, representative

from headwater.capture import positions
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.errors import StoreRefused, StoreUnreachable
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from headwater.sinks.topic import store as topic


class Topics(Backend):
    """A broker is shared by many tests: names have a part of their own."""

    has_versions = False  # none that can be promoted; see below
    odd_names = ("select", "Mixed-Case", "a.b", "_", "9")  # Kafka has no others
    large_rows = 30_000

    def __init__(self, address: str) -> None:
        self._address = address
        self._prefix = f"t{uuid4().hex[:8]}."

    @property
    def settings(self) -> SinkSettings:
        return SinkSettings(name="topics", kind="topic")

    @property
    def log(self) -> Log:
        return Log(self._address)

    def store(self, target: Target, settings: SinkSettings | None = None) -> Store:
        return super().store(dataclasses.replace(target, name=self.topic(target.name)), settings)

    def topic(self, name: str) -> str:
        return self._prefix + name.replace("/", "-")

    def records(self, name: str, partition: int = 0) -> list:
        return read_records(self._address, self._prefix + name, partition)

    def live_rows(self, name: str) -> list:
        found = {}
        for key, value in self.records(name):
            found.pop(key, None)
            if value is not None:
                found[key] = orjson.loads(value)
        return list(found.values())

    def put_foreign(self, name: str) -> None:
        write_foreign(self._address, self._prefix + name)

    def foreign(self, name: str) -> object:
        return self.records(name)

    def unfit(self) -> list[Unfit]:
        fields = pa.schema([("id", pa.int64()), ("v", pa.binary())])
        large = random.Random(1).randbytes(2_000_000)
        return [Unfit(fields, {"v": large}, {"v": b"small"}, "")]


class KafkaTopics(Topics):
    """Apache Kafka answers a commit before readers see it, and a deletion before its metadata
    shows it: the tests wait for both.
    """

    def store(self, target: Target) -> Store:
        store = super().store(target)
        for name in ("read", "versions"):
            setattr(store, name, self._settled(getattr(store, name)))
        store.drop = self._dropped(store.drop)
        return store

    def _dropped(self, drop):
        def drop_and_wait(number: int) -> None:
            drop(number)
            pattern = re.compile(rf"{re.escape(self._prefix)}.*\.v{number}")
            with closing(Fetcher(self._address, ClientSettings())) as fetcher:
                wait_until(lambda: not fetcher.topics_like(pattern), 60)

        return drop_and_wait

    def _settled(self, look):
        def wait_and_look(*args):
            with closing(
                Fetcher(self._address, ClientSettings(), isolation="read_uncommitted")
            ) as written:
                patterns = (re.escape(positions.TOPIC), self._prefix + ".*")
                found = [written.topics_like(re.compile(pattern)) for pattern in patterns]
                topics = [name for names in found for name in names]
                partitions = [(name, n) for name in topics for n in range(written.partitions(name))]
                ends = written.offsets(partitions, LATEST)
            with closing(Fetcher(self._address, ClientSettings())) as committed:
                wait_until(
                    lambda: all(
                        end >= ends[partition]
                        for partition, end in committed.offsets(partitions, LATEST).items()
                    ),
                    10,
                )
            return look(*args)

        return wait_and_look


# How rows become records does not depend on the broker: tested on ours only.
OF_RECORDS = (
    "test_a_key_of_any_type", "test_a_large_batch",
    "test_keys_that_cannot_be_read_back_are_refused", "test_odd_columns",
    "test_random_programs", "test_rows_that_cannot_be_read_back_are_refused",
    "test_values_are_read_back_as_they_were",
)  # fmt: skip


class StagedTopics(Topics):
    """Of several partitions: the records of one are encoded by one task."""

    is_staged = True
    partitions = 3

    def store(self, target: Target, settings: SinkSettings | None = None) -> Store:
        options = {"partitions": str(self.partitions), **target.options}
        return super().store(dataclasses.replace(target, options=options), settings)

    def records(self, name: str, partition: int | None = None) -> list:
        chosen = range(self.partitions) if partition is None else [partition]
        return [found for one in chosen for found in Topics.records(self, name, one)]

    def foreign(self, name: str) -> object:
        return self.records(name, 0)


@pytest.fixture(params=["headwater", REAL_KAFKA])
def backend(request: pytest.FixtureRequest) -> Topics:
    if request.param == "kafka" and request.node.originalname in OF_RECORDS:
        pytest.skip("the same as with our broker")
    kind = KafkaTopics if request.param == "kafka" else Topics
    return kind(request.getfixturevalue(f"topic_{request.param}"))


class TestTopicContract(SinkContract):
    @representative
    def test_versions_are_promoted_and_dropped(self, backend, plain) -> None:
        """A topic cannot be given another's name: it is refused, and says what to do."""
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "one"}])))
        with plain.writer(2, ID_N) as writer:
            assert writer.position is None
            writer.apply(batch(0, table(ID_N, [{"id": 1, "v": "two", "n": 2}]), query="rebuild"))
        assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]
        assert backend.live_rows("orders.v2") == [{"id": 1, "v": "two", "n": 2}]
        assert [(version.number, version.is_live) for version in plain.versions()] == [
            (1, True),
            (2, False),
        ]
        plain.promote(1)
        with pytest.raises(StoreRefused, match=r"orders\.v2") as caught:
            plain.promote(2)
        assert "point the consumers" in caught.value.hint
        assert rows_of(plain, 2) == [{"id": 1, "v": "two", "n": 2}]
        with pytest.raises(StoreRefused, match="live"):
            plain.drop(1)
        plain.drop(2)
        assert [version.number for version in plain.versions()] == [1]
        for unknown in (plain.promote, plain.drop):
            with pytest.raises(StoreRefused, match="7"):
                unknown(7)
        with pytest.raises(StoreRefused, match="7"), plain.read(7):
            pass
        with plain.writer(2, ID) as writer:  # a new one of an old number begins empty
            assert writer.position is None
            assert rows_of(plain, 2) == []

    def test_what_is_not_ours_stands_in_the_way_of_a_version(self, backend, plain) -> None:
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "one"}])))
        backend.put_foreign("orders.v2")
        with pytest.raises(StoreRefused, match=r"orders\.v2"):
            plain.writer(2, ID)
        assert [version.number for version in plain.versions()] == [1]

    def test_no_server_answers(self, backend, monkeypatch) -> None:
        monkeypatch.setattr(topic, "_PATIENCE_S", 0.5)
        target = Target("shop", "orders", ("id",))
        store = store_of(backend.settings, target, Log("127.0.0.1:1"))
        with pytest.raises(StoreUnreachable):
            store.check()

    def test_every_change_is_a_record(self, backend) -> None:
        """Not only the last row of each key: a topic is what happened."""
        with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
            with store.writer(1, ID) as writer:
                rows = [{"id": 1, "v": "a"}, {"id": 1, "v": "b"}, {"id": 1}, {"id": 1, "v": "c"}]
                writer.apply(batch(0, table(ID, rows, ["c", "u", "d", "c"])))
            records = backend.records("orders")
            written = [value and orjson.loads(value)["v"] for _, value in records]
            assert written == ["a", "b", None, "c"]
            assert {key for key, _ in records} == {b'{"id":1}'}
            assert store.versions()[0].position == position(0)


@long  # the quick tier has the representative ones
class TestStagedTopicContract(TestTopicContract):
    @pytest.fixture
    def backend(self, topic_headwater) -> Topics:
        return StagedTopics(topic_headwater)
