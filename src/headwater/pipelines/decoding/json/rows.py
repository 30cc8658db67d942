"""JSON objects in a buffer into columns: vectorised by Arrow's parser, else one by one.

A block that Arrow's parser or a cast refuses is cut into pieces, and those that are refused into
small ones; those that are refused again are read object by object. So one bad record costs little,
and a topic that is full of them some fifteen times what a clean one costs.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from headwater.pipelines.decoding.contract import Rows
from headwater.pipelines.decoding.json import kernels
from headwater.pipelines.decoding.json.nodes import NotVectorised, Struct, Unreadable

_BLOCK_BYTES: Final = 8 << 20
_PIECE_ROWS: Final = 1024  # of a block that is refused
_SMALL_ROWS: Final = 128  # of a piece that is refused
_LOOK_ROWS: Final = 16  # of such a block, to see how values are written there
_TRIALS: Final = 4  # small pieces in a row are refused, and the rest of the block is not tried
_NO_NAMES: Final = np.zeros(0, np.uint8), np.zeros(0, np.int64)

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


@dataclass(slots=True)
class Texts:
    """Texts in a buffer: the i-th is data[starts[i]:ends[i]]."""

    data: Bytes
    starts: Offsets
    ends: Offsets

    @classmethod
    def of(cls, array: pa.Array) -> "Texts":
        """Of a binary or string array. A null is an empty text."""
        _, offsets, data = array.buffers()
        held_bounds = np.frombuffer(offsets, np.int32)
        bounds = held_bounds[array.offset : array.offset + len(array) + 1].astype(np.int64)
        held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return cls(held, bounds[:-1], bounds[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Any) -> "Texts":
        return Texts(self.data, self.starts[rows], self.ends[rows])

    def text(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def joined(self) -> Bytes:
        out = np.empty(int((self.ends - self.starts).sum()) + len(self), np.uint8)
        kernels.join(self.data, self.starts, self.ends, out)
        return out


@dataclass(slots=True)
class Scanned:
    """The result of `scan`."""

    sound: Rows  # which of them are one JSON object each
    causes: list[tuple[int, str]]  # what is wrong with the others
    spans: npt.NDArray[np.int64]  # (text, name, 2): the members' values in the buffer


class Scanner:
    """Finds which texts are JSON objects, and the spans of some of their members' values."""

    def __init__(self, *names: str) -> None:
        self._names, self._name_ends = _NO_NAMES
        if names:
            encoded = [name.encode() for name in names]
            self._names = np.frombuffer(b"".join(encoded), np.uint8)
            self._name_ends = np.cumsum([len(name) for name in encoded]).astype(np.int64)

    def scan(self, texts: Texts) -> Scanned:
        size = len(texts)
        verdicts, error_offsets = np.empty(size, np.uint8), np.empty(size, np.int64)
        spans = np.empty((size, len(self._name_ends), 2), np.int64)
        kernels.scan(
            texts.data, texts.starts, texts.ends, self._names, self._name_ends,
            verdicts, error_offsets, spans,
        )  # fmt: skip
        causes = [
            (row, _verdict(int(verdicts[row]), texts.text(row), int(error_offsets[row])))
            for row in np.flatnonzero(verdicts).tolist()
        ]
        return Scanned(np.flatnonzero(verdicts == 0), causes, spans)


def _verdict(verdict: int, text: bytes, offset: int) -> str:
    if verdict == kernels.EMPTY:
        return "the value is empty"
    if verdict == kernels.TOO_DEEP:
        return f"JSON that is nested more than {kernels.MAX_DEPTH} deep"
    if verdict == kernels.NOT_AN_OBJECT:
        return "JSON, but no object"
    if offset >= len(text):
        return "no JSON: it ends too early"
    found = text[offset : offset + 20].decode(errors="replace")
    return f"no JSON: unexpected {found!r} at byte {offset}"


