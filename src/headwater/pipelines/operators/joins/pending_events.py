"""Pending events of an as-of join in its state: one table for each batch that has some.

So a batch writes only its own events, and reads only tables with events that are ready.
"""

from collections.abc import Collection, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import State
from headwater.pipelines.operators.state.column_evolution import with_columns_of
from headwater.pipelines.operators.state.key_groups import Share

PENDING_UNTIL: Final = "__waits"  # int64: until the table has been read past this time
_NAME: Final = "waiting"


class PendingEvents:
    """Of one bucket, in one batch. In the document: [number, least PENDING_UNTIL, rows, oldest]."""

    def __init__(self, state: State, key: Collection[str]) -> None:
        self._state = state
        self._key = key
        self._segments: list[list[int]] = state.document.get(_NAME, [])

    def rescale(self, before: Sequence[State], share: Share, asked: str) -> int:
        """The events of the share (contract.Rescalable); those of a key stay in their order.
        Returns their number.
        """
        self._segments = []
        for state in before:
            for number, *_ in state.document.get(_NAME, ()):
                segment = state.table(f"{_NAME}-{number}")
                assert segment is not None
                events = segment.filter(pa.array(share.of_rows(segment, list(self._key))))
                if len(events):
                    described = _described(1 + len(self._segments), events, asked)
                    self._segments.append(described)
                    self._state.put(f"{_NAME}-{described[0]}", events)
        self._state.document[_NAME] = self._segments
        return len(self)

    def copy(self, before: State) -> int:
        """The events of another bucket, where all buckets have the same. Returns their number."""
        self._segments = self._state.document[_NAME] = list(before.document.get(_NAME, []))
        for number, *_ in self._segments:
            self._state.put(f"{_NAME}-{number}", before.table(f"{_NAME}-{number}"))
        return len(self)

    def release(self, new: pa.Table, before_us: int, asked: str) -> pa.Table:
        """Events whose PENDING_UNTIL is before `before_us`, in the order in which they came; the
        others stay. `asked` is the column with the time of the version that they need.
        """
        released, remaining = [], []
        for number, least_us, rows, oldest_us in self._segments:
            if least_us >= before_us:
                remaining.append([number, least_us, rows, oldest_us])
                continue
            name = f"{_NAME}-{number}"
            segment = self._state.table(name)
            assert segment is not None
            segment = with_columns_of(new.schema, segment, self._key)
            is_ready = pc.less(segment[PENDING_UNTIL], before_us)
            released.append(segment.filter(is_ready))
            left = segment.filter(pc.invert(is_ready))
            self._state.put(name, left if len(left) else None)
            if len(left):
                remaining.append(_described(number, left, asked))
        is_ready = pc.less(new[PENDING_UNTIL], before_us)
        released.append(new.filter(is_ready))
        left = new.filter(pc.invert(is_ready))
        if len(left):
            number = 1 + max((entry[0] for entry in self._segments), default=0)
            self._state.put(f"{_NAME}-{number}", left)
            remaining.append(_described(number, left, asked))
        self._segments = self._state.document[_NAME] = remaining
        return pa.concat_tables(released)

    def __len__(self) -> int:
        return sum(rows for _, _, rows, _ in self._segments)

    def oldest_us(self) -> int | None:
        """The least time of a version that any of them needs."""
        return min((oldest for *_, oldest in self._segments), default=None)


def _described(number: int, rows: pa.Table, asked: str) -> list[int]:
    return [number, pc.min(rows[PENDING_UNTIL]).as_py(), len(rows), pc.min(rows[asked]).as_py()]
