"""Applies the batches of a write to its store; also the `foreachBatch` function of a query.

offsets/<batch>  ──▶  offset range of the batch            (written by Spark before it runs)
DataFrame        ──▶  Arrow, in the order of the log
computing        ──▶  the state that operators read and write (manifests.py)
computed         ──▶  late rows of operators, into their topic (late_rows.py)
writer.apply     ──▶  rows and position in one transaction (retried while the store does not
                      answer; the other pipelines continue meanwhile)

Of a large batch of a query, the rows stay in tasks, if the store can take them from there:

DataFrame        ──▶  tasks stage its rows in the store, and return tokens (staging_tasks.py)
writer.commit    ──▶  these rows and the position in one transaction

What tasks cannot stage (a TRUNCATE, a row that the store refuses) is computed again and applied in
the first way.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.errors import (
    Fenced,
    HeadwaterError,
    NotStaged,
    PipelineError,
    SinkError,
    StoreDiverged,
    StoreUnreachable,
)
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.running.row_order import check_truncates, in_log_order
from headwater.pipelines.running.staging_tasks import StagingTasks, columns_of
from headwater.sinks.contract import (
    Batch,
    Offsets,
    Position,
    Refuse,
    StagingWriter,
    Store,
    Writer,
    is_applied,
)

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_CLOSING_S: Final = 10.0  # for a transaction in flight
_NO_ROWS: Final = pa.table({})

_Write: TypeAlias = Callable[[Writer], None]


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
        tasks: StagingTasks | None = None,
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
        self._tasks = tasks
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
            self.run(batch_id, compute, frame)
        except Exception as error:
            self.error = error
            # Spark searches the text of what is raised here, traceback and all, with a regular
            # expression that overflows Java's stack when it is long. So it gets a short one.
            raise _BatchFailed(type(error).__name__) from None

    def run(
        self, batch_id: int, compute: Callable[[], pa.Table], frame: DataFrame | None = None
    ) -> None:
        """Applies the batch whose rows `compute` returns. Its offsets are in the checkpoint. With
        `frame`, which has the same rows, tasks may stage them instead.
        """
        self._before()
        batch = self._batch(batch_id)
        if frame is None or not self._is_staged(batch, frame):
            rows = in_log_order(compute())
            offsets = batch.offsets
            check_truncates(
                rows, {topic: ends for topic, ends in offsets.items() if self._rows_of(topic)}
            )
            self._apply(replace(batch, rows=rows))
        self._then()

    def _batch(self, batch_id: int) -> Batch:
        """Without its rows."""
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
        return Batch(query, batch_id, starts, offsets, _NO_ROWS)

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

    def _is_staged(self, batch: Batch, frame: DataFrame) -> bool:
        """Whether tasks have staged the batch, and it is applied. If not, the driver has to."""
        tasks = self._tasks
        if tasks is None or not isinstance(self._writer, StagingWriter):
            return False
        if not tasks.are_for(batch, frame):
            return False
        batch = replace(batch, rows=columns_of(frame))
        try:
            self._apply(batch, partial(self._stage, batch, frame, tasks))
        except StoreUnreachable:
            raise
        except SinkError as error:
            level = logging.INFO if isinstance(error, NotStaged) else logging.WARNING
            _log.log(level, "batch %d is applied by the driver: %s", batch.id, error)
            return False
        return True

    def _apply(self, batch: Batch, stage: Callable[[], _Write] | None = None) -> None:
        """`stage` is called before each attempt; without it the batch has its rows."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                write = partial(self._write, batch) if stage is None else stage()
                with self._at_work:
                    self._apply_once(batch, write)
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

    def _write(self, batch: Batch, writer: Writer) -> None:
        writer.apply(batch, self._refuse(batch) if self._refuse else None)

    def _stage(self, batch: Batch, frame: DataFrame, tasks: StagingTasks) -> _Write:
        with self._at_work:
            writer = self._opened(batch)
            assert isinstance(writer, StagingWriter)
            # Of a batch that runs again after a crash, only the state of operators may be missing.
            is_done = is_applied(writer.position, batch)
            staging = None if is_done else writer.staging(batch)
        with self._computing(batch.id):
            tokens = tasks.stage(frame, batch, staging)
        return (lambda _: None) if is_done else (lambda _: writer.commit(batch, tokens))

    def _apply_once(self, batch: Batch, write: _Write) -> None:
        self._check_running()
        if self._published != batch.id:
            self._computed(batch.id)
            self._published = batch.id
        writer = self._opened(batch)
        began_s = time.monotonic()
        write(writer)
        self.store_ms = round((time.monotonic() - began_s) * 1000)

    def _check_running(self) -> None:
        if self._stopping.is_set():
            # The next run may have started already; a new writer here would fence it.
            raise PipelineError("the pipeline was stopped")

    def _opened(self, batch: Batch) -> Writer:
        self._check_running()
        if self._writer is None:
            self._check_alone(batch)
            self._writer = self._store.writer(self._version, self._fields)
        return self._writer

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


def is_final(error: HeadwaterError | None) -> bool:
    """Whether a retry would be harmful or useless."""
    return isinstance(error, Fenced)
