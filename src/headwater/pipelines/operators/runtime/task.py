"""The second stage: a Spark task that runs an operator's step over its buckets and commits state.

State is versioned by the number of the micro-batch, which Spark fixes together with its offsets
before it runs: a batch that runs again finds the state that it found the first time, and gives the
same result.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import Operator
from headwater.pipelines.operators.runtime.unpacking import Packet, packets_in, unpacked
from headwater.pipelines.operators.runtime.watermark_rows import watermark_rows
from headwater.pipelines.operators.state.manifests import Reports, required_manifest
from headwater.pipelines.operators.state.state_files import FileState, MemoryState
from headwater.pipelines.operators.state.state_store import StateDirectory, state_directory

if TYPE_CHECKING:
    from pyspark import Accumulator

STATE_CONF: Final = "spark.headwater.state.dir"
STATE_DIRECTORY: Final = "headwater.state"  # a local property of Spark's: where the query has it
_COMMITS: Final = 4  # at once, of one task
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True)
class OperatorTask:
    """Called by Spark in each task with the packets of its buckets. Those of a stream come in any
    order; those of a bounded run are sorted, so that only one bucket at a time is in memory.
    """

    name: str
    operator: Operator
    buckets: int
    schemas: tuple[pa.Schema, ...]
    directory: str | None
    is_stream: bool
    reports: "Accumulator[Reports] | None" = None  # of committed manifests, for the driver

    @property
    def __name__(self) -> str:
        """Spark shows it in plans, where `naming.is_operator` finds it."""
        return self.name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headwater.pipelines.source.reading import settle

        rows: Iterable[Packet] = (row for batch in batches for row in packets_in(batch))
        if self.is_stream:
            rows = sorted(rows, key=lambda row: (row.bucket, row.side, row.task, row.number))
        # A commit mostly waits for the disk, which syncs several files at once.
        with ThreadPoolExecutor(_COMMITS) as pool:
            pending: deque[Future[None]] = deque()
            for bucket, packets in groupby(rows, key=lambda row: row.bucket):
                state = self._state(bucket)
                result = self.operator.step(state, unpacked(packets, self.schemas))
                if len(pending) == _COMMITS:  # bounds the states in memory
                    pending.popleft().result()
                if isinstance(state, FileState):
                    pending.append(pool.submit(self._commit, state))
                yield from result.cast(self.operator.output).combine_chunks().to_batches()
                yield from watermark_rows(self.operator, self.name, state)
            for commit in pending:
                commit.result()
        settle()

    def _commit(self, state: FileState) -> None:
        manifest = state.commit()
        if self.reports is not None:
            self.reports.add({state.path: (state.batch, manifest)})

    def _state(self, bucket: int) -> FileState | MemoryState:
        from pyspark import TaskContext

        if not self.is_stream:
            return MemoryState()
        context = TaskContext.get()
        assert context is not None
        batch, query = context.getLocalProperty(_BATCH_ID), context.getLocalProperty(_QUERY_ID)
        address = context.getLocalProperty(STATE_DIRECTORY)
        is_begun = address is not None  # by the pipeline's driver
        directory: StateDirectory | None = None
        if address is not None:
            directory = state_directory(address)
        elif self.directory is not None:
            directory = state_directory(self.directory) / str(query)
        if batch is None or directory is None:
            raise PipelineError(
                f"{self.name} has no directory for its state",
                hint=f"a pipeline has one; elsewhere set {STATE_CONF}, to a directory that all"
                " executors share, or to s3://bucket/prefix",
            )
        required = None
        if is_begun:
            required = required_manifest(directory, int(batch), self.name, bucket)
        return FileState(
            directory / self.name,
            bucket,
            int(batch),
            buckets=self.buckets,
            is_begun=is_begun,
            required=required,
        )
