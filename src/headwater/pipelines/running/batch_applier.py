"""Applies the batches of a write to its store; also the `foreachBatch` function of a query.

offsets/<batch>  ──▶  offset range of the batch            (written by Spark before it runs)
DataFrame        ──▶  Arrow, in the order of the log
computing        ──▶  the state that operators read and write (manifests.py)
computed         ──▶  late rows of operators, into their topic (late_rows.py)
writer.apply     ──▶  rows and position in one transaction (retried while the store does not
                      answer; the other pipelines continue meanwhile)
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headwater.errors import Fenced, HeadwaterError, PipelineError, StoreDiverged, StoreUnreachable
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import AT
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP, TRUNCATE, Batch, Offsets, Position, Refuse, Store, Writer

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_CLOSING_S: Final = 10.0  # for a transaction in flight


class _BatchFailed(Exception):
    """`BatchApplier.error` has the cause."""


class BatchApplier:
    """Called by Spark with each batch of one query, one after another, in a thread of Spark's.

    `error` is the exception that ended the query, if it was raised here: Spark would show it as
    text within text of Java's.
    """

    def __init__(
        self,
        store: Store,
        version: int,
        fields: pa.Schema,
        checkpoint: Checkpoint,
        *,
        rows_of: Callable[[str], bool] = lambda _: True,
        before: Callable[[], None] = lambda: None,
        computing: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        computed: Callable[[int], object] = lambda _: None,
        refuse: Callable[[Batch], Refuse] | None = None,
        applied: Callable[[Position], None] = lambda _: None,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """`applied` is called while the store is in use, `then` afterwards."""
        self._store = store
        self._version = version
        self._fields = fields
        self._checkpoint = checkpoint
        self._rows_of = rows_of
        self._before = before
        self._computing = computing
        self._computed = computed
        self._published: int | None = None  # the batch that `computed` has been called with
        self._refuse = refuse
        self._applied = applied
        self._then = then
        self._writer: Writer | None = None
        self._at_work = threading.Lock()
        self._stopping = threading.Event()
        self.error: Exception | None = None
        self.waits_for: str | None = None  # why the store cannot apply the batch now
        self.position: Position | None = None
        self.store_ms: int | None = None  # how long the store took for the last batch

    def open(self) -> None:
        """Fences the earlier writer. Raises errors of the store, StoreUnreachable too."""
        self._writer = self._store.writer(self._version, self._fields)
        self.position = self._writer.position

    def stop(self) -> None:
        """A batch that waits for its store is abandoned; it runs again at the next start."""
        self._stopping.set()

    def close(self) -> None:
        """Called from another thread than Spark's. Spark does not wait for a running call, so this
        waits a while for its transaction.
        """
        has_waited = self._at_work.acquire(timeout=_CLOSING_S)
        try:
            self._close_writer()
        finally:
            if has_waited:
                self._at_work.release()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        def compute() -> pa.Table:
            with self._computing(batch_id):
                return frame.toArrow()

        try:
            self.run(batch_id, compute)
        except Exception as error:
            self.error = error
            # Spark searches the text of what is raised here, traceback and all, with a regular
            # expression that overflows Java's stack when it is long. So it gets a short one.
            raise _BatchFailed(type(error).__name__) from None

    def run(self, batch_id: int, compute: Callable[[], pa.Table]) -> None:
        """Applies the batch whose rows `compute` returns. Its offsets are in the checkpoint."""
        self._before()
        self._apply(self._batch(compute, batch_id))
        self._then()

    def _batch(self, compute: Callable[[], pa.Table], batch_id: int) -> Batch:
        query, offsets = self._checkpoint.query(), self._checkpoint.offsets(batch_id)
        if query is None or offsets is None:
            raise PipelineError(
                "the checkpoint was removed while the pipeline ran",
                detail=f"{self._checkpoint.path} has no batch {batch_id}",
            )
        starts = self._starts(query, batch_id)
        if starts is None:
            raise PipelineError(
                "the start of the batch is missing",
                detail=f"{self._checkpoint.path} has no batch {batch_id - 1}",
            )
        rows = in_log_order(compute())
        check_truncates(
            rows, {topic: ends for topic, ends in offsets.items() if self._rows_of(topic)}
        )
        return Batch(query, batch_id, starts, offsets, rows)

    def _starts(self, query: str, batch_id: int) -> Offsets | None:
        """Where the batch before it ended: mostly that is where the store is."""
        if not batch_id:
            return {}
        if self.position is not None and (self.position.query, self.position.batch) == (
            query,
            batch_id - 1,
        ):
            return self.position.offsets
        return self._checkpoint.offsets(batch_id - 1)

    def _apply(self, batch: Batch) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                with self._at_work:
                    self._apply_once(batch)
                    self.position = batch.position()
                    self._applied(self.position)  # before `close` returns
                break
            except StoreUnreachable as error:
                if self.waits_for is None:
                    _log.warning("%s; retrying", error)
                self.waits_for = str(error)
                with self._at_work:
                    self._close_writer()
                if self._stopping.wait(pause_s):
                    raise
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        if self.waits_for is not None:
            _log.warning("the store answers again")
            self.waits_for = None

    def _apply_once(self, batch: Batch) -> None:
        if self._stopping.is_set():
            # The next run may have started already; a new writer here would fence it.
            raise PipelineError("the pipeline was stopped")
        if self._published != batch.id:
            self._computed(batch.id)
            self._published = batch.id
        if self._writer is None:
            self._check_alone(batch)
            self._writer = self._store.writer(self._version, self._fields)
        began_s = time.monotonic()
        self._writer.apply(batch, self._refuse(batch) if self._refuse else None)
        self.store_ms = round((time.monotonic() - began_s) * 1000)

    def _check_alone(self, batch: Batch) -> None:
        """Before a new writer takes over. Some stores end the connection of a fenced writer, which
        looks like a store that does not answer: without this check two processes would fence each
        other indefinitely.
        """
        found = next(
            (
                version.position
                for version in self._store.versions()
                if version.number == self._version
            ),
            None,
        )
        if found in (self.position, batch.position()):
            return
        if found is not None and (found.query != batch.query or found.batch >= batch.id):
            raise Fenced(
                "another process writes to the store now",
                detail=f"the store is at batch {found.batch} of query {found.query}, this is batch"
                f" {batch.id} of query {batch.query}",
            )
        raise StoreDiverged(
            "the store is not at the position that it had when it last answered",
            detail=f"it is at batch {found.batch}" if found else "it is empty",
        )


def in_log_order(rows: pa.Table) -> pa.Table:
    """A shuffle leaves rows in any order; `_position` has that of the log: by topic, partition,
    offset, as in `reading.as_table`. It is not stored, nor is `_at`.
    """
    if POSITION in rows.column_names and len(rows) > 1:
        position = rows[POSITION].combine_chunks()
        partition = pc.struct_field(position, "partition").to_numpy(zero_copy_only=False)
        offset = pc.struct_field(position, "offset").to_numpy(zero_copy_only=False)
        topic = pc.struct_field(position, "topic")
        if pc.count_distinct(topic).as_py() > 1:
            order = np.lexsort((offset, partition, pc.rank(topic, tiebreaker="dense").to_numpy()))
        else:
            order = np.lexsort((offset, partition))
        if not np.array_equal(order, np.arange(len(order))):
            rows = rows.take(pa.array(order))
    return rows.drop_columns([name for name in (AT, POSITION) if name in rows.column_names])


def check_truncates(rows: pa.Table, offsets: Offsets) -> None:
    """Raises PipelineError if there is a TRUNCATE, and its order among the rows is undefined:
    partitions have no order among each other, nor have topics. A batch could lose new rows.
    `offsets` are those of the topics whose rows are written; a table that is only used for lookups
    does not count.
    """
    if OP not in rows.column_names or sum(map(len, offsets.values())) <= 1:
        return
    if pc.any(pc.equal(rows[OP], TRUNCATE)).as_py():
        raise PipelineError(
            "a table was truncated or created again, and what is read has several partitions",
            detail=f"the order of the rows is undefined, of {', '.join(sorted(offsets))}",
            hint=f"a topic with one partition has the order; or .where(\"{OP} != '{TRUNCATE}'\")"
            " leaves the old rows in the store",
        )


def is_final(error: HeadwaterError | None) -> bool:
    """Whether a retry would be harmful or useless."""
    return isinstance(error, Fenced)
