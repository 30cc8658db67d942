"""The contract of derived stores: Store, Writer, Batch, Position, and what they promise.

A pipeline's `flow.write` maintains one *target* (a table, an index, a hash, a topic) of one store.
The driver of the pipeline hands over batch by batch:

    store = store_of(settings, target, …)            sinks/stores.py
    with store.writer(version, fields) as writer:    fences the writer before it
        writer.position                              as the store has it
        writer.apply(batch)                          rows and position, in one transaction

A writer that is a StagingWriter can also take a large batch from tasks on other machines, so that
its rows do not pass through the driver:

    staging = writer.staging(batch)                  batch without rows; staging goes to the tasks
    token = staging.stage(rows, attempt)             in each task: rows beside the table
    writer.commit(batch, tokens)                     in the driver: rows and position, at once

**Exactly once.** A store has its position (query, batch, offsets) in the same transaction as the
rows. Spark runs a batch again after a crash, with the same id and the same offsets; `apply` finds
it in the position and does nothing. It needs no more of Spark than that.

**Versions.** A target has versions 1, 2, …; the one that is live has the target's name, any other
`<name>__v<N>`. Each has a position of its own. `promote` makes another one live, at once for every
reader; a running writer continues with its version, under whatever name.

**Zombies.** `writer` increments the epoch stored with the version's position. `apply` checks
in its transaction that the epoch is still its own, and raises Fenced if it is not.

**Attempts of tasks.** Spark may run a task twice, and a task may wake up after its batch was
committed. What an attempt stages is its own, and counts only if its token is committed, by the
writer that made the staging. What is left over is removed by a later commit or writer.

A store without transactions (webhook, e-mail) states its weaker promise in `Store.guarantee`.
"""

import dataclasses
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import orjson

from headwater.errors import RowRefused, StoreDiverged
from headwater.settings import ClientSettings

if TYPE_CHECKING:  # positions and contracts are read where no Arrow is installed
    import pyarrow as pa

OP: Final = "_op"  # column of a batch: how the row changed. "d": deleted, "t": all rows were
DELETE, TRUNCATE = "d", "t"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly once", "at least once"

# topic → partition → the next offset that has not been read
Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
# Called with the rows that a store refuses, before the rest of their batch is committed.
Refuse: TypeAlias = Callable[[Sequence[RowRefused]], None]


@dataclass(frozen=True, slots=True)
class Target:
    """The table, index, hash or topic that one `flow.write` maintains in a store."""

    owner: str  # the pipeline, or pipeline/write: the name under which the position is stored
    name: str  # table, index, hash, topic, directory: what readers call it
    key: tuple[str, ...]  # columns; () if rows are only ever added
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Log:
    """The address of the log, for stores that are topics, or store their position in one."""

    bootstrap: str
    login: ClientSettings = field(default_factory=ClientSettings)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a version: all records before `offsets` are applied, and none behind."""

    query: str  # of the checkpoint that it was fed from
    batch: int
    offsets: Offsets

    def to_json(self) -> bytes:
        return orjson.dumps(dataclasses.asdict(self), option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def from_json(cls, stored: bytes | str) -> "Position":
        read = orjson.loads(stored)
        return cls(read["query"], read["batch"], offsets_from(read["offsets"]))


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: rows in log order, and the offset range that they come from.

    `rows` has the columns of the writer's `fields` and, if rows can be deleted, OP: DELETE (only
    the key's columns count), TRUNCATE (no column counts: all earlier rows are removed), anything
    else or null: the row as it is now. Without a key all rows are added, and OP is absent.
    """

    query: str
    id: int
    starts: Offsets  # where the batch before it ended; empty for the first of a checkpoint
    offsets: Offsets
    rows: "pa.Table"

    def position(self) -> Position:
        return Position(self.query, self.id, self.offsets)


@dataclass(frozen=True, slots=True)
class Version:
    number: int
    is_live: bool
    position: Position | None  # None: no batch was applied yet
    fields: "pa.Schema"


@dataclass(frozen=True, slots=True)
class Contents:
    """A version as one consistent read sees it: its position, and the rows at that position.
    Columns are those of the version's fields, with their types.
    """

    position: Position | None
    rows: "Iterator[pa.RecordBatch]"


class Writer(ABC):
    """Writes one version of a target. To be used by one thread. Raises errors.SinkError and its
    kinds, and Fenced. After StoreUnreachable a new writer is made, and the batch given to it.
    """

    position: Position | None  # behind the last `apply`, or what was found

    @abstractmethod
    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        """The whole batch and its position, or nothing. A batch that was applied before changes
        nothing. New columns (`batch.rows` has them, the store does not) are added.

        A row that does not fit raises RowRefused (naming row and column); with `refuse` such rows
        are left out and passed to it, before the transaction is committed.
        """

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Staging(ABC):
    """Stages the rows of one batch. Pickled, with the store's credentials, and sent to tasks."""

    is_local: bool = False  # tasks have to be on the driver's machine
    tasks: int | None = None  # the number of tasks that `task_of` distinguishes; None: by the key

    def task_of(self, rows: "pa.RecordBatch") -> "pa.Array":
        """In another task before: the number of the task that gets each row, from 0 on."""
        raise NotImplementedError

    @abstractmethod
    def stage(self, rows: "Iterator[pa.Table]", attempt: str) -> bytes:
        """In a task. Writes its rows where no reader of the table sees them, and returns a token,
        which identifies them. `attempt` is unique among all attempts for this writer.

        With a key, or with `task_of`, `rows` has one table: all rows of the batch with these keys,
        or numbers, in log order.

        Raises NotStaged for rows whose effect depends on those of other tasks (TRUNCATE),
        RowRefused for a row that does not fit, Fenced if the batch was committed meanwhile, and
        SinkError. The driver can `apply` the batch then.
        """


