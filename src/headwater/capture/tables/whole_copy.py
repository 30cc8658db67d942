"""The snapshot of a table without a key: one read of all rows, while the stream goes on.

Such a table cannot be read in chunks, and no key shows which row of the copy a change is about. So
all rows are read at once, by a thread of their own, and the changes that the stream brings of the
table since the read began are buffered. When the rows are in the topic, those changes follow that
the read does not contain. The other tables go on all the time.

    reading       of all rows, in one consistent snapshot
    publishing    of the rows, in pieces between two transactions
    done          the buffered changes follow; from here on the table is like all others

Until it is done the table's stored state is unfinished, and another run restarts the copy. The
buffer is in memory up to BUFFER_BYTES, the rest in a temporary file.
"""

import pickle
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

from headwater.capture.contract import Begin, Chunk, Row, Source, Table, no_temporary_space
from headwater.capture.records.envelope import Shaped

BUFFER_BYTES: Final = 8 << 20


class ChangeBuffer:
    """Buffered records of changes, with the transactions that they belong to, in order."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=BUFFER_BYTES)  # noqa: SIM115
        self._transaction: Begin | None = None

    def add(self, transaction: Begin, records: Iterable[Shaped]) -> None:
        """Raises OSError if there is no room."""
        if transaction is not self._transaction:
            self._transaction = transaction
            pickle.dump(transaction, self._file)
        for record in records:
            pickle.dump(tuple(record), self._file)

    def records(self, unless_in: Chunk) -> Iterator[tuple[int, Shaped]]:
        """Those that the chunk does not contain, each with when its transaction was committed."""
        self._file.seek(0)
        at_ms, is_contained = 0, False
        while True:
            try:
                item: Any = pickle.load(self._file)  # noqa: S301 - our own, of this process
            except EOFError:
                return
            if isinstance(item, Begin):
                at_ms, is_contained = item.ts_ms, unless_in.contains(item)
            elif not is_contained:
                yield at_ms, item

    def close(self) -> None:
        self._file.close()


class WholeCopy:
    """One copy in progress. All but the read is done by the runner's thread."""

    def __init__(self, source: Source, table: Table, kind: str, recent: tuple[Begin, ...]) -> None:
        self.table = table
        self.kind = kind
        self.recent = recent  # transactions that began before: all of them must be in the read
        self.buffer = ChangeBuffer()
        self.chunk: Chunk | None = None  # once its rows are published
        self.rows: Iterator[Row] = iter(())
        self.published_rows = 0
        self.total: int | None = None
        self._source = source
        self._read: Chunk | BaseException | None = None
        self._has_read = threading.Event()

    def start(self, limit_rows: int) -> None:
        name = f"copy-{self.table.id}"
        threading.Thread(target=self._run, args=(limit_rows,), name=name, daemon=True).start()

    def read(self) -> Chunk | None:
        """What was read; None as long as it is not. Raises what the read did."""
        if not self._has_read.is_set():
            return None
        if isinstance(self._read, BaseException):
            raise self._read
        return self._read

    def _run(self, limit_rows: int) -> None:
        try:
            self.total = self._source.estimate_rows(self.table)
            self._read = self._source.read_chunk(self.table, None, limit_rows)
        except OSError as error:
            self._read = no_temporary_space(self.table, error)
        except BaseException as error:
            self._read = error
        finally:
            self._has_read.set()
