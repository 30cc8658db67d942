"""Decoder of Avro values: binary, without a file's header.

There is one column for each field of the writer's record that the schema names.
`_op` is "u", and "d" for a tombstone (tombstones.py).
"""

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.avro.registered import (
    MakeSource,
    RegisteredWriters,
    registry_source,
)
from headwater.pipelines.decoding.avro.schemas import parsed_schema
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
    def __init__(
        self,
        schema: pa.Schema,
        options: Mapping[str, str],
        registry_of_log: MakeSource | None = None,
    ) -> None:
        super().__init__(schema)
        self._names = schema.names
        make = registry_source(options, registry_of_log)
        self._registered = None if make is None else RegisteredWriters(make)
        self._is_framed = has_framing(options) or make is not None
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
        elif not self._by_id and self._registered is None:
            raise ConfigError(
                "Avro needs the schema that the records were written with",
                hint="option avro.schema: its JSON, or the name of a file; or avro.registry",
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
            if writer is None and self._registered is not None:
                return self._registered.read(schema_id, value, at)
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
