"""Decoder of JSON objects: one column for each member that the schema names.

`_op` is "u" for a value (insert or replace: the log does not say which) and "d" for a tombstone
(tombstones.py).
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headwater.pipelines.decoding.contract import Columns, Decoder
from headwater.pipelines.decoding.json.nodes import Struct, members_of
from headwater.pipelines.decoding.json.rows import RowReader, Scanner, Texts, not_utf8
from headwater.pipelines.decoding.merging import Part, merged
from headwater.pipelines.decoding.tombstones import Tombstones, unit_of


class JsonDecoder(Decoder):
    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        super().__init__(schema)
        members = members_of(list(schema), unit_of(options, "ms"))
        self._values = RowReader(Struct(pa.struct(list(schema)), members))
        self._tombstones = Tombstones(schema, options)
        self._scanner = Scanner()

    def _decode(self, batch: pa.RecordBatch) -> Columns:
        return merged([self._read(batch), *self._tombstones.read(batch)], self._fields)

    def _read(self, batch: pa.RecordBatch) -> Part:
        values = batch.column("value")
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        if len(rows) < len(values):
            values = values.take(pa.array(rows))
        texts = Texts.of(values)
        scanned = self._scanner.scan(texts)
        causes = dict(scanned.causes) | dict(not_utf8(values))
        is_sound = np.ones(len(rows), np.bool_)
        is_sound[list(causes)] = False
        sound = np.flatnonzero(is_sound)
        arrays, read, unread = self._values.read(texts.take(sound))
        causes |= {int(sound[row]): cause for row, cause in unread}
        return Part(
            arrays=arrays,
            rows=rows[sound[read]],
            causes=[(int(rows[row]), cause) for row, cause in causes.items()],
            ops=pa.repeat(pa.scalar("u"), len(read)),
        )
