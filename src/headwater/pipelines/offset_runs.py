"""A compact set of offsets: runs of consecutive offsets, in ascending order."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_RUNS: Final = 1 << 15

_Bounds = npt.NDArray[np.int64]  # first, end, first, end, …: ascending


class OffsetRuns:
    """Beyond MAX_RUNS the lowest runs are merged, and the offsets between them count as members:
    those of the oldest records.
    """

    def __init__(self, bounds: _Bounds | None = None) -> None:
        self._bounds = np.zeros(0, np.int64) if bounds is None else bounds

    def has(self, offsets: Sequence[int]) -> list[bool]:
        # An odd number of bounds before an offset: it is inside of a run.
        found = np.searchsorted(self._bounds, np.asarray(offsets, np.int64), "right") % 2 == 1
        return [bool(is_member) for is_member in found]

    def with_offsets(self, offsets: Sequence[int]) -> "OffsetRuns":
        if not offsets:
            return self
        more = np.asarray(offsets, np.int64)
        firsts = np.concatenate([self._bounds[::2], more])
        order = np.argsort(firsts, kind="stable")
        firsts = firsts[order]
        ends = np.maximum.accumulate(np.concatenate([self._bounds[1::2], more + 1])[order])
        begins = np.ones(len(firsts), np.bool_)
        begins[1:] = firsts[1:] > ends[:-1]
        is_last = np.append(begins[1:], True)
        bounds = np.column_stack([firsts[begins], ends[is_last]]).ravel()
        too_many = len(bounds) // 2 - MAX_RUNS
        if too_many > 0:
            bounds = np.concatenate([bounds[:1], bounds[2 * too_many + 1 :]])
        return OffsetRuns(bounds)

    def to_text(self) -> str:
        """Base64 of the compressed differences between the bounds."""
        return b64encode(zlib.compress(np.diff(self._bounds, prepend=0).tobytes())).decode()

    @classmethod
    def from_text(cls, text: str) -> "OffsetRuns":
        """Raises ValueError or zlib.error."""
        data = zlib.decompress(b64decode(text, validate=True))
        return cls(np.cumsum(np.frombuffer(data, np.int64)))
