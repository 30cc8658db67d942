"""The contract of an operator: a step from state and rows of a batch to state and result rows.

A step works on one bucket of keys, and does not depend on Spark. It is a function of its arguments
alone: no clock, no random number. So a batch that runs again gives the same result, in another
process too. A result that depends on where a batch ends is a defect: the same log must give the
same result however it was cut into batches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headwater.pipelines.operators.state.key_groups import Share

# Columns that packing adds to the rows of an input with event time.
TIME: Final = "__time"  # int64, microseconds since 1970: when it happened; null: no usable time
# int64: the latest TIME of its partition in this batch: of itself, and of lower offsets.
SEEN: Final = "__seen"
FAULT: Final = "__fault"  # int8: 0, or why TIME is null (one of those below)
ORIGIN: Final = "__origin"  # int32: index into Input.origins
OFFSET: Final = "__offset"  # int64

# In State.document: the watermark in microseconds since 1970, the same in all buckets. An operator
# with event time sets it in each step; of several inputs it is the least.
WATERMARK: Final = "watermark_us"
# In State.document: counters of what all buckets have in common, which are not added up.
SHARED_COUNTERS: Final = "shared_counters"

NO_TIME: Final = 1
FUTURE: Final = 2
PUNCTUATION: Final = 3  # it is no event, but a producer's watermark


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far one partition of an input came in a batch. Every bucket gets it, also those that got
    none of the partition's rows.
    """

    topic: str
    partition: int
    seen_us: int | None  # the latest usable time (or Stamper.lead_us); None if no row had one
    # Of its last row. In WATERMARK_PARTITION (position.py): the output watermark of the operator
    # before; `seen_us` is then a bound of all later rows.
    offset: int
    punctuations: tuple[str, ...] = ()  # watermarks of producers (punctuations.py)


@dataclass(frozen=True, slots=True)
class Input:
    """One input's share of a batch, for one bucket."""

    rows: pa.Table  # in log order within each partition
    origins: tuple[tuple[str, int], ...]  # topic and partition that ORIGIN points at
    progress: tuple[PartitionProgress, ...]
    now_us: int  # when the batch was planned; the same when it runs again


class State(Protocol):
    """The state of one bucket from batch to batch."""

    document: dict[str, Any]  # small, JSON; changed in place. The status shows its WATERMARK
    counters: dict[str, int]  # metrics since the state was begun, summed over the buckets

    @property
    def cache(self) -> dict[str, Any]:
        """Objects that an operator has derived from the state, in the memory of this process. It
        may be empty, or of another batch (one that failed, or ran elsewhere since): what is in it
        has to be recognised by something in the document.
        """
        ...

    def table(self, name: str) -> pa.Table | None: ...

    def put(self, name: str, table: pa.Table | None) -> None:
        """A table that is not put stays as it is, and costs nothing: large state is best stored in
        several tables, of which a batch changes few.
        """
        ...

    def side(self, name: str, rows: pa.Table) -> None:
        """Rows for a side output, e.g. "late", which the batch gives out once. More calls add rows,
        also of other columns.
        """
        ...


class Operator(Protocol):
    """Pickled to the workers; it has settings and no state."""

    @property
    def output(self) -> pa.Schema: ...

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        """Rows of one key in the order in which they are to be applied."""
        ...


@runtime_checkable
class ResultsWithPositions(Operator, Protocol):
    """An operator whose results have positions of their own (pipelines/position.py)."""

    def with_topic(self, topic: str) -> Operator:
        """With this topic in its results' positions. It is no setting."""
        ...


@runtime_checkable
class FollowsClock(Operator, Protocol):
    """An operator whose result depends on the time of the batch: it takes part in every batch, and
    in one without records if time alone changes something.
    """

    @property
    def follows_clock(self) -> bool: ...


@runtime_checkable
class Rescalable(Operator, Protocol):
    """An operator whose state can be assigned to another number of buckets. The state of others is
    derived from the log again when that number changes.
    """

    def rescale(self, before: Sequence[State], after: State, share: "Share") -> None:
        """Puts the state of the keys of `share` into `after`, whose tables are empty. `before` are
        the states of all buckets that can have such keys, after the same batch, as later steps
        find them. The document of `after` is a copy of the first one's: what all buckets have in
        common stays as it is, and what follows from a bucket's keys is replaced. The same holds for
        counters that are not sums. Raises StateLost if the state is that of other settings.
        """
        ...


@runtime_checkable
class Watermarked(Operator, Protocol):
    """An operator with an output watermark, by which operators that follow advance, too."""

    @property
    def floors_us(self) -> Mapping[str, int]:
        """Times of the result (position.FLOOR). Empty: the results promise nothing."""
        ...

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """Of a bucket whose State has this document after a step: later results of the bucket have
        these times at or after it. It never goes back; NEVER_US before the first watermark.
        """
        ...


# What packing does with the Arrow batches of one task, one after another: the same batch with TIME,
# SEEN and FAULT added. Each task makes a new one, so it may hold state of earlier batches.
Stamp = Callable[[pa.RecordBatch], pa.RecordBatch]


class Stamping(Protocol):
    """Settings of an input's event time, pickled to the workers."""

    def columns(self) -> tuple[str, ...]:
        """That it reads, besides `_position`."""
        ...

    def check(self, kind: str, schema: "StructType") -> None:
        """When the frame is built. Raises PipelineError unless rows of this schema can be stamped;
        `kind` is whose input they are.
        """
        ...

    def start(self) -> "Stamper": ...


class Stamper(Protocol):
    """Of one task."""

    # Rows of higher offsets are of their offset's time plus this, or later: results of windows.
    lead_us: int | None
    floor_us: int | None  # of its column (position.FLOOR), if the operator before promises one

    def stamp(self, rows: pa.RecordBatch, origins: pa.Array) -> Mapping[str, pa.Array]:
        """TIME, SEEN and FAULT of the rows. `origins` are the rows' partitions as int32."""
        ...

    def punctuations(self, origin: int) -> tuple[str, ...]: ...
