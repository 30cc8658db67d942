"""Decoder of Avro values: binary, without a file's header.

There is one column for each field of the writer's record that the schema names.
`_op` is "u", and "d" for a tombstone (tombstones.py).
"""

import os
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import fastavro
import numpy as np
import orjson
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.contract import Columns, Decoder
from headwater.pipelines.decoding.framing import has_framing, unframed
from headwater.pipelines.decoding.merging import Part, merged
from headwater.pipelines.decoding.python_rows import PythonRows
from headwater.pipelines.decoding.tombstones import Tombstones

OPTION: Final = "schema"  # JSON, or the name of a file that has it
_OF_ID: Final = OPTION + "."  # the same for one id of a registry
# Errors that fastavro raises for bytes that are no Avro.
_UNREADABLE: Final = (ValueError, EOFError, LookupError, TypeError, ArithmeticError, MemoryError)


class AvroDecoder(Decoder):
    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema)
        self._names = schema.names
        self._is_framed = has_framing(options)
        self._tombstones = Tombstones(schema, options)
        self._rows = PythonRows(list(schema))
        self._by_id = {
            _id_of(option): parsed_schema(option, text, self._names)
            for option, text in options.items()
            if option.startswith(_OF_ID)
        }
        self._writer: Any = None
        if OPTION in options:
            self._writer = parsed_schema(OPTION, options[OPTION], self._names)
        elif not self._by_id:
            raise ConfigError(
                "Avro needs the schema that the records were written with",
                hint="option avro.schema: its JSON, or the name of a file",
            )

    def _decode(self, batch: pa.RecordBatch) -> Columns:
        columns: list[list[Any]] = [[] for _ in self._names]
        rows, causes = [], []
        for row, value in enumerate(batch.column("value").to_pylist()):
            if value is None:
                continue
            try:
                record = self._read(value)
                found = [record.get(name) for name in self._names]
            except _UNREADABLE as error:
                causes.append((row, f"no Avro of this schema: {_message(error)}"))
                continue
            rows.append(row)
            for column, item in zip(columns, found, strict=True):
                column.append(item)
        arrays, fitting, unfit = self._rows.build(columns, np.array(rows, np.int64))
        part = Part(arrays, fitting, causes + unfit, pa.repeat(pa.scalar("u"), len(fitting)))
        return merged([part, *self._tombstones.read(batch)], self._fields)

    def _read(self, value: bytes) -> Any:
        at, writer = 0, self._writer
        if self._is_framed:
            schema_id, at = unframed(value)
            writer = self._by_id.get(schema_id, writer)
            if writer is None:
                raise ValueError(f"no option avro.{_OF_ID}{schema_id} for the schema with this id")
        data = BytesIO(value)
        data.seek(at)
        record = fastavro.schemaless_reader(data, writer, None)
        left_bytes = len(value) - data.tell()
        if left_bytes:
            raise ValueError(f"{left_bytes} bytes are left behind it")
        return record


def _message(error: BaseException) -> str:
    return str(error) or ("it ends too early" if isinstance(error, EOFError) else repr(error))


def _id_of(option: str) -> int:
    text = option.removeprefix(_OF_ID)
    if not text.isdigit():
        raise ConfigError(f"option avro.{option}: {text} is no id of a schema")
    return int(text)


def parsed_schema(option: str, text: str, names: list[str]) -> Any:
    """Of JSON, or of the file of that name; it has these columns. Raises ConfigError, also for
    schemas of which a few bytes could end the process.
    """
    try:
        if not text.lstrip().startswith(("{", "[", '"')):
            with open(os.path.expanduser(text), encoding="utf-8") as file:
                text = file.read()
        schema = orjson.loads(text)
        _refuse_bombs(schema, ())
        parsed = fastavro.parse_schema(schema)
        _refuse_empty_items(parsed, set())
    except OSError as error:
        raise ConfigError(
            f"option avro.{option}: the file cannot be read", detail=str(error)
        ) from error
    except ConfigError:
        raise
    except Exception as error:  # any error of fastavro's
        raise ConfigError(
            f"option avro.{option} is no Avro schema", detail=f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise ConfigError(f"option avro.{option}: the schema is no record")
    existing = [field["name"] for field in parsed["fields"]]
    for name in names:
        if name not in existing:
            raise ConfigError(
                f"column {name} is not in the Avro schema", detail=f"it has {', '.join(existing)}"
            )
    return parsed


def _refuse_bombs(schema: Any, around: tuple[str, ...]) -> None:
    """Refuses schemas of which a few bytes could end the process: a recursive type, which they can
    nest as deep as they like, and items that take no bytes.
    """
    if isinstance(schema, list):
        for branch in schema:
            _refuse_bombs(branch, around)
    elif isinstance(schema, str):
        if schema.rpartition(".")[2] in around:
            raise ConfigError(f"the Avro type {schema} is within itself", hint="leave it out")
    elif isinstance(schema, dict):
        inside = around
        if "name" in schema and "fields" in schema:
            inside = (*around, str(schema["name"]).rpartition(".")[2])
        for field in schema.get("fields") or []:
            _refuse_bombs(field.get("type"), inside)
        for inner in ("type", "items", "values"):
            _refuse_bombs(schema.get(inner), inside)


def _refuse_empty_items(schema: Any, empty: set[str]) -> bool:
    """Whether a value of a parsed schema takes no bytes; `empty` has the named types that do not.
    Raises ConfigError for an array of such values.
    """
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        for branch in kind:
            _refuse_empty_items(branch, empty)
        return False  # which of them takes a byte
    if isinstance(kind, dict):
        return _refuse_empty_items(kind, empty)
    match kind:
        case "record" | "error":
            # Without stopping at the first: each may have an array inside.
            fields = [_refuse_empty_items(field["type"], empty) for field in schema["fields"]]
            is_empty = all(fields)
        case "fixed":
            is_empty = schema["size"] == 0
        case "array" if _refuse_empty_items(schema["items"], empty):
            raise ConfigError(
                "an array of nulls may be as long as it says, for its items are no bytes",
                hint="records of nulls only and fixed of size 0 are such items, too",
            )
        case "map":
            _refuse_empty_items(schema["values"], empty)
            return False
        case _:
            return kind == "null" or kind in empty
    if is_empty:
        empty.add(schema["name"])
    return is_empty
