"""A store of which every batch is staged by tasks, without Spark: for the contract's tests.

Each `apply` cuts its rows into tasks by key. A task has a second attempt now and then, whose token
nobody gets, and attempts of the batch before wake up when the next one is committed.
"""

import random
from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Fenced, SinkError, StoreUnreachable
from headwater.sinks.contract import (
    Batch,
    Contents,
    Refuse,
    Staging,
    StagingWriter,
    Store,
    Version,
    Writer,
)

TASKS = 3
_attempts = count(1)


class StagedStore(Store):
    def __init__(self, store: Store, key: tuple[str, ...]) -> None:
        self._store = store
        self._key = key
        self.guarantee = store.guarantee
        self.can_promote = store.can_promote

    def check(self) -> None:
        self._store.check()

    def versions(self) -> list[Version]:
        return self._store.versions()

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        writer = self._store.writer(version, fields)
        assert isinstance(writer, StagingWriter)
        return StagedWriter(writer, self._key)

    def promote(self, version: int) -> None:
        self._store.promote(version)

    def drop(self, version: int) -> None:
        self._store.drop(version)

    def read(self, version: int) -> Contents:
        return self._store.read(version)

    def select(self, version: int, selection: object) -> object:
        return self._store.select(version, selection)

    def close(self) -> None:
        self._store.close()


class StagedWriter(Writer):
    def __init__(self, writer: StagingWriter, key: tuple[str, ...]) -> None:
        self.writer = writer
        self._key = key
        self.staged = 0  # batches that were committed in this way
        self._late: tuple[Staging, pa.Table] | None = None

    @property
    def position(self):
        return self.writer.position

    def close(self) -> None:
        self.writer.close()

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        """As a pipeline does: what cannot be staged is applied."""
        columns = batch.rows.schema
        if any(pa.types.is_floating(columns.field(name).type) for name in self._key):
            self.writer.apply(batch, refuse)
            return
        try:
            self._stage_and_commit(batch)
        except (StoreUnreachable, Fenced):
            raise
        except SinkError:
            self.writer.apply(batch, refuse)

    def _stage_and_commit(self, batch: Batch) -> None:
        without_rows = Batch(
            batch.query, batch.id, batch.starts, batch.offsets, batch.rows.schema.empty_table()
        )
        try:
            staging = self.writer.staging(without_rows)
            tokens = [
                token
                for task in tasks_of(batch, self._key, staging)
                for token in attempts(staging, task)
            ]
        except Fenced:
            if self.writer.position is None or batch.id > self.writer.position.batch:
                raise
            tokens = []  # it was applied before
        self.writer.commit(without_rows, tokens)
        self.staged += 1
        self._wake_up()
        rows = batch.rows.slice(0, 5)
        self._late = (staging, rows) if len(rows) else None

    def _wake_up(self) -> None:
        """A task of the batch before this one."""
        if self._late is not None:
            staging, rows = self._late
            try:
                staging.stage(iter([rows]), f"{next(_attempts)}")
            except Fenced:
                return


def tasks_of(batch: Batch, names: tuple[str, ...], staging: Staging) -> list[pa.Table]:
    """The rows of each, in their order. All of one key are in one of them."""
    if staging.tasks is not None:
        return numbered_tasks(batch.rows, staging)
    keys = [batch.rows[name] for name in names if not pa.types.is_nested(batch.rows[name].type)]
    columns = [key.combine_chunks().dictionary_encode().indices.to_pylist() for key in keys]
    tasks: list[list[int]] = [[] for _ in range(TASKS)]
    for row in range(len(batch.rows)):
        key = repr([column[row] for column in columns]) if columns else str(row)
        tasks[sum(key.encode()) % TASKS].append(row)
    return [batch.rows.take(pa.array(rows, pa.int64())) for rows in tasks if rows]


def numbered_tasks(rows: pa.Table, staging: Staging) -> list[pa.Table]:
    numbers = [staging.task_of(some) for some in rows.to_batches()]
    number = pa.chunked_array(numbers, pa.int32())
    assert len(number) == len(rows)
    return [
        rows.filter(pc.equal(number, task))
        for task in reversed(range(staging.tasks))
        if pc.any(pc.equal(number, task)).as_py()
    ]


def attempts(staging: Staging, rows: pa.Table) -> Iterator[bytes]:
    """The token of the attempt that is accepted; now and then there is another one."""
    rng = random.Random(len(rows))
    if rng.random() < 0.3:
        staging.stage(iter([rows]), f"{next(_attempts)}")
    yield staging.stage(iter([rows]), f"{next(_attempts)}")
    if rng.random() < 0.3:
        staging.stage(iter([rows]), f"{next(_attempts)}")
