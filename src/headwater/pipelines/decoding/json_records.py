"""Records whose values are JSON objects: one column for each member that the schema names.

`_op` is "u" for a value (insert or replace: the log does not tell which) and "d" for a tombstone,
whose columns come from its key if that is a JSON object with a column of the schema.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConfigError
from headwater.pipelines.decoding.contract import Columns, Decoder
from headwater.pipelines.decoding.json_nodes import Struct, members_of
from headwater.pipelines.decoding.json_rows import RowReader, Scanner, Texts, not_utf8
from headwater.pipelines.decoding.merging import Part, merged

UNIT_OPTION = "timestamp.unit"
_UNITS = ("s", "ms", "us", "ns")


def unit_of(options: Mapping[str, str], default: str) -> str:
    """What numbers that are times count, if nothing else tells it."""
    unit = options.get(UNIT_OPTION, default)
    if unit not in _UNITS:
        raise ConfigError(
            f"option {UNIT_OPTION}: {unit} is no unit", hint=f"units are {', '.join(_UNITS)}"
        )
    return unit


class JsonDecoder(Decoder):
    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema)
        members = members_of(list(schema), unit_of(options, "ms"))
        self._values = RowReader(Struct(pa.struct(list(schema)), members))
        nullable = [(name, node, True) for name, node, _ in members]
        self._deletes = RowReader(Struct(pa.struct(self._fields), nullable))
        self._names = set(schema.names)

    def _decode(self, batch: pa.RecordBatch) -> Columns:
        values = batch.column("value")
        parts = []
        if values.null_count < len(values):
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            parts.append(self._read(values, rows, self._values, "u", Scanner()))
        if values.null_count:
            rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
            keys = batch.column("key")
            parts.append(self._read(keys, rows, self._deletes, "d", Scanner(*self._names)))
        return merged(parts, self._fields)

    def _read(
        self, array: pa.Array, rows: "np.ndarray", reader: RowReader, op: str, scanner: Scanner
    ) -> Part:
        """The values of these rows; of a tombstone its key."""
        is_delete = op == "d"
        causes = dict(
            not_utf8(array if len(rows) == len(array) else pc.take(array, pa.array(rows)))
        )
        texts = Texts.of(array).take(rows)
        scanned = scanner.scan(texts)
        causes = dict(scanned.causes) | causes
        if is_delete:
            known = (scanned.spans[:, :, 0] >= 0).any(axis=1)
            for row in np.flatnonzero(~known):
                causes[int(row)] = "a tombstone whose key is no JSON object with a column"
        chosen = np.setdiff1d(scanned.sound, np.array(sorted(causes), np.int64), assume_unique=True)
        arrays, read, unread = reader.read(texts.take(chosen))
        causes |= {int(chosen[row]): cause for row, cause in unread}
        return Part(
            arrays=arrays,
            rows=rows[chosen[read]],
            causes=[(int(rows[row]), cause) for row, cause in causes.items()],
            ops=pa.repeat(pa.scalar(op), len(read)),
        )
