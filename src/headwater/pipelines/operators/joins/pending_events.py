"""Rows that cannot be joined yet, in the state: a table for each batch that had some, so that a
batch writes only its own, and looks only into those that have rows whose time has come.
"""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.column_evolution import with_columns_of

WAITS: Final = "__waits"  # int64: until the time in question is later than this
_NAME: Final = "waiting"


class WaitingRows:
    """Of one bucket, in one batch. In the document: [number, least WAITS, rows, least asked]."""

    def __init__(self, state: State, key: Collection[str]) -> None:
        self._state = state
        self._key = key
        self._segments: list[list[int]] = state.document.get(_NAME, [])

    def release(self, new: pa.Table, before_us: int, asked: str) -> pa.Table:
        """Those whose WAITS is less than `before_us`, in the order in which they came; the others
        stay. `asked` is the column with the time that they will ask for.
        """
        released, kept = [], []
        for number, least_us, rows, oldest_us in self._segments:
            if least_us >= before_us:
                kept.append([number, least_us, rows, oldest_us])
                continue
            name = f"{_NAME}-{number}"
            segment = self._state.table(name)
            assert segment is not None
            segment = with_columns_of(new.schema, segment, self._key)
            is_ready = pc.less(segment[WAITS], before_us)
            released.append(segment.filter(is_ready))
            left = segment.filter(pc.invert(is_ready))
            self._state.put(name, left if len(left) else None)
            if len(left):
                kept.append(_described(number, left, asked))
        is_ready = pc.less(new[WAITS], before_us)
        released.append(new.filter(is_ready))
        left = new.filter(pc.invert(is_ready))
        if len(left):
            number = 1 + max((each[0] for each in self._segments), default=0)
            self._state.put(f"{_NAME}-{number}", left)
            kept.append(_described(number, left, asked))
        self._segments = self._state.document[_NAME] = kept
        return pa.concat_tables(released)

    def __len__(self) -> int:
        return sum(rows for _, _, rows, _ in self._segments)

    def oldest_us(self) -> int | None:
        """The least time that any of them will ask for."""
        return min((oldest for *_, oldest in self._segments), default=None)


def _described(number: int, rows: pa.Table, asked: str) -> list[int]:
    return [number, pc.min(rows[WAITS]).as_py(), len(rows), pc.min(rows[asked]).as_py()]