class RowReader:
    """Reads objects into columns."""

    def __init__(self, row: Struct) -> None:
        self._row = row
        self._types = [node.type for _, node, _ in row.members]

    def read(self, texts: Texts) -> tuple[list[pa.Array], Rows, list[tuple[int, str]]]:
        """The columns, from which text each row is, and what is wrong with the other texts. Each
        text is one JSON object (`Scanner`).
        """
        read = _Read(self._types)
        for first, end in _blocks(texts):
            self._read_block(texts, first, end, read)
        return read.arrays(), np.concatenate([np.zeros(0, np.int64), *read.rows]), read.causes

    def _read_block(self, texts: Texts, first: int, end: int, read: "_Read") -> None:
        if self._read_at_once(texts, first, end, read):
            return
        # Perhaps times are numbers here, and were texts before.
        for row in range(first, min(first + _LOOK_ROWS, end)):
            self._row.follow(texts.text(row).strip())
        if self._read_at_once(texts, first, end, read):
            return
        refused = 0  # small pieces, one after the other
        for at in range(first, end, _PIECE_ROWS):
            until = min(at + _PIECE_ROWS, end)
            if refused < _TRIALS and self._read_at_once(texts, at, until, read):
                continue
            for small in range(at, until, _SMALL_ROWS):
                last = min(small + _SMALL_ROWS, until)
                if refused < _TRIALS and self._read_at_once(texts, small, last, read):
                    refused = 0
                else:
                    refused += 1
                    self._read_singly(texts, small, last, read)

    def _read_at_once(self, texts: Texts, first: int, end: int, read: "_Read") -> bool:
        """False, and nothing is done, if these texts are not all as expected."""
        try:
            wire = self._row.wire()
            table = _parse(texts.take(slice(first, end)).joined(), pa.schema(list(wire)))
            if table.num_rows != end - first:
                return False
            arrays = [_one(table.column(n)) for n in range(table.num_columns)]
            arrays = self._row.cast_members(arrays, None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, NotVectorised):
            return False
        read.add(arrays, np.arange(first, end))
        return True

    def _read_singly(self, texts: Texts, first: int, end: int, read: "_Read") -> None:
        values: list[list[Any]] = [[] for _ in self._types]
        rows = []
        for row in range(first, end):
            try:
                found = self._row.read(texts.text(row).strip())
            except Unreadable as error:
                read.causes.append((row, error.cause))
                continue
            except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError) as error:
                read.causes.append((row, f"it cannot be read: {error}"))
                continue
            rows.append(row)
            for column, value in zip(values, found.values(), strict=True):
                column.append(value)
        arrays = [
            pa.array(column, type_) for column, type_ in zip(values, self._types, strict=True)
        ]
        read.add(arrays, np.array(rows, np.int64))


class _Read:
    """What has been read so far."""

    def __init__(self, types: list[pa.DataType]) -> None:
        self._types = types
        self._pieces: list[list[pa.Array]] = []
        self.rows: list[Rows] = []
        self.causes: list[tuple[int, str]] = []

    def add(self, arrays: list[pa.Array], rows: Rows) -> None:
        self._pieces.append(arrays)
        self.rows.append(rows)

    def arrays(self) -> list[pa.Array]:
        if len(self._pieces) == 1:
            return self._pieces[0]
        return [
            pa.concat_arrays([piece[n] for piece in self._pieces])
            if self._pieces
            else pa.array([], type_)
            for n, type_ in enumerate(self._types)
        ]


def _parse(data: Bytes, schema: pa.Schema) -> pa.Table:
    # Not read_json, which starts a thread for each call: 0.6 ms for a few records.
    reader = pj.open_json(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    return reader.read_all()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _blocks(texts: Texts) -> list[tuple[int, int]]:
    """Neighbouring texts that have some _BLOCK_BYTES together."""
    if not len(texts):
        return []
    until = np.cumsum(texts.ends - texts.starts)
    blocks, first = [], 0
    while first < len(texts):
        before = int(until[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(until, before + _BLOCK_BYTES, "right")))
        blocks.append((first, end))
        first = end
    return blocks


def not_utf8(array: pa.Array) -> list[tuple[int, str]]:
    """Which values of a binary array are no UTF-8."""
    try:
        array.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return []
    causes = []
    for first in range(0, len(array), _PIECE_ROWS):
        piece = array.slice(first, _PIECE_ROWS)
        try:
            piece.cast(pa.string())
        except pa.ArrowInvalid:
            for row, value in enumerate(piece.to_pylist(), first):
                try:
                    (value or b"").decode()
                except UnicodeDecodeError as error:
                    causes.append((row, f"no UTF-8: {error.reason} at byte {error.start}"))
    return causes
