"""Decoder of change events in Debezium's envelope, as captures and Debezium itself write them.

    {"before": row | null, "after": row | null, "source": {"ts_ms": …}, "op": "c"}

alone, or as {"schema": …, "payload": envelope} (Connect's JsonConverter with schemas), or in Avro
by a schema registry (avro/envelopes.py). A row is the
image after the change; of a delete the one before it, or the record's key where there is none; of a
truncate nothing but nulls. The envelope is not parsed into columns: one pass finds the spans of its
members, and only the image that is needed goes to the parser.

How values are written (times as numbers of some unit, decimals as texts or bytes) is given by the
schema beside the payload, else by the Connect type that each field of the Arrow schema carries
(captured.py), else by the Arrow type.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.avro.envelopes import AvroEnvelopes
from headwater.pipelines.decoding.avro.registered import LOG, OPTION, MakeSource, registry_source
from headwater.pipelines.decoding.connect_types import CONNECT_METADATA, Connect, connect_node
from headwater.pipelines.decoding.contract import Columns, Decoder, Rows
from headwater.pipelines.decoding.json import kernels
from headwater.pipelines.decoding.json.nodes import Struct
from headwater.pipelines.decoding.json.rows import RowReader, Scanner, Texts, not_utf8
from headwater.pipelines.decoding.merging import Part, merged
from headwater.pipelines.decoding.tombstones import unit_of
from headwater.pipelines.decoding.unavailable import marked, restored
from headwater.subjects.personal import decrypted_type

CONNECT_OPTION: Final = "connect"  # the same for all columns: {"column": {…}, …}
DECRYPT_OPTION: Final = "decrypt"  # kinds of subjects whose fields were decrypted (decrypting.py)
_SCHEMAS: Final = 32  # of envelopes, whose readers are cached

_PAYLOAD, _SCHEMA, _BEFORE, _AFTER, _SOURCE, _OP = range(6)
_MEMBERS: Final = ("payload", "schema", "before", "after", "source", "op")
_TS_MS: Final = np.frombuffer(b"ts_ms", np.uint8)
_BRACE, _QUOTE = b'{"'
_DELETED, _TRUNCATED = b"dt"
_OPS: Final = np.frombuffer(b"curdt", np.uint8)

Mask = npt.NDArray[np.bool_]


class _Readers:
    """Readers of rows whose columns have these Connect types."""

    def __init__(self, fields: list[pa.Field], connects: Mapping[str, Connect], unit: str) -> None:
        members = [
            (field.name, connect_node(field.type, connects.get(field.name) or {}, unit, field.name),
             field.nullable)
            for field in fields
        ]  # fmt: skip
        self.rows = self.deletes = RowReader(Struct(pa.struct(fields), members))
        if not all(field.nullable for field in fields):  # a delete may have the key only
            nullable = [(name, node, True) for name, node, _ in members]
            self.deletes = RowReader(Struct(pa.struct(fields), nullable))


class DebeziumDecoder(Decoder):
    def __init__(
        self,
        schema: pa.Schema,
        options: Mapping[str, str],
        registry_of_log: MakeSource | None = None,
    ) -> None:
        super().__init__(schema)
        self._given = list(schema)
        self._unit = unit_of(options, "us")
        connects = _connects(schema, options)
        self._readers = _Readers(self._given, connects, self._unit)
        make = registry_of_log
        if options.get(OPTION, LOG) != LOG:
            make = registry_source(options, registry_of_log)
        self._avro = None if make is None else AvroEnvelopes(make, connects)
        self._by_schema: dict[bytes, _Readers] = {}  # of envelopes with a schema
        self._decrypt = options.get(DECRYPT_OPTION, "").split(",")
        self._envelopes = Scanner(*_MEMBERS)

    def _decode(self, batch: pa.RecordBatch) -> Columns:
        if self._avro is None:
            return self._decode_json(batch)
        batch, causes = self._avro.translated(batch)
        columns = self._decode_json(batch)
        if causes:
            columns.causes = [(row, causes.get(row, cause)) for row, cause in columns.causes]
        return columns

    def _decode_json(self, batch: pa.RecordBatch) -> Columns:
        values = batch.column("value")
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        given = values if len(present) == len(values) else values.take(pa.array(present))
        events = _Events(Texts.of(given), self._envelopes, not_utf8(given))
        events.take_images(lambda row: batch.column("key")[int(present[row])].as_py())
        events.restore_left_out([field.name for field in self._given])
        parts = [self._truncates(events)]
        for schema, rows in events.by_schema():
            readers = self._readers_of(schema)
            is_delete = events.ops[rows] == _DELETED
            if readers.deletes is readers.rows:
                parts.append(_part(events, rows, readers.rows))
            else:
                parts.append(_part(events, rows[~is_delete], readers.rows))
                parts.append(_part(events, rows[is_delete], readers.deletes))
        parts.append(Part([], np.zeros(0, np.int64), list(events.causes.items()), pa.array([])))
        columns = merged(parts, self._fields)
        columns.at_ms = events.at_ms(columns.rows, batch.column("timestamp"), present)
        columns.rows = present[columns.rows]
        columns.causes = [(int(present[row]), cause) for row, cause in columns.causes]
        return columns

    def _truncates(self, events: "_Events") -> Part:
        rows = np.flatnonzero(events.ops == _TRUNCATED)
        nulls = [pa.nulls(len(rows), field.type) for field in self._fields]
        return Part(nulls, rows, [], pa.repeat(pa.scalar("t"), len(rows)))

    def _readers_of(self, schema: bytes | None) -> _Readers:
        if schema is None:
            return self._readers
        readers = self._by_schema.get(schema)
        if readers is None:
            if len(self._by_schema) >= _SCHEMAS:
                self._by_schema.clear()
            readers = _Readers(
                self._given, _connects_of_envelope(schema, self._decrypt), self._unit
            )
            self._by_schema[schema] = readers
        return readers


def _part(events: "_Events", rows: Rows, reader: RowReader) -> Part:
    arrays, read, unread = reader.read(events.images(rows))
    ops = pa.array(_LETTERS[events.ops[rows[read]]], pa.string())
    return Part(arrays, rows[read], [(int(rows[row]), cause) for row, cause in unread], ops)


_LETTERS: Final = np.array([chr(byte) for byte in range(256)], object)


class _Events:
    """The envelopes of a batch, taken apart. Rows are numbered among the records with a value."""

    def __init__(self, texts: Texts, scanner: Scanner, causes: list[tuple[int, str]]) -> None:
        self._data = texts.data
        scanned = scanner.scan(texts)
        self.causes = dict(scanned.causes) | dict(causes)
        spans = scanned.spans
        self._unwrap(spans, scanner)
        self._spans = spans
        op_at = spans[:, _OP, 0]
        is_letter = spans[:, _OP, 1] - op_at == 3
        self.ops = np.zeros(len(texts), np.uint8)
        self.ops[is_letter] = self._data[op_at[is_letter] + 1]
        for row in np.flatnonzero(~np.isin(self.ops, _OPS)).tolist():
            self.causes.setdefault(row, self._no_op(row))
        self._clear_rejected()
        self._starts = np.zeros(len(texts), np.int64)
        self._ends = np.zeros(len(texts), np.int64)

    def _unwrap(self, spans: npt.NDArray[np.int64], scanner: Scanner) -> None:
        """Of {"schema", "payload"} the members of the payload."""
        payload = spans[:, _PAYLOAD]
        wrapped = np.flatnonzero((spans[:, _OP, 0] < 0) & (payload[:, 0] >= 0))
        wrapped = wrapped[self._data[payload[wrapped, 0]] == _BRACE]
        if len(wrapped):
            inner = scanner.scan(Texts(self._data, payload[wrapped, 0], payload[wrapped, 1]))
            spans[wrapped, _BEFORE:] = inner.spans[:, _BEFORE:]

    def _no_op(self, row: int) -> str:
        start, end = self._spans[row, _OP]
        if start < 0:
            return "no change event: it has no op"
        return f"no change event: its op is {self._data[start:end].tobytes()[:20].decode()}"

    def _clear_rejected(self) -> None:
        self.ops[list(self.causes)] = 0

    # ── images ──────────────────────────────────────────────────────────────────────────────────

    def take_images(self, key_of: Any) -> None:
        """Finds the image of each event. `key_of` gives the key of a record."""
        is_delete = self.ops == _DELETED
        wanted = np.where(is_delete[:, None], self._spans[:, _BEFORE], self._spans[:, _AFTER])
        self._starts, self._ends = wanted[:, 0].copy(), wanted[:, 1].copy()
        is_row = np.isin(self.ops, _OPS[:4])
        is_there = is_row & (self._starts >= 0)
        first = np.zeros(len(self.ops), np.uint8)
        first[is_there] = self._data[self._starts[is_there]]
        others: dict[int, bytes] = {}
        for row in np.flatnonzero(is_row & (first != _BRACE)).tolist():
            image = None
            if first[row] == _QUOTE:  # a document, which is a text in the envelope
                image = _object_in(self._data[self._starts[row] : self._ends[row]].tobytes())
            elif is_delete[row]:
                image = _payload_of_key(key_of(row))
            if image is None:
                self.causes[row] = (
                    "a delete with neither the row before it nor a key"
                    if is_delete[row]
                    else f"a change (op {chr(self.ops[row])}) without the row after it"
                )
            else:
                others[row] = image
        self._put(others)
        self._clear_rejected()

    def restore_left_out(self, columns: list[str]) -> None:
        """Puts values that the database's log left out back where the row before has them."""
        rows = np.flatnonzero((self.ops != 0) & (self.ops != _TRUNCATED))
        rows = rows[marked(self.images(rows))]
        others: dict[int, bytes] = {}
        for row in rows.tolist():
            image = self._data[self._starts[row] : self._ends[row]].tobytes()
            others[row], missing = restored(image, self._member(row, _BEFORE), columns)
            if missing:
                self.causes[row] = (
                    f"column {', '.join(missing)}: the database's log left the value out, for it "
                    "was large and did not change; ALTER TABLE … REPLICA IDENTITY FULL logs it "
                    "(MySQL: binlog_row_image = FULL)"
                )
        self._put(others)
        self._clear_rejected()

    def _member(self, row: int, member: int) -> bytes:
        start, end = self._spans[row, member]
        return self._data[start:end].tobytes() if start >= 0 else b"null"

    def _put(self, others: dict[int, bytes]) -> None:
        """Appends images that are not in the records' values to the buffer."""
        if not others:
            return
        ends = len(self._data) + np.cumsum([len(image) for image in others.values()])
        rows = list(others)
        self._starts[rows] = np.concatenate([[len(self._data)], ends[:-1]])
        self._ends[rows] = ends
        self._data = np.concatenate(
            [self._data, np.frombuffer(b"".join(others.values()), np.uint8)]
        )

    def images(self, rows: Rows) -> Texts:
        return Texts(self._data, self._starts[rows], self._ends[rows])

    # ── what else is in the envelope ────────────────────────────────────────────────────────────

    def by_schema(self) -> list[tuple[bytes | None, Rows]]:
        """The rows that have an image, by the schema beside their payload."""
        rows = np.flatnonzero((self.ops != 0) & (self.ops != _TRUNCATED))
        spans = self._spans[rows, _SCHEMA]
        has_schema = np.zeros(len(rows), np.bool_)
        is_given = spans[:, 0] >= 0
        has_schema[is_given] = self._data[spans[is_given, 0]] == _BRACE
        groups: list[tuple[bytes | None, Rows]] = [(None, rows[~has_schema])]
        left, spans = rows[has_schema], spans[has_schema]
        while len(left):
            first = self._data[spans[0, 0] : spans[0, 1]]
            is_equal = np.empty(len(left), np.bool_)
            kernels.equal(self._data, spans[:, 0], spans[:, 1], first, is_equal)
            groups.append((first.tobytes(), left[is_equal]))
            left, spans = left[~is_equal], spans[~is_equal]
        return [(schema, of_schema) for schema, of_schema in groups if len(of_schema)]

    def at_ms(self, rows: Rows, stamps: pa.Array, present: Rows) -> npt.NDArray[np.int64]:
        """When each change was committed; the record's time where its source does not say."""
        spans = np.maximum(self._spans[rows, _SOURCE], 0)
        numbers, is_found = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
        kernels.find_integer(self._data, spans[:, 0], spans[:, 1], _TS_MS, numbers, is_found)
        if not is_found.all():
            unknown = np.flatnonzero(~is_found)
            taken = stamps.take(pa.array(present[rows[unknown]]))
            if pa.types.is_timestamp(taken.type):
                taken = taken.cast(pa.timestamp("ms", tz=taken.type.tz), safe=False)
            numbers[unknown] = taken.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers


