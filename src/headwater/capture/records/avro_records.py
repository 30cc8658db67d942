"""Records as Avro by a schema registry, in Confluent's wire format: `format = "avro"`.

The shaper makes the records as JSON, with all rules applied; here they become Avro by the Avro
schemas of their Connect schemas. The subjects are `<topic>-key` and `<topic>-value`. A schema is
registered before the first record that is written by it; the records of a table that has changed
have the id of the next version. An id is the registry's for ever, so a run that repeats what was
not committed writes the same bytes.

What stays as it is: events of an outbox, the schema topic, and keys in headers.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from headwater.capture.contract import Change, Commit, Message, Row, Table, without_values
from headwater.capture.records import avro_schemas, connect_schemas
from headwater.capture.records.avro_encoding import encoder
from headwater.capture.records.envelope import Shaped
from headwater.capture.records.plan import Plan
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, SchemaRefused, TableRefused
from headwater.schema_lookup.registration import SchemaRegistration
from headwater.schemas.schema import Schema
from headwater.schemas.wire_format import framed
from headwater.subjects.access import PersonalTopics

_MOST_TABLES: Final = 1024  # whose writers are remembered
_DETAIL_CHARACTERS: Final = 600  # registries quote whole schemas behind the reason
_TRUNCATE_KEY: Final = b"{}"  # the shaper's, of a truncate in a compacted topic


class AvroWriter:
    """Writes JSON of one Connect schema as Avro."""

    def __init__(self, connect: connect_schemas.Schema, text: str) -> None:
        self.text = text
        self._encode = encoder(connect)

    def write(self, data: bytes, schema_id: int) -> bytes:
        """Raises ValueError for a value that is not of its column's type."""
        return framed(schema_id, self._encode(orjson.loads(data)))


class _Records:
    """Keys and values of one topic."""

    def __init__(
        self,
        registration: SchemaRegistration,
        topic: str,
        key: connect_schemas.Schema | None,
        value: connect_schemas.Schema,
        table: Table | None = None,
    ) -> None:
        """Registers the schemas."""
        self._registration = registration
        self._topic = topic
        self._key = None if key is None else AvroWriter(key, avro_schemas.schema_text(key))
        self._value = AvroWriter(value, avro_schemas.schema_text(value, table))
        self._key_id = 0 if self._key is None else self._register("-key", self._key.text)
        self._value_id = self._register("-value", self._value.text)
        self._truncate_key: bytes | None = None

    def _register(self, suffix: str, text: str) -> int:
        return self._registration.register(self._topic + suffix, Schema(text))

    def encoded(self, record: Shaped) -> Shaped:
        topic, key, value, headers = record
        if key == _TRUNCATE_KEY:
            key = self._key_of_truncates()
        elif key is not None and self._key is not None:
            key = self._key.write(key, self._key_id)
        if value is not None:
            value = self._value.write(value, self._value_id)
        return topic, key, value, headers

    def _key_of_truncates(self) -> bytes:
        """A record of its own, with a subject of its own: the keys of rows have fields that cannot
        be missing, and a compacted topic needs a key. It has a field because confluent-kafka takes
        no value of 5 bytes.
        """
        if self._truncate_key is None:
            field = {"type": "string", "optional": True, "field": "key"}
            connect = {"name": f"{self._topic}.Truncate", "fields": [field]}
            text = avro_schemas.schema_text(connect)
            writer = AvroWriter({"type": "struct", **connect}, text)
            schema_id = self._register("-truncate-key", text)
            self._truncate_key = writer.write(_TRUNCATE_KEY, schema_id)
        return self._truncate_key


