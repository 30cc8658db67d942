"""One micro-batch of Spark into a store: what `foreachBatch` calls.

offsets/<batch>  ──▶  where the batch begins and ends      (noted by Spark before it runs)
DataFrame        ──▶  Arrow, in the order of the log
writer.apply     ──▶  rows and position in one transaction (again and again while the store
                      does not answer; the other pipelines go on meanwhile)
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from headwater.errors import Fenced, HeadwaterError, PipelineError, StoreUnreachable
from headwater.pipelines.checkpoint import Checkpoint
from headwater.pipelines.flow import AT, POSITION
from headwater.sinks.contract import Batch, Position, Refuse, Store, Writer

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0


class Applying:
    """Called by Spark with each batch of one query, one after another, in a thread of Spark's.

    `error` is what ended the query, if it was one of ours: Spark would show it as a text within a
    text of Java's.
    """

    def __init__(
        self,
        store: Store,
        version: int,
        fields: pa.Schema,
        checkpoint: Checkpoint,
        *,
        before: Callable[[], None] = lambda: None,
        refuse: Callable[[Batch], Refuse] | None = None,
        applied: Callable[[Position], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._version = version
        self._fields = fields
        self._checkpoint = checkpoint
        self._before = before
        self._refuse = refuse
        self._applied = applied
        self._writer: Writer | None = None
        self._stopping = threading.Event()
        self.error: HeadwaterError | None = None
        self.waits_for: str | None = None  # why the store does not take the batch just now
        self.position: Position | None = None

    def open(self) -> None:
        """Fences whoever wrote before. Raises what the store says, StoreUnreachable too."""
        self._writer = self._store.writer(self._version, self._fields)
        self.position = self._writer.position

    def stop(self) -> None:
        """A batch that waits for its store is given up; it runs again at the next start."""
        self._stopping.set()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        try:
            self._before()
            self._apply(self._batch(frame, batch_id))
        except HeadwaterError as error:
            self.error = error
            raise

    def _batch(self, frame: DataFrame, batch_id: int) -> Batch:
        query, offsets = self._checkpoint.query(), self._checkpoint.offsets(batch_id)
        if query is None or offsets is None:
            raise PipelineError(
                "the checkpoint was removed while the pipeline ran",
                detail=f"{self._checkpoint.path} does not know batch {batch_id}",
            )
        starts = self._checkpoint.offsets(batch_id - 1) or {} if batch_id else {}
        return Batch(query, batch_id, starts, offsets, in_log_order(frame.toArrow()))

    def _apply(self, batch: Batch) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                if self._writer is None:
                    self._open_again(batch)
                assert self._writer is not None
                self._writer.apply(batch, self._refuse(batch) if self._refuse else None)
                break
            except StoreUnreachable as error:
                if self.waits_for is None:
                    _log.warning("%s; trying again", error)
                self.waits_for = str(error)
                self.close()
                if self._stopping.wait(pause_s):
                    raise
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        if self.waits_for is not None:
            _log.warning("the store answers again")
            self.waits_for = None
        self.position = batch.position()
        self._applied(self.position)

    def _open_again(self, batch: Batch) -> None:
        """The store may have ended our connection because somebody took over while this process
        stood still. Opening would fence them in turn: a writer that wakes up would stop the one
        that works.
        """
        stored = {each.number: each.position for each in self._store.versions()}
        position = stored.get(self._version)
        if position and position.query == batch.query and position.batch > batch.id:
            raise Fenced(
                "another process writes to the store now",
                detail=f"it is at batch {position.batch}, this process at {batch.id}",
            )
        self.open()


def in_log_order(rows: pa.Table) -> pa.Table:
    """A shuffle leaves rows in any order; `_position` has the one of the log. It is not stored,
    nor is `_at`.
    """
    if POSITION in rows.column_names and len(rows) > 1:
        place = rows[POSITION].combine_chunks()
        partition = pc.struct_field(place, "partition").to_numpy(zero_copy_only=False)
        offset = pc.struct_field(place, "offset").to_numpy(zero_copy_only=False)
        if pc.count_distinct(pc.struct_field(place, "topic")).as_py() > 1:
            topic = pc.struct_field(place, "topic").dictionary_encode().indices
            order = np.lexsort((offset, partition, topic.to_numpy(zero_copy_only=False)))
        else:
            order = np.lexsort((offset, partition))
        if not np.array_equal(order, np.arange(len(order))):
            rows = rows.take(pa.array(order))
    return rows.drop_columns([name for name in (AT, POSITION) if name in rows.column_names])


def is_final(error: HeadwaterError | None) -> bool:
    """Whether trying again would do harm, or nothing."""
    return isinstance(error, Fenced)
