"""Decoding of keys, values and headers into readable text.

    json        indented
    debezium    a change event: what was before, what is after, which columns differ
    avro        of a topic named in [console.avro_schemas], with or without a registry's framing;
                also what carries its schema (a container file)
    schema      Avro, JSON or Protobuf behind the id of a schema that the registry has
    text        UTF-8
    hex         whatever it is

Without a chosen form, the first that fits: nothing is guessed that the bytes do not show.
"""

import os
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from headwater.errors import HeadwaterError
from headwater.inspect.decoding.part import Part
from headwater.schema_lookup.lookup import Decoded, SchemaLookup, looks_framed

FORMS: Final = ("auto", "json", "debezium", "avro", "schema", "text", "hex")
OPERATIONS: Final = {
    "c": "created", "u": "updated", "d": "deleted", "r": "read by a snapshot", "t": "truncated",
    "m": "message",
}  # fmt: skip
_PREVIEW_CHARACTERS: Final = 300
_HEX_BYTES: Final = 16
_MOST_HEX_BYTES: Final = 16 << 10
_CONTAINER: Final = b"Obj\x01"
_FRAMING_BYTES: Final = 5
_MAX_INDENTATION_BYTES: Final = 4 << 20


class Change(NamedTuple):
    """One column of a change event."""

    column: str
    before: str | None  # JSON text; None: not there
    after: str | None

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


class Shown(NamedTuple):
    """A part in the form in which it is shown."""

    form: str  # one of FORMS but "auto", or "null", "empty"
    text: str
    note: str = ""  # why it is not in the chosen form
    changes: tuple[Change, ...] = ()
    operation: str = ""
    source: Mapping[str, Any] | None = None
    has_before: bool = False
    has_after: bool = False

    def as_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"form": self.form, "text": self.text}
        if self.note:
            data["note"] = self.note
        if self.form == "debezium":
            data |= {
                "operation": self.operation,
                "changes": [{**change._asdict(), "is_changed": change.is_changed}
                            for change in self.changes],
                "source": self.source,
            }  # fmt: skip
        return data


class _Schemas(NamedTuple):
    """What may explain a value that does not explain itself."""

    avro: str | None  # a file, or JSON
    lookup: SchemaLookup | None  # of the registry


def shown(
    part: Part,
    form: str = "auto",
    *,
    avro_schema: str | None = None,
    lookup: SchemaLookup | None = None,
) -> Shown:
    """In the chosen form, else in the first that fits."""
    data = part.data
    schemas = _Schemas(avro_schema, lookup)
    if data is None:
        return Shown("null", "null")
    if not data:
        return Shown("empty", "")
    note = ""
    if form != "auto":
        try:
            return _READERS[form](data, schemas)
        except _Unfit as unfit:
            note = f"not {form}: {unfit}"
    for name in ("debezium", "json", "avro", "schema", "text"):
        try:
            found = _READERS[name](data, schemas)
        except _Unfit:
            continue
        return found._replace(note=note or found.note)
    return _hex(data, schemas)._replace(note=note)


def decoded(
    data: bytes | None, avro_schema: str | None = None, lookup: SchemaLookup | None = None
) -> tuple[Any, bytes]:
    """A value for programs: as a document, and as JSON on one line. What is Avro (as `shown` finds
    it), behind the id of a schema, or JSON is decoded, other UTF-8 is a text, and bytes that are
    not are {"base64": …}.
    """
    if data is None:
        return None, b"null"
    if avro_schema is not None or data.startswith(_CONTAINER):
        try:
            text = _dumped(_avro_value(data, avro_schema)).encode()
            return orjson.loads(text), text
        except _Unfit:
            pass
    if lookup is not None and looks_framed(data):
        try:
            text = _dumped(_registered_value(data, lookup).value).encode()
            return orjson.loads(text), text
        except _Unfit:
            pass
    try:
        document = orjson.loads(data)
        is_one_line = b"\n" not in data and b"\r" not in data
        return document, data if is_one_line else orjson.dumps(document)
    except orjson.JSONDecodeError:
        plain = _utf8(data)
        document = {"base64": b64encode(data).decode()} if plain is None else plain
    except orjson.JSONEncodeError:  # it can be parsed, but is nested too deep to be written
        document = data.decode()
    return document, orjson.dumps(document)


