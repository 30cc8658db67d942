"""The publisher: records of the Kafka transaction in progress, and their position."""

import time
from dataclasses import replace

from headwater.capture import positions
from headwater.capture.contract import Begin, Lag, LogPosition, SourcePosition
from headwater.capture.positions import CapturePosition, TableState
from headwater.capture.publishing.topics import Topics
from headwater.capture.publishing.writer import Writer
from headwater.capture.records.envelope import Shaped


class Publisher:
    """The runner's and the tables' side of the writer.

    Whatever is appended while a source transaction is in progress becomes durable with it; what is
    appended between two (a chunk of a copy, the state of a table) is closed by `settle`.
    """

    def __init__(
        self, capture: str, writer: Writer, topics: Topics, position: CapturePosition
    ) -> None:
        self._capture = capture
        self.writer = writer
        self.partitions = topics.partitions
        self.position = position  # of what is appended
        self.transaction: Begin | None = None  # of the source, in progress
        self.lag = Lag()  # stored with the position
        self.written_s = time.monotonic()
        self._is_open = False
        self._stored: SourcePosition | None = None

    @property
    def has_moved(self) -> bool:
        """Whether the position differs from the one that was stored last."""
        return self.position.position != self._stored

    def open(self) -> None:
        """Before the first record of what belongs together; again does no harm."""
        if not self._is_open:
            self.writer.begin()
            self._is_open = True

    def append(self, records: list[Shaped]) -> None:
        self.open()
        at_ms = self.transaction.ts_ms if self.transaction is not None else now_ms()
        for topic, key, value, headers in records:
            self.writer.append(topic, self.partitions[topic], key, value, headers, at_ms)

    def put_state(self, table_id: str, state: TableState | None) -> None:
        """The state of a table; None: it was dropped."""
        self.open()
        value = positions.encode_table(state) if state is not None else None
        self.writer.state(positions.key_of(self._capture, table_id), value)

    def settle(self) -> None:
        """Between two source transactions: what was appended is whole."""
        if self._is_open and self.transaction is None:
            self.store()

    def store(self, transactions: int = 0) -> None:
        """Writes the position, with what was appended."""
        self._is_open = False
        self.writer.commit(replace(self.position, lag=self.lag), transactions)
        self.written_s = time.monotonic()
        self._stored = self.position.position

    def store_end(self) -> None:
        """Marks the end of this process in the position, so that its status is not "running". Not
        if that would commit half a transaction: then the stale position shows it.
        """
        if self.transaction is None and not self._is_open:
            self.position = replace(self.position, has_ended=True)
            self.store()

    def end(self) -> None:
        """The source transaction is whole. If nothing of it is ours, its position can wait."""
        assert self.transaction is not None
        self.position = replace(
            self.position,
            position=SourcePosition(self.transaction.at),
            ts_ms=self.transaction.ts_ms,
            delay_ms=max(0, now_ms() - self.transaction.ts_ms),
            counts={},
            last=self.transaction,
        )
        self.transaction = None
        if self._is_open:
            self.store(transactions=1)

    def split(self, changes: int, counts: dict[str, int]) -> None:
        """So many changes of the transaction in progress are to be durable before its end."""
        assert self.transaction is not None
        self.position = replace(
            self.position,
            position=SourcePosition(self.transaction.at, changes),
            ts_ms=self.transaction.ts_ms,
            counts=counts,
        )
        self.store()
        self.open()

    def moved(self, position: LogPosition) -> None:
        """Nothing happened up to there. A transaction that is half done is where we are still."""
        if self.position.position.changes is not None:
            return
        self.position = replace(self.position, position=SourcePosition(position))

    def saw_signal(self, offset: int) -> None:
        self.position = replace(self.position, signals=offset + 1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
