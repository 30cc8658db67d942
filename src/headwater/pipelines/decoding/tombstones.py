"""Tombstones: records without a value, which are deletes.

Their columns come from the key, if that is a JSON object with a column of the schema; the others
are null, whatever the schema says. Any other key does not identify a row, and the record is
rejected.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.json.nodes import Struct, members_of
from headwater.pipelines.decoding.json.rows import RowReader, Scanner, Texts, not_utf8
from headwater.pipelines.decoding.merging import Part

UNIT_OPTION = "timestamp.unit"
_UNITS = ("s", "ms", "us", "ns")


def unit_of(options: Mapping[str, str], default: str) -> str:
    """The unit of numbers that are times, if nothing else defines it."""
    unit = options.get(UNIT_OPTION, default)
    if unit not in _UNITS:
        raise ConfigError(
            f"option {UNIT_OPTION}: {unit} is no unit", hint=f"units are {', '.join(_UNITS)}"
        )
    return unit


class Tombstones:
    def __init__(self, schema: pa.Schema, options: Mapping[str, str]) -> None:
        fields = [field.with_nullable(True) for field in schema]
        members = [
            (name, node, True) for name, node, _ in members_of(fields, unit_of(options, "ms"))
        ]
        self._keys = RowReader(Struct(pa.struct(fields), members))
        self._scanner = Scanner(*schema.names)

    def read(self, batch: pa.RecordBatch) -> list[Part]:
        """The tombstones of the batch; nothing if it has none."""
        values = batch.column("value")
        if not values.null_count:
            return []
        rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        keys = batch.column("key").take(pa.array(rows))
        texts = Texts.of(keys)
        scanned = self._scanner.scan(texts)
        has_key = np.asarray((scanned.spans[:, :, 0] >= 0).any(axis=1))
        has_key[[row for row, _ in not_utf8(keys)]] = False
        has_key[[row for row, _ in scanned.causes]] = False
        chosen = np.flatnonzero(has_key)
        arrays, read, unread = self._keys.read(texts.take(chosen))
        cause = "a tombstone whose key is no JSON object with a column of the schema"
        causes = [(int(rows[row]), cause) for row in np.flatnonzero(~has_key)]
        causes += [(int(rows[chosen[row]]), why) for row, why in unread]
        return [Part(arrays, rows[chosen[read]], causes, pa.repeat(pa.scalar("d"), len(read)))]