def preview(part: Part, avro_schema: str | None = None, lookup: SchemaLookup | None = None) -> str:
    """One line."""
    data = part.data
    if data is None:
        return "null"
    text: str | None
    if avro_schema is not None or data.startswith(_CONTAINER):
        try:
            text = _dumped(_avro_value(data, avro_schema))
        except _Unfit:
            text = _utf8(data, may_be_cut=part.is_cut)
    elif lookup is not None and looks_framed(data) and not part.is_cut:
        try:
            document = _registered_value(data, lookup).value
            text = _said(_change_event(document)) if _is_change(document) else _dumped(document)
        except _Unfit:
            text = _utf8(data)
    else:
        text = _utf8(data, may_be_cut=part.is_cut)
    if text is not None and '"op"' in text and not part.is_cut:
        text = _change_preview(data) or text
    if text is None or not _is_readable(text):
        text = data[: _PREVIEW_CHARACTERS // 3].hex(" ")
    text = " ".join(text[: _PREVIEW_CHARACTERS * 2].split())
    is_longer = part.is_cut or len(text) > _PREVIEW_CHARACTERS
    return text[:_PREVIEW_CHARACTERS] + ("…" if is_longer else "")


def _change_preview(data: bytes) -> str | None:
    """What a change event says: updated city "Wien" → "Graz"."""
    try:
        return _said(_change_event(_loaded(data)))
    except _Unfit:
        return None


def _said(event: Shown) -> str:
    if event.has_before and event.has_after:
        columns = [f"{change.column} {change.before} → {change.after}" for change in event.changes
                if change.is_changed]  # fmt: skip
    else:
        columns = [f"{change.column} {change.after or change.before}" for change in event.changes]
    return f"{event.operation} {', '.join(columns) or 'nothing'}"


class _Unfit(Exception):
    """The bytes are not of this form."""


def _json(data: bytes, _: _Schemas) -> Shown:
    return Shown("json", _indented(_loaded(data)))


def _debezium(data: bytes, _: _Schemas) -> Shown:
    """{"before": …, "after": …, "op": …}, alone or as the payload beside a schema."""
    return _change_event(_loaded(data))


def _is_change(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("op"), str)
        and (bool({"before", "after"} & document.keys()))
    )


def _change_event(document: Any) -> Shown:
    if isinstance(document, dict) and "payload" in document and "schema" in document:
        document = document["payload"]
    if not _is_change(document):
        raise _Unfit("no change event: it has no op, before and after")
    before, after = document.get("before"), document.get("after")
    if not all(row is None or isinstance(row, dict) for row in (before, after)):
        raise _Unfit("no change event: before and after are no rows")
    columns = dict.fromkeys([*(before or {}), *(after or {})])
    changes = tuple(
        Change(column, _cell(before, column), _cell(after, column)) for column in columns
    )
    operation: str = document["op"]
    source = document.get("source")
    return Shown(
        "debezium",
        _indented(document),
        changes=changes,
        operation=OPERATIONS.get(operation) or operation,
        source=source if isinstance(source, dict) else None,
        has_before=before is not None,
        has_after=after is not None,
    )


def _cell(row: Mapping[str, Any] | None, column: str) -> str | None:
    if row is None or column not in row:
        return None
    return _dumped(row[column])


def _avro(data: bytes, schemas: _Schemas) -> Shown:
    return Shown("avro", _indented(_avro_value(data, schemas.avro)))


def _registered(data: bytes, schemas: _Schemas) -> Shown:
    if schemas.lookup is None or not looks_framed(data):
        raise _Unfit("it does not begin with 0 and the id of a schema")
    found = _registered_value(data, schemas.lookup)
    note = f"schema {found.schema_id} of the registry, {found.type}"
    if _is_change(found.value):
        return _change_event(found.value)._replace(note=note)
    return Shown("schema", _indented(found.value), note)


