"""Topics whose records are Avro, by the contract of derived stores."""

import dataclasses
from contextlib import closing
from uuid import uuid4

import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID, Backend, SinkContract, Unfit
from support.sinks.sink_rows import batch, rows_of, table
from support.sinks.topic_places import read_records, write_foreign

from headwater.errors import StoreRefused
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import TopicSource
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings

pytestmark = pytest.mark.long  # test_topic_forms has Avro in the quick tier


class AvroTopics(Backend):
    has_versions = False
    odd_names = ("select", "Mixed", "_", "a9")  # Avro has no others
    lacks_types = frozenset({"numbers"})  # a map whose keys are no texts

    def __init__(self, address: str) -> None:
        self._address = address
        self._prefix = f"a{uuid4().hex[:8]}."

    @property
    def settings(self) -> SinkSettings:
        return SinkSettings(name="topics", kind="topic")

    @property
    def log(self) -> Log:
        return Log(self._address)

    def store(self, target):
        name = self._prefix + target.name.replace("/", "-")
        options = {**target.options, "value": "avro"}
        return super().store(dataclasses.replace(target, name=name, options=options))

    def live_rows(self, name: str) -> list:
        lookup = SchemaLookup(TopicSource(self._address, ClientSettings()))
        found = {}
        try:
            for key, value in self.foreign(name):
                found.pop(key, None)
                if value is not None:
                    found[key] = lookup.decode(value).value
        finally:
            lookup.close()
        return list(found.values())

    def put_foreign(self, name: str) -> None:
        write_foreign(self._address, self._prefix + name)

    def foreign(self, name: str) -> object:
        return read_records(self._address, self._prefix + name, 0)

    def unfit(self) -> list[Unfit]:
        return []


@pytest.fixture
def backend(topic_headwater) -> AvroTopics:
    return AvroTopics(topic_headwater)


class TestAvroTopics(SinkContract):
    def test_versions_are_promoted_and_dropped(self, backend, plain) -> None:
        """Each version has subjects of its own: a rebuild may have another schema."""
        other = pa.schema([("id", pa.int64()), ("v", pa.int64())])
        with plain.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "one"}])))
        with plain.writer(2, other) as writer:
            writer.apply(batch(0, table(other, [{"id": 1, "v": 2}]), query="rebuild"))
        assert backend.live_rows("orders") == [{"id": 1, "v": "one"}]
        assert rows_of(plain, 2) == [{"id": 1, "v": 2}]
        with pytest.raises(StoreRefused, match=r"orders\.v2"):
            plain.promote(2)
        plain.drop(2)
        assert [version.number for version in plain.versions()] == [1]

    def test_odd_columns(self, backend) -> None:
        """Avro has no names with other signs: they are refused before anything is written."""
        fields = pa.schema([("id", pa.int64()), ("Mixed Case", pa.string())])
        with (
            closing(backend.store(Target("shop", "odd", ("id",)))) as store,
            pytest.raises(StoreRefused, match="no name that Avro allows"),
        ):
            store.writer(1, fields)
