"""The shaper: from changes to records with their topic, key, value and headers.

A `Plan` is all that follows from one table and the settings; it is made when the table is first
seen and again when the table changes. An `envelope.Frame` is what one transaction adds to it. What
is left per change is a handful of operations on bytes.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from headwater.capture.contract import (
    UNAVAILABLE,
    Begin,
    Change,
    Commit,
    Message,
    Row,
    SchemaChange,
    Table,
    without_values,
)
from headwater.capture.records import connect_schemas, schema_topic
from headwater.capture.records.envelope import Frame, Headers, Shaped, at_time, source_of
from headwater.capture.records.outbox import Outbox
from headwater.capture.records.plan import Plan, Planner
from headwater.capture.settings import CaptureSettings
from headwater.errors import HeadwaterError, PersonalDataRefused, TableRefused
from headwater.subjects.access import PersonalTopics

_NO_HEADERS: Final[Headers] = ()
_SAME_TIME_ROWS: Final = 1024  # so many changes of a transaction (a power of two), or rows read,
# have the same ts_ms: when they were processed

_NOT_UPDATED: Final = b',"updateDescription":null'  # of documents only

_dumps = orjson.dumps
_join = b"".join


class Shaper:
    """Shapes the changes of one capture. Raises ConfigError when it is made, if a rule of the
    settings cannot be understood; later only TableRefused, which concerns the one table of the
    change or rows: the others can go on.

    `begin`, `change`, `message` and `commit` are called by one thread, in the order of the stream;
    everything else by any thread at any time.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        connector: str,
        database: str,
        personal: PersonalTopics | None = None,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`personal`: the fields that are encrypted; its keys have to be flushed before the records
        become visible.
        """
        self._settings = settings
        self._personal = personal
        self._connector = connector
        self._database = database
        self._now_ns = now_ns
        self._planner = Planner(settings, connector, database, personal)
        self._transaction = Begin({}, "", 0, {})
        # Of this transaction, by id of the Table object (which is held, so that the id is its own).
        self._frames: dict[int, tuple[Table, Plan, Frame]] = {}
        self._table: Table | None = None  # of the last change, with its plan and frame
        self._plan: Plan
        self._frame: Frame
        self._counts: dict[str, int] = {}  # events of this transaction, by table
        self._total = 0
        head_of = connect_schemas.head_of
        self._transaction_heads = (
            head_of(connect_schemas.TRANSACTION_KEY),
            head_of(connect_schemas.TRANSACTION_VALUE),
        )
        self._message_heads = (
            head_of(connect_schemas.message_key(connector)),
            head_of(connect_schemas.message_value(connector)),
        )

    # ── the stream ──────────────────────────────────────────────────────────────────────────────

    def begin(self, transaction: Begin, counts: Mapping[str, int] | None = None) -> None:
        """A transaction begins. `counts` is for one that goes on in the middle (after a restart,
        or in another Kafka transaction): what `counts` was there.
        """
        self._transaction = transaction
        self._frames.clear()
        self._table = None
        self._counts = dict(counts or {})
        self._total = sum(self._counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many events of this transaction there were, by table (empty unless
        settings.transactions). Needed only to go on in the middle of one: see `begin`.
        """
        return dict(self._counts)

    def change(self, change: Change) -> list[Shaped]:
        """The records of a change: none (filtered out), one, a delete and its tombstone, or for a
        changed key a delete, its tombstone and a create. With settings.transactions, BEGIN of the
        transaction topic stands in front of a transaction's first record.
        """
        table, own = change.table, change.source
        if (
            table is not self._table
            or len(own) != self._frame.own_fields
            or not change.ordinal % _SAME_TIME_ROWS
        ):
            self._enter(change)
        plan, frame, op = self._plan, self._frame, change.op
        before, after = change.before, change.after
        try:
            if op == "c" and plan.is_plain and after is not None:  # by far the most frequent
                parts = (
                    frame.before_null,
                    _dumps(after),
                    frame.source,
                    _dumps(own)[1:],
                    frame.create,
                )
                return [(plan.topic, plan.key(after), _join(parts), _NO_HEADERS)]
            if plan.rules is not None:
                seen = plan.rules.apply(op, before, after)
                if seen is None:
                    return []
                op, before, after = seen
            if plan.outbox is not None:
                return self._outbox(plan.outbox, op, after)
            if table.documents:
                return self._document(plan, frame, op, before, after, change)
            return self._events(plan, frame, op, before, after, _dumps(own)[1:])
        except (KeyError, TypeError, ValueError) as error:
            raise _unshapeable(plan.table, error) from error

    def message(self, message: Message) -> list[Shaped]:
        """A message that an application wrote into the log: <name>.message, with its prefix as
        key and its content in base64.
        """
        source = source_of(
            self._connector, self._settings.name, self._database, Table("", "", (), ())
        )
        source = at_time(source, self._transaction.ts_ms) | self._transaction.source
        value = {
            "op": "m",
            "ts_ms": self._now_ns() // 1_000_000,
            "source": source | message.source,
            "transaction": None,
            "message": {"prefix": message.prefix, "content": b64encode(message.content).decode()},
        }
        records: list[Shaped] = []
        if self._settings.transactions:
            records, order = self._count("LOGICAL_DECODING_MESSAGE")
            value["transaction"] = {
                "id": self._transaction.id,
                "total_order": self._total,
                "data_collection_order": order,
            }
        key = self._with_schema(_dumps({"prefix": message.prefix}), self._message_heads[0])
        topic = self._settings.name + ".message"
        return [
            *records,
            (topic, key, self._with_schema(_dumps(value), self._message_heads[1]), _NO_HEADERS),
        ]

    def commit(self, commit: Commit) -> list[Shaped]:
        """END of the transaction topic, if the transaction had any event."""
        if not self._total:
            return []
        ended = {
            "status": "END",
            "id": self._transaction.id,
            "event_count": self._total,
            "data_collections": [
                {"data_collection": table_id, "event_count": count}
                for table_id, count in self._counts.items()
            ],
            "ts_ms": self._transaction.ts_ms,
        }
        self._counts, self._total = {}, 0
        return [self._transaction_record(ended)]

    # ── tables ──────────────────────────────────────────────────────────────────────────────────

    def rows(
        self,
        table: Table,
        rows: Iterable[Row],
        snapshot: str,
        ts_ms: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> Iterator[Shaped]:
        """Rows that a snapshot read, as "r" events; those that a condition leaves out are missing.

        snapshot: "true", "incremental", … as in Debezium's `source`; ts_ms: when they were read,
        by default now; source: what `source` has (lsn, pos, …).
        """
        plan = self._planner.plan(table)
        topic, key, dump, rules, outbox = plan.topic, plan.key, plan.dump, plan.rules, plan.outbox
        fields = {"snapshot": snapshot, **(source or {})}
        for number, row in enumerate(rows):
            if not number % _SAME_TIME_ROWS:
                now_ns = self._now_ns()
                read_ms = now_ns // 1_000_000 if ts_ms is None else ts_ms
                opened = plan.source_writer.opened(read_ms, fields, {})
                frame = Frame(plan.head, plan.end, opened, 0, now_ns)
                head, tail = frame.before_null, opened + b"}" + frame.tail("r")
                if table.documents:
                    tail = _NOT_UPDATED + tail
            try:
                if rules is not None:
                    seen = rules.apply("r", None, row)
                    if seen is None or seen[2] is None:
                        continue
                    row = seen[2]  # noqa: PLW2901 (what is left of it)
                if outbox is not None:
                    yield from self._outbox(outbox, "r", row)
                else:
                    yield topic, key(row), head + dump(row) + tail, _NO_HEADERS
            except (KeyError, TypeError, ValueError) as error:
                raise _unshapeable(table, error) from error

    def key_of(self, table: Table, row: Row) -> bytes | None:
        """What identifies a row: equal for two rows of a table if and only if their primary
        keys are equal; None without one. (The records' key, but for an outbox.)
        """
        plan = self._planner.plan(table)
        try:
            return plan.key(row if plan.rules is None else plan.rules.transform(row))
        except (KeyError, TypeError, ValueError) as error:
            raise _unshapeable(table, error) from error

    def topic_of(self, table: Table) -> str:
        return self._planner.plan(table).topic

    def check(self, tables: Iterable[Table]) -> list[HeadwaterError]:
        """All that is wrong with the settings for these tables, before any change comes."""
        return self._planner.check(tables)

    def check_table(self, table: Table, before: Table | None) -> None:
        """Raises TableRefused if a table that is new (`before` is None) or has changed may have a
        private column under a name that no rule knows.
        """
        self._planner.check_table(table, before)

    def register(self, table: Table) -> None:
        """Before the first record of a table that is new or has changed: makes known what its
        records are written by. JSON needs nothing. Raises TableRefused.
        """

    def schema_change(
        self, change: SchemaChange, before: Table | None, source: Mapping[str, Any] | None = None
    ) -> list[Shaped]:
        """The record of <name>.schema for a table that is new (`before` is None), different or
        dropped, in the form of Debezium's schema change topic.
        """
        table = change.table or before
        if table is None:
            return []
        plan = self._planner.plan(table)
        now_ms = self._now_ns() // 1_000_000
        fields = at_time(plan.source, self._transaction.ts_ms or now_ms) | self._transaction.source
        shown = None if change.table is None else plan.shaped
        key, value = schema_topic.record(
            change, shown, table, fields | dict(source or {}), now_ms, is_new=before is None
        )
        return [(self._settings.name + ".schema", key, value, _NO_HEADERS)]

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _enter(self, change: Change) -> None:
        """Makes the plan and the frame of this change the current ones."""
        table, transaction = change.table, self._transaction
        if not change.ordinal % _SAME_TIME_ROWS:
            self._frames.clear()
        found = self._frames.get(id(table))
        if found is None or found[2].own_fields != len(change.source):
            plan = self._planner.plan(table)
            frame = Frame(
                plan.head,
                plan.end,
                plan.source_writer.opened(transaction.ts_ms, transaction.source, change.source),
                len(change.source),
                self._now_ns(),
                transaction.id if self._settings.transactions else None,
            )
            found = self._frames[id(table)] = table, plan, frame
        self._table, self._plan, self._frame = found

    def _events(
        self,
        plan: Plan,
        frame: Frame,
        op: str,
        before: Row | None,
        after: Row | None,
        own: bytes,
    ) -> list[Shaped]:
        """The records of a change as the rules left it; `own` completes its `source`. Rows are
        written before the event is counted, for one that cannot be written is none.
        """
        if op == "u":
            assert after is not None
            key = plan.key(after)
            if before is not None:
                for name in plan.shaped.key:
                    if before.get(name, after[name]) != after[name]:
                        return self._key_change(plan, frame, before, after, own)
                if len(before) < plan.width:
                    before = None  # only the key: no information, and Debezium writes null
            if plan.unavailable:
                before = None if before is None else _marked(before, plan.unavailable)
                after = _marked(after, plan.unavailable)
            old, new = _dumps(before), _dumps(after)
            records, tail = self._tail(plan, frame, "u")
            value = _join((frame.head, old, b',"after":', new, frame.source, own, tail))
            records.append((plan.topic, key, value, _NO_HEADERS))
            return records
        if op == "d":
            return self._delete(plan, frame, before, own, _NO_HEADERS)
        if op == "c":
            assert after is not None
            return self._create(plan, frame, after, own, _NO_HEADERS)
        records, tail = self._tail(plan, frame, op)
        value = _join((frame.before_null, b"null", frame.source, own, tail))
        records.append((plan.topic, plan.truncate_key, value, _NO_HEADERS))
        return records

    def _outbox(self, outbox: Outbox, op: str, row: Row | None) -> list[Shaped]:
        records = outbox.shape(op, row)
        personal = self._personal
        if personal is None:
            return records
        try:
            return [
                (topic, key, personal.value(topic, value), headers)
                for topic, key, value, headers in records
            ]
        except PersonalDataRefused as error:
            raise TableRefused(
                "an event of the outbox cannot be encrypted", detail=str(error)
            ) from error

    def _document(
        self,
        plan: Plan,
        frame: Frame,
        op: str,
        before: Row | None,
        after: Row | None,
        change: Change,
    ) -> list[Shaped]:
        """The same for documents, which the envelope has as texts, with what an update changed."""
        from headwater.capture.mongo import shape

        row = before if after is None else after
        key = plan.truncate_key if op == "t" or row is None else plan.key(row)
        rules = None if plan.rules is None else plan.rules.documents
        description = shape.update_description(change.extra, rules)
        old, new = _dumps(shape.before(before)), _dumps(shape.after(after))
        update = b',"updateDescription":' + _dumps(description)
        records, tail = self._tail(plan, frame, op)
        own = _dumps(change.source)[1:]
        parts = (frame.head, old, b',"after":', new, update, frame.source, own, tail)
        records.append((plan.topic, key, _join(parts), _NO_HEADERS))
        if op == "d" and self._settings.tombstones:
            records.append((plan.topic, key, None, _NO_HEADERS))
        return records

    def _key_change(
        self, plan: Plan, frame: Frame, before: Row, after: Row, own: bytes
    ) -> list[Shaped]:
        # A part of a key that was too large to be written again is what it was.
        after = after | {k: before[k] for k in plan.shaped.key if after[k] == UNAVAILABLE}
        after = _marked(after, plan.unavailable)
        old_key, new_key = plan.key(before), plan.key(after)
        if old_key == new_key:
            return self._events(plan, frame, "u", before, after, own)
        _dumps(after)  # if that is impossible, there is no delete either
        deleted = self._delete(plan, frame, before, own, (("__debezium.newkey", new_key),))
        created = self._create(plan, frame, after, own, (("__debezium.oldkey", old_key),))
        return deleted + created

    def _create(
        self, plan: Plan, frame: Frame, after: Row, own: bytes, headers: Headers
    ) -> list[Shaped]:
        key, new = plan.key(after), _dumps(after)
        records, tail = self._tail(plan, frame, "c")
        value = _join((frame.before_null, new, frame.source, own, tail))
        records.append((plan.topic, key, value, headers))
        return records

    def _delete(
        self, plan: Plan, frame: Frame, before: Row | None, own: bytes, headers: Headers
    ) -> list[Shaped]:
        key = None if before is None else plan.key(before)
        if before is not None and len(before) < plan.width:
            before = plan.unknown | before
        old = _dumps(before)
        records, tail = self._tail(plan, frame, "d")
        value = _join((frame.head, old, b',"after":null', frame.source, own, tail))
        records.append((plan.topic, key, value, headers))
        if self._settings.tombstones and key is not None:
            records.append((plan.topic, key, None, headers))
        return records

    def _tail(self, plan: Plan, frame: Frame, op: str) -> tuple[list[Shaped], bytes]:
        if not self._settings.transactions:
            return [], frame.tail(op)
        records, order = self._count(plan.table.id)
        return records, frame.tail_in_transaction(op, self._total, order)

    def _count(self, table_id: str) -> tuple[list[Shaped], int]:
        """Counts an event. Returns the record of BEGIN if it is the first, and its number among
        the table's.
        """
        records: list[Shaped] = []
        if not self._total:
            begun = {
                "status": "BEGIN",
                "id": self._transaction.id,
                "event_count": None,
                "data_collections": None,
                "ts_ms": self._transaction.ts_ms,
            }
            records.append(self._transaction_record(begun))
        self._total += 1
        order = self._counts[table_id] = self._counts.get(table_id, 0) + 1
        return records, order

    def _transaction_record(self, value: Mapping[str, Any]) -> Shaped:
        key = self._with_schema(_dumps({"id": value["id"]}), self._transaction_heads[0])
        written = self._with_schema(_dumps(value), self._transaction_heads[1])
        return self._settings.name + ".transaction", key, written, _NO_HEADERS

    def _with_schema(self, payload: bytes, head: bytes) -> bytes:
        return head + payload + b"}" if self._settings.schemas else payload


def _marked(row: Row, unavailable: Row) -> Row:
    """The row with what its columns have for a value that the log left out."""
    left_out = {name: value for name, value in unavailable.items() if row.get(name) == UNAVAILABLE}
    return row | left_out if left_out else row


def _unshapeable(table: Table, error: Exception) -> TableRefused:
    """A row that lacks a column of its key, or has a value that JSON or UTF-8 has no form for."""
    what = f"column {error} is missing" if isinstance(error, KeyError) else without_values(error)
    return TableRefused(f"a row of {table.id} cannot be written as JSON", detail=what)