def _registered_value(data: bytes, lookup: SchemaLookup) -> Decoded:
    try:
        return lookup.decode(data)
    except (ValueError, HeadwaterError) as error:
        raise _Unfit(str(error)) from None


def _avro_value(data: bytes, schema: str | None) -> Any:
    # Not above: fastavro takes a while to import, and most consoles never need it.
    from headwater.schemas.avro import values as avro_values

    try:
        if data.startswith(_CONTAINER):
            return avro_values.read_container(data)
        if schema is None:
            raise _Unfit("no schema for this topic in [console.avro_schemas]")
        parsed = _schema(schema, _stamp(schema))
        try:
            return avro_values.read_value(data, parsed)
        except avro_values.Unreadable:
            if len(data) < _FRAMING_BYTES or data[0] != 0:
                raise
            return avro_values.read_value(data[_FRAMING_BYTES:], parsed)
    except avro_values.Unreadable as error:
        raise _Unfit(str(error)) from None


@lru_cache(64)
def _schema(file: str, stamp: float) -> Any:
    from headwater.pipelines.decoding.avro.schemas import parsed_schema

    try:
        return parsed_schema("schema", file, [])
    except HeadwaterError as error:
        raise _Unfit(f"{file}: {error}") from None


def _stamp(file: str) -> float:
    try:
        return os.stat(os.path.expanduser(file)).st_mtime
    except OSError:
        return 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        text = _utf8(value)
        return text if text is not None else value.hex()
    return str(value)


def _text(data: bytes, _: _Schemas) -> Shown:
    text = _utf8(data, may_be_cut=True)
    if text is None:
        raise _Unfit("no UTF-8")
    if not _is_readable(text):
        raise _Unfit("it has characters that cannot be shown")
    return Shown("text", text)


def _hex(data: bytes, _: _Schemas) -> Shown:
    lines = []
    for at in range(0, min(len(data), _MOST_HEX_BYTES), _HEX_BYTES):
        row = data[at : at + _HEX_BYTES]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {signs}")
    if len(data) > _MOST_HEX_BYTES:
        lines.append(f"… {len(data) - _MOST_HEX_BYTES:,} bytes more")
    return Shown("hex", "\n".join(lines))


def _loaded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _Unfit(f"no JSON: {error.msg} at column {error.colno}") from None


def _indented(document: Any) -> str:
    """On one line if indentation would be most of the text: a megabyte of numbers, 250 lists deep,
    would become 250 of them.
    """
    is_small = _indentation_bytes(document) <= _MAX_INDENTATION_BYTES
    return _dumped(document, orjson.OPT_INDENT_2 if is_small else 0)


def _indentation_bytes(document: Any) -> int:
    """The spaces and line ends of the indented text."""
    total, pending = 0, [(document, 1)]
    while pending and total <= _MAX_INDENTATION_BYTES:
        node, depth = pending.pop()
        items = node.values() if isinstance(node, dict) else node
        if isinstance(items, list) or isinstance(node, dict):
            total += (len(items) + 1) * (2 * depth + 1)
            pending += [(item, depth + 1) for item in items if isinstance(item, dict | list)]
    return total


def _dumped(document: Any, option: int = 0) -> str:
    """Raises _Unfit: a document that can be parsed may be nested too deep to be written."""
    try:
        return orjson.dumps(document, default=_plain, option=option).decode()
    except orjson.JSONEncodeError as error:
        raise _Unfit(f"it cannot be shown: {error}") from None


def _utf8(data: bytes, *, may_be_cut: bool = False) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if may_be_cut and len(data) - error.start < 4 and error.start:
            return data[: error.start].decode()
        return None


def _is_readable(text: str) -> bool:
    return all(sign.isprintable() or sign in "\n\r\t" for sign in text)


_READERS: Final = {
    "json": _json, "debezium": _debezium, "avro": _avro, "schema": _registered,
    "text": _text, "hex": _hex,
}  # fmt: skip
