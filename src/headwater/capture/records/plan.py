"""The plan of a table, computed once from its schema and the settings.

Its topic, how its keys are made, what is around its values, which rules apply to its rows.
"""

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headwater.capture.contract import Row, Table
from headwater.capture.records import connect_schemas
from headwater.capture.records.envelope import KeyFunction, SourceWriter, key_function, source_of
from headwater.capture.records.outbox import EVENT_TABLE, Outbox
from headwater.capture.rules.personal_columns import (
    check_change,
    check_columns,
    refuse_statements,
    with_encryption,
)
from headwater.capture.rules.transforms import RowRules, Rules
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, HeadwaterError, TableRefused
from headwater.subjects.access import PersonalTopics

_TOPIC_NAME_LENGTH: Final = 249  # Kafka's limit
_TWINS: Final = 8  # equal Table objects of one table that are recognised without comparing them


@dataclass(slots=True)
class Plan:
    table: Table
    shaped: Table  # as consumers see it: without dropped columns
    topic: str
    key: KeyFunction
    truncate_key: bytes | None
    source: dict[str, Any]  # what `source` always has
    source_writer: SourceWriter
    head: bytes  # in front of a value and behind it: its schema, if wanted
    end: bytes
    width: int  # columns of a whole row
    unknown: Row  # a row without any value
    unavailable: Row  # by column, unless it is UNAVAILABLE: what stands for what the log left out
    dump: Callable[[Row], bytes]  # a row as JSON
    rules: RowRules | None
    outbox: Outbox | None
    is_plain: bool  # nothing to do but to write rows down


class Planner:
    """Makes plans and caches them. Thread-safe."""

    def __init__(
        self,
        settings: CaptureSettings,
        connector: str,
        database: str,
        personal: PersonalTopics | None = None,
    ) -> None:
        self._settings = settings
        self._personal = personal
        self._connector = connector
        self._database = database
        policies = settings.topic_config.get("cleanup.policy", "").split(",")
        self._is_compacted = "compact" in [policy.strip() for policy in policies]
        self._lock = threading.Lock()
        self._plans: dict[int, tuple[Table, Plan]] = {}  # by id of the Table object
        self._twins: dict[str, list[tuple[Table, Plan]]] = {}  # the same, by the table's name
        self._topics: dict[str, str] = {}  # topic: table
        self._rules = Rules(settings, connector)
        if personal is not None:
            refuse_statements(settings, personal)

    def plan(self, table: Table) -> Plan:
        """Raises TableRefused if the table cannot be captured with these settings."""
        # A Table is recognised by being the same object: comparing all columns costs too much.
        found = self._plans.get(id(table))
        if found is not None and found[0] is table:
            return found[1]
        with self._lock:
            twins = self._twins.setdefault(table.id, [])
            plan = next((plan for twin, plan in twins if twin == table), None) or self._make(table)
            if len(twins) == _TWINS:
                self._plans.pop(id(twins.pop(0)[0]), None)
            twins.append((table, plan))
            self._plans[id(table)] = table, plan
            return plan

    def check(self, tables: Iterable[Table]) -> list[HeadwaterError]:
        tables = list(tables)
        errors: list[HeadwaterError] = [
            ConfigError(
                f"capture {self._settings.name}: the rule for {pattern} applies to nothing",
                hint="a table is named schema.table, a column schema.table.column; * stands for "
                "any characters",
            )
            for pattern in self._rules.unused(tables)
        ]
        outbox = self._settings.outbox
        if outbox is not None and outbox not in [table.id for table in tables]:
            errors.append(
                ConfigError(
                    f"capture {self._settings.name}: the outbox {outbox} is none of its tables",
                    hint=f'create it, or add it to tables = ["{outbox}"]',
                )
            )
        for table in tables:
            if self._personal is not None:
                topic = topic_name(self._settings.name, table)
                errors += check_columns(table, topic, self._personal)
            try:
                self.plan(table)
            except HeadwaterError as error:
                errors.append(error)
        return errors

    def check_table(self, table: Table, before: Table | None) -> None:
        """Raises TableRefused: see Shaper.check_table."""
        if before is None:
            self._rules.check_new(table)
        else:
            self._rules.check_changed(before, table)
        marked = {} if self._personal is None else self._personal.marked
        marks = marked.get(topic_name(self._settings.name, table))
        if marks and not table.documents:
            check_change(before, table, marks)

    def _make(self, table: Table) -> Plan:
        settings = self._settings
        rules = self._rules.bind(table)
        topic = self._claim_topic(table)
        if self._personal is not None:
            rules = with_encryption(rules, table, topic, self._personal)
        shaped = table if rules is None else rules.shaped
        outbox = Outbox(shaped) if table.id == settings.outbox else None
        if self._is_compacted and not table.key and outbox is None:
            raise TableRefused(
                f"table {table.id} has no primary key, and its topic is to be compacted",
                detail="a compacted topic takes only records with a key",
                hint=f"give the table a primary key, leave it out (exclude = ['{table.id}']), or "
                "take compact out of cleanup.policy",
            )
        if self._is_compacted and outbox is not None and table.id.endswith(EVENT_TABLE):
            raise TableRefused(
                f"the topics of the event store {table.id} are not to be compacted",
                detail="compaction retains the last event of each stream only",
                hint="take compact out of cleanup.policy",
            )
        key_head = head = end = b""
        truncate_key = b"{}"
        unknown: Row = dict.fromkeys(column.name for column in shaped.columns)
        if settings.schemas:
            key_head = connect_schemas.head_of(connect_schemas.key_schema(shaped, topic))
            schema = connect_schemas.envelope_schema(shaped, topic, self._connector)
            head, end = connect_schemas.head_of(schema), b"}"
            truncate_key = b'{"schema":null,"payload":{}}'
            unknown = connect_schemas.unknown_row(shaped)
        key, dump = (
            _document_functions(key_head, end)
            if table.documents
            else (key_function(table.key, key_head, end), orjson.dumps)
        )
        source = source_of(self._connector, settings.name, self._database, table)
        is_plain = rules is None and outbox is None and not table.documents
        return Plan(
            table=table,
            shaped=shaped,
            topic=topic,
            key=key,
            truncate_key=truncate_key if self._is_compacted else None,
            source=source,
            source_writer=SourceWriter(source),
            head=head,
            end=end,
            width=len(shaped.columns),
            unknown=unknown,
            unavailable={} if table.documents else connect_schemas.unavailable_values(shaped),
            dump=dump,
            rules=rules,
            outbox=outbox,
            is_plain=is_plain and not settings.transactions,
        )

    def _claim_topic(self, table: Table) -> str:
        topic = topic_name(self._settings.name, table)
        owner = self._topics.setdefault(topic, table.id)
        if owner != table.id:
            raise TableRefused(
                f"tables {owner} and {table.id} would share the topic {topic}",
                detail="what a topic's name cannot hold is written as _",
                hint=f"leave one of them out: exclude = ['{table.id}']",
            )
        return topic


def topic_name(name: str, table: Table) -> str:
    """<capture>.<schema>.<table>, with _ for what a topic's name cannot hold, as Debezium does."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{name}.{table.id}")[:_TOPIC_NAME_LENGTH]


def _document_functions(key_head: bytes, end: bytes) -> tuple[KeyFunction, Callable[[Row], bytes]]:
    from headwater.capture.mongo import shape  # brings MongoDB's driver

    return (
        lambda row: key_head + orjson.dumps(shape.key(row)) + end,
        lambda row: orjson.dumps(shape.text(row)),
    )
