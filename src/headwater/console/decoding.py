"""Bytes of a key, value or header, as people can read them.

    json        indented
    debezium    a change event: what was before, what is after, which columns differ
    avro        of a topic named in [console.avro_schemas], with or without a registry's framing;
                also what carries its schema (a container file)
    text        UTF-8
    hex         whatever it is

Without a wish, the first that fits: nothing is guessed that the bytes do not show.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple

import orjson

from headwater.console.records import Part
from headwater.errors import HeadwaterError

FORMS: Final = ("auto", "json", "debezium", "avro", "text", "hex")
OPERATIONS: Final = {
    "c": "created", "u": "updated", "d": "deleted", "r": "read by a snapshot", "t": "truncated",
    "m": "message",
}  # fmt: skip
_PREVIEW_CHARACTERS: Final = 300
_HEX_BYTES: Final = 16
_MOST_HEX_BYTES: Final = 16 << 10
_CONTAINER: Final = b"Obj\x01"
_FRAMING_BYTES: Final = 5


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
    note: str = ""  # why it is not in the form that was wished for
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
                "changes": [{**each._asdict(), "is_changed": each.is_changed}
                            for each in self.changes],
                "source": self.source,
            }  # fmt: skip
        return data


def shown(part: Part, form: str = "auto", *, avro_schema: str | None = None) -> Shown:
    """In the form wished for, else in the first that fits."""
    data = part.data
    if data is None:
        return Shown("null", "null")
    if not data:
        return Shown("empty", "")
    note = ""
    if form != "auto":
        try:
            return _READERS[form](data, avro_schema)
        except _Unfit as unfit:
            note = f"not {form}: {unfit}"
    for each in ("debezium", "json", "avro", "text"):
        try:
            return _READERS[each](data, avro_schema)._replace(note=note)
        except _Unfit:
            continue
    return _hex(data, avro_schema)._replace(note=note)


def preview(part: Part, avro_schema: str | None = None) -> str:
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
        event = _debezium(data, None)
    except _Unfit:
        return None
    if event.has_before and event.has_after:
        told = [f"{each.column} {each.before} → {each.after}" for each in event.changes
                if each.is_changed]  # fmt: skip
    else:
        told = [f"{each.column} {each.after or each.before}" for each in event.changes]
    return f"{event.operation} {', '.join(told) or 'nothing'}"


class _Unfit(Exception):
    """The bytes are not of this form."""


def _json(data: bytes, _: str | None) -> Shown:
    return Shown("json", _indented(_loaded(data)))


def _debezium(data: bytes, _: str | None) -> Shown:
    """{"before": …, "after": …, "op": …}, alone or as the payload beside a schema."""
    document = _loaded(data)
    if isinstance(document, dict) and "payload" in document and "schema" in document:
        document = document["payload"]
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("op"), str)
        or not {"before", "after"} & document.keys()
    ):
        raise _Unfit("no change event: it has no op, before and after")
    before, after = document.get("before"), document.get("after")
    if not all(each is None or isinstance(each, dict) for each in (before, after)):
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


def _avro(data: bytes, schema: str | None) -> Shown:
    value = _avro_value(data, schema)
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return Shown("avro", _dumped(value, options))


def _avro_value(data: bytes, schema: str | None) -> Any:
    import fastavro

    try:
        if data.startswith(_CONTAINER):
            return _contained(data)
        if schema is None:
            raise _Unfit("no schema for this topic in [console.avro_schemas]")
        parsed = _schema(schema, _stamp(schema))
        for at in (0, _FRAMING_BYTES):
            if at and (len(data) < at or data[0] != 0):
                break
            stream = BytesIO(data[at:])
            try:
                value = fastavro.schemaless_reader(stream, parsed, None)
            except Exception:  # noqa: S112 (whatever fastavro meets in bytes of another kind)
                continue
            if stream.tell() == len(data) - at:
                return value
    except _Unfit:
        raise
    except Exception as error:  # as above
        raise _Unfit(str(error) or type(error).__name__) from None
    raise _Unfit("the bytes are not of its schema")


def _contained(data: bytes) -> list[Any]:
    """The records of a container file. Its writer has chosen the schema: some bytes must not become
    more than they are, by compression or by items that take none.
    """
    import fastavro

    reader = fastavro.reader(BytesIO(data))
    if reader.codec != "null":
        raise _Unfit(f"it is compressed: {reader.codec}")
    if not _takes_bytes(reader.writer_schema, {}):
        raise _Unfit("its records take no bytes")
    return list(reader)


def _takes_bytes(schema: Any, named: dict[str, bool]) -> bool:
    """Whether every value takes at least one byte. Raises _Unfit for a list whose items need not:
    it may say that it has any number of them.
    """
    kind = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(schema, list):
        for each in schema:
            _takes_bytes(each, named)
        return True  # which of them
    if isinstance(kind, dict | list):
        return _takes_bytes(kind, named)
    name = schema.get("name", "") if isinstance(schema, dict) else ""
    match kind:
        case "null":
            return False
        case "record" | "error":
            named[name] = True  # it may have itself inside
            takes = [_takes_bytes(each["type"], named) for each in schema["fields"]]
            named[name] = any(takes)
            return named[name]
        case "fixed":
            named[name] = schema["size"] > 0
            return named[name]
        case "array":
            if not _takes_bytes(schema["items"], named):
                raise _Unfit("it has a list whose items take no bytes")
        case "map":
            _takes_bytes(schema["values"], named)
    return named.get(str(kind), True)


@lru_cache(64)
def _schema(file: str, stamp: float) -> Any:
    from headwater.pipelines.decoding.avro import parsed_schema

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


def _text(data: bytes, _: str | None) -> Shown:
    text = _utf8(data, may_be_cut=True)
    if text is None:
        raise _Unfit("no UTF-8")
    if not _is_readable(text):
        raise _Unfit("it has signs that cannot be shown")
    return Shown("text", text)


def _hex(data: bytes, _: str | None) -> Shown:
    lines = []
    for at in range(0, min(len(data), _MOST_HEX_BYTES), _HEX_BYTES):
        row = data[at : at + _HEX_BYTES]
        signs = "".join(chr(each) if 32 <= each < 127 else "·" for each in row)
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
    return _dumped(document, orjson.OPT_INDENT_2)


def _dumped(document: Any, option: int = 0) -> str:
    """What can be read need not be written: it may be too deep for that."""
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
    "json": _json, "debezium": _debezium, "avro": _avro, "text": _text, "hex": _hex,
}  # fmt: skip