class AvroShaper(Shaper):
    """Shapes changes as Avro. Beside what a Shaper raises: BrokerUnreachable while the registry
    does not answer. Schemas that the registry refuses, and values that are not of their column's
    type, are a TableRefused.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        connector: str,
        database: str,
        registration: SchemaRegistration,
        personal: PersonalTopics | None = None,
    ) -> None:
        """Raises ConfigError for settings that Avro has no form for."""
        if settings.schemas:
            raise ConfigError(
                f'capture {settings.name}: schemas = true is for format = "json"',
                detail="Avro's schemas are in the registry",
            )
        super().__init__(settings, connector, database, personal)
        self._avro_connector = connector
        self._capture = settings.name
        self._registration = registration
        self._registering = threading.Lock()
        self._of_plans: dict[int, tuple[Plan, _Records]] = {}
        self._of_topics: dict[str, _Records] = {}
        self._made: dict[str, Callable[[], _Records]] = {
            f"{settings.name}.transaction": lambda: self._common(
                "transaction", connect_schemas.TRANSACTION_KEY, connect_schemas.TRANSACTION_VALUE
            ),
            f"{settings.name}.message": lambda: self._common(
                "message",
                connect_schemas.message_key(connector),
                connect_schemas.message_value(connector),
            ),
        }

    def change(self, change: Change) -> list[Shaped]:
        shaped = super().change(change)
        return [self._encoded(change.table, record) for record in shaped]

    def message(self, message: Message) -> list[Shaped]:
        return [self._encoded(None, record) for record in super().message(message)]

    def commit(self, commit: Commit) -> list[Shaped]:
        return [self._encoded(None, record) for record in super().commit(commit)]

    def rows(
        self,
        table: Table,
        rows: Iterable[Row],
        snapshot: str,
        ts_ms: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Iterator[Shaped]:
        for record in super().rows(table, rows, snapshot, ts_ms, source):
            yield self._encoded(table, record)

    def register(self, table: Table) -> None:
        plan = self._planner.plan(table)
        if plan.outbox is None:
            self._records_of(plan)

    def _encoded(self, table: Table | None, record: Shaped) -> Shaped:
        topic = record[0]
        if topic in self._made:
            return self._of_topic(topic).encoded(record)
        assert table is not None, "all other topics are those of tables"
        plan = self._planner.plan(table)
        if plan.outbox is not None:
            return record
        records = self._records_of(plan)
        try:
            return records.encoded(record)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise TableRefused(
                f"a row of {table.id} cannot be written as Avro",
                detail=f"a value is not of its column's type: {without_values(error)}",
                hint='format = "json" writes every value as the database has it',
            ) from error

    def _records_of(self, plan: Plan) -> _Records:
        found = self._of_plans.get(id(plan))
        return found[1] if found is not None and found[0] is plan else self._made_for(plan)

    def _made_for(self, plan: Plan) -> _Records:
        """Registers its schemas. Raises TableRefused for what the registry does not take."""
        table, topic = plan.shaped, plan.topic
        key = avro_schemas.key_schema(table, topic, self._avro_connector) if table.key else None
        value = avro_schemas.value_schema(table, topic, self._avro_connector)
        with self._registering:
            try:
                made = _Records(self._registration, topic, key, value, table)
            except SchemaRefused as error:
                raise TableRefused(
                    f"the schema registry does not take the schema of {table.id}",
                    detail=f"{error.what} {error.detail}".strip()[:_DETAIL_CHARACTERS],
                    hint="if its readers can take the change, PUT /config/SUBJECT"
                    ' {"compatibility": "NONE"}; then headwater capture snapshot'
                    f" {self._capture} --table {table.id}",
                ) from error
            if len(self._of_plans) >= _MOST_TABLES:
                self._of_plans.clear()
            self._of_plans[id(plan)] = plan, made
        return made

    def _of_topic(self, topic: str) -> _Records:
        with self._registering:
            if topic not in self._of_topics:
                self._of_topics[topic] = self._made[topic]()
            return self._of_topics[topic]

    def _common(
        self, name: str, key: connect_schemas.Schema, value: connect_schemas.Schema
    ) -> _Records:
        return _Records(self._registration, f"{self._capture}.{name}", key, value)
