"""Decryption of personal fields ([subject.NAME]), before values are decoded.

It happens where records are decoded: in the driver for small batches, in Spark's tasks for large
ones. Each process opens the key store by its path, so on a cluster all machines need the key
store's directory and the root key (or the command of the KMS).

A field whose subject was erased is null. A record with a field that was changed or moved is
rejected as one that cannot be decoded. What is rejected stays encrypted: dead letters have the
record as it is in its topic.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.decoding.contract import Decoded, Decoder, Rejected, rejected
from headwater.subjects.access import keyring_of, read_key_option
from headwater.subjects.personal import MARK, decrypted
from headwater.subjects.sealing import Tampered


class Decrypting:
    """A decoder of values whose personal fields are decrypted first. Can be pickled."""

    def __init__(self, decoder: Decoder, kinds: Collection[str], keys: str) -> None:
        self._decoder = decoder
        self._kinds = frozenset(kinds)
        self._places, self._marks = read_key_option(keys)
        self.schema = decoder.schema

    def decode(self, batch: pa.RecordBatch, topic: str, partition: int) -> Decoded:
        """As Decoder.decode. Raises KeyStoreError if the keys cannot be used."""
        values = batch.column("value").cast(pa.binary())
        found = pc.fill_null(pc.match_substring(values, MARK.decode()), False)
        rows = np.flatnonzero(found.to_numpy(zero_copy_only=False))
        if not len(rows):
            return self._decoder.decode(batch, topic, partition)
        keyring = keyring_of(self._places, create=False)
        keyring.refresh()
        plain = values.to_pylist()
        marks = [mark for mark in self._marks.get(topic, ()) if mark.kind in self._kinds]
        causes: dict[int, str] = {}
        for row in rows.tolist():
            try:
                plain[row] = decrypted(plain[row], keyring, self._kinds, marks=marks)
            except Tampered as error:
                causes[row] = str(error)
        at = batch.schema.get_field_index("value")
        opened = batch.set_column(at, "value", pa.array(plain, pa.binary()))
        if causes:
            is_sound = np.ones(batch.num_rows, np.bool_)
            is_sound[list(causes)] = False
            opened = opened.filter(pa.array(is_sound))
        decoded = self._decoder.decode(opened, topic, partition)
        if not causes and not decoded.rejected:
            return decoded
        offsets = batch.column("offset").to_pylist()
        sealed = {offsets[row]: values[row].as_py() for row in rows.tolist()}
        refused = [_refused(batch.slice(row, 1), causes[row]) for row in sorted(causes)]
        letters = [*refused, *(_sealed_again(one, sealed) for one in decoded.rejected)]
        return Decoded(decoded.rows, sorted(letters, key=lambda one: one.offset), decoded.erased)


def _refused(record: pa.RecordBatch, cause: str) -> Rejected:
    """A record that is not decrypted, by the decoder's own means."""
    (found,) = rejected(record, [(0, cause)])
    return found


def _sealed_again(letter: Rejected, sealed: dict[int, bytes]) -> Rejected:
    """The record as it was, and no value of it in the cause."""
    if letter.offset not in sealed:
        return letter
    return replace(
        letter,
        value=sealed[letter.offset],
        cause="after decryption: " + letter.cause.partition(":")[0],
    )