class StagingWriter(Writer):
    """A writer whose batches can be staged by tasks. `apply` and `commit` may take turns."""

    @abstractmethod
    def staging(self, batch: Batch) -> Staging:
        """`batch.rows` is empty, and has the columns that staged rows will have. Changes nothing in
        the store. Raises NotStaged for a batch that only `apply` can write, and StoreRefused for a
        column that does not fit.
        """

    @abstractmethod
    def commit(self, batch: Batch, tokens: Sequence[bytes]) -> None:
        """The staged rows of these attempts and the batch's position, or nothing; promises what
        `apply` does. `batch` is that of `staging`, by this writer. Raises StoreUnreachable also if
        staged rows are gone (the store was restarted).
        """


class Store(ABC):
    """One target in one store, with all its versions."""

    guarantee: str = EXACTLY_ONCE
    can_promote: bool = True  # whether another version can become the live one

    @abstractmethod
    def check(self) -> None:
        """Raises what would prevent writing (StoreUnreachable, StoreRefused, ConfigError) before
        a pipeline starts. Changes nothing.
        """

    @abstractmethod
    def versions(self) -> list[Version]:
        """By number. Empty if nothing was ever written. The first one is live from its start."""

    @abstractmethod
    def writer(self, version: int, fields: "pa.Schema") -> Writer:
        """Fences earlier writers of the version; makes table and position if they are missing
        (version 1 is made live, others are not), adds columns that are new in `fields`.

        A table of that name that is no version of this target is StoreRefused: it belongs to
        another application, and is never written to.
        """

    @abstractmethod
    def promote(self, version: int) -> None:
        """The version is live, and the one that was is not: for every reader at once."""

    @abstractmethod
    def drop(self, version: int) -> None:
        """Removes a version and its position. StoreRefused if it is live."""

    @abstractmethod
    def read(self, version: int) -> AbstractContextManager[Contents]:
        """All rows and the position, in one consistent read that blocks no writer."""

    def close(self) -> None:
        return


def is_applied(stored: Position | None, batch: Batch) -> bool:
    """Whether the store has the batch already. To be asked inside of its transaction.

    Raises StoreDiverged if the batch is not the next one either: the checkpoint was lost, restored
    from an older copy or exchanged, and to continue would lose rows or count them twice.
    """
    if stored is None:
        if batch.starts:  # the first batch of a checkpoint has none
            raise StoreDiverged(
                "the store is empty, but this is not the first batch",
                detail=f"batch {batch.id} of query {batch.query}",
                hint="a rebuild reads the log from its start into a new version of the store",
            )
        return False
    if stored.query != batch.query:
        raise _diverged(stored, batch, "the store was fed from another checkpoint")
    if batch.id <= stored.batch:
        if not _is_within(batch.offsets, stored.offsets):
            raise _diverged(stored, batch, "this batch was applied with other contents")
        return True
    if any(
        stored.offsets.get(topic, {}).get(partition, start) != start
        for topic, partitions in batch.starts.items()
        for partition, start in partitions.items()
    ):
        raise _diverged(stored, batch, "the batch does not begin at the store's position")
    return False


def _is_within(inner: Offsets, outer: Offsets) -> bool:
    return all(
        end <= outer.get(topic, {}).get(partition, -1)
        for topic, partitions in inner.items()
        for partition, end in partitions.items()
    )


def _diverged(stored: Position, batch: Batch, why: str) -> StoreDiverged:
    return StoreDiverged(
        why,
        detail=f"the store is at batch {stored.batch} of query {stored.query}, this is batch"
        f" {batch.id} of query {batch.query}",
        hint="a rebuild reads the log from its start into a new version of the store",
    )


def offsets_from(stored: Mapping[str, Mapping[str | int, int]]) -> Offsets:
    """JSON has strings as keys, where partitions are numbers."""
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in stored.items()
    }


def name_of(target: Target, version: int, *, is_live: bool) -> str:
    """The name of the version's table."""
    return target.name if is_live else f"{target.name}__v{version}"


def fields_to_text(fields: "pa.Schema") -> str:
    """For the position's row. Arrow's own serialization, which is lossless."""
    return b64encode(fields.remove_metadata().serialize().to_pybytes()).decode()


def fields_from_text(stored: str) -> "pa.Schema":
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(b64decode(stored)))