def _object_in(text: bytes) -> bytes | None:
    """The JSON object that is written in a JSON text."""
    try:
        inner = msgspec.json.decode(text, type=str).encode()
        return inner if isinstance(orjson.loads(inner), dict) else None
    except ValueError:
        return None


def _payload_of_key(key: bytes | None) -> bytes | None:
    """The columns of a record's key, of {"schema", "payload"} the payload; None if it has none."""
    try:
        found = orjson.loads(key or b"null")
    except ValueError:
        return None
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    return orjson.dumps(found) if isinstance(found, dict) and found else None


# ── Connect types ───────────────────────────────────────────────────────────────────────────────


def _connects(schema: pa.Schema, options: Mapping[str, str]) -> dict[str, Connect]:
    """The columns' types from the schema's metadata and the option."""
    connects: dict[str, Connect] = {}
    try:
        for field in schema:
            stored = (field.metadata or {}).get(CONNECT_METADATA)
            if stored is not None:
                connects[field.name] = json.loads(stored)
        connects |= json.loads(options.get(CONNECT_OPTION, "{}"))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "the Connect types of the columns cannot be read",
            detail=str(error),
            hint=f'option {CONNECT_OPTION}: {{"column": {{"type": "int64", "name": …}}, …}}',
        ) from error
    return connects


def _connects_of_envelope(schema: bytes, decrypt: Collection[str]) -> dict[str, Connect]:
    """The columns' types in the schema of an envelope; none if it is not one."""
    fields = {field.get("field"): field for field in orjson.loads(schema).get("fields") or []}
    row = fields.get("after") or fields.get("before") or {}
    return {
        field["field"]: decrypted_type(field, decrypt)
        for field in row.get("fields") or []
        if "field" in field
    }
