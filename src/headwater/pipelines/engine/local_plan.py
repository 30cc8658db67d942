"""A write's plan, cut into segments at its sources and operators, to be run in the driver.

    source ──▶ segment ──▶ operator ──▶ segment ──▶ … ──▶ segment ──▶ store

Spark analyses the whole plan once. Between two cuts it is a segment (segments.py), which Spark
evaluates; an operator's step is called directly (local_operator.py).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import PipelineError
from headwater.pipelines.engine.segments import Segment, Segments, segments_of
from headwater.pipelines.flow import Write
from headwater.pipelines.operators.runtime.contract import FollowsClock
from headwater.pipelines.operators.runtime.log_order import SORTED_BY_POSITION
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.runtime.packing import Packing
from headwater.pipelines.operators.time.event_time import EventTime, ProcessingTime
from headwater.pipelines.plans import drops_watermark_rows
from headwater.pipelines.source.options import SourceOptions, read_options

_SOURCE: Final = "StreamingRelationV2"
_OURS: Final = "headwater"
_PYTHON: Final = "MapInArrow"
# Steps of a stream that need no state between batches. What else there is runs as a streaming
# query of Spark's: aggregations, deduplication, joins of streams, other sources.
_STATELESS: Final = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "Union",
        "Generate",
        "Expand",
        _PYTHON,
        "MapInPandas",
        "RepartitionByExpression",
        "Repartition",
        "ResolvedHint",
    }
)
_STATIC_JOINS: Final = ("Inner", "LeftOuter", "LeftSemi", "LeftAnti")


class NotLocal(PipelineError):
    """The plan has a step that only a streaming query of Spark's can run."""


@dataclass(frozen=True)
class Source:
    """A stream at the bottom of the plan."""

    number: int  # among the distinct ones of the plan
    options: SourceOptions
    schema: StructType

    @property
    def no_rows(self) -> pa.Table:
        return to_arrow_schema(self.schema, timezone="UTC").empty_table()


@dataclass(frozen=True)
class OperatorSide:
    """What an operator gets of one input."""

    segment: "SegmentPlan"
    packing: Packing
    is_sorted: bool  # whether its rows are put into the order of the log first

    @property
    def before(self) -> str | None:
        """The operator before, whose output watermark it gets."""
        if not self.packing.has_watermark_rows:
            return None
        (operator,) = self.segment.inputs
        assert isinstance(operator, OperatorPlan)
        return operator.name


@dataclass(frozen=True)
class OperatorPlan:
    built: Built
    sides: tuple[OperatorSide, ...]

    @property
    def name(self) -> str:
        return self.built.name

    @property
    def follows_clock(self) -> bool:
        """Whether its results can change although no record arrives: by processing time, or by a
        partition that becomes idle.
        """
        return isinstance(self.built.operator, FollowsClock) or any(
            isinstance(stamping := side.packing.stamping, ProcessingTime)
            or (isinstance(stamping, EventTime) and stamping.idle_us is not None)
            for side in self.sides
        )


@dataclass(frozen=True)
class SegmentPlan:
    """A segment, and where the rows of its inputs come from."""

    segment: Segment
    inputs: tuple[Source | OperatorPlan, ...]

    def __iter__(self) -> Iterator["SegmentPlan"]:
        """All segments, those below first."""
        for given in self.inputs:
            if isinstance(given, OperatorPlan):
                for side in given.sides:
                    yield from side.segment
        yield self


@dataclass(frozen=True)
class LocalPlan:
    """A whole write."""

    top: SegmentPlan
    sources: tuple[Source, ...]
    # Of each stream in the plan, in the order in which Spark records their offsets, the number of
    # its source: a frame that is used twice is one source (and in Spark one stream).
    slots: tuple[int, ...]
    segments: Segments

    @property
    def follows_clock(self) -> bool:
        return any(
            isinstance(given, OperatorPlan) and given.follows_clock
            for part in self.top
            for given in part.inputs
        )

    def explain(self) -> str:
        """For people: the optimised plans of all segments, those next to the sources first."""
        return "== Optimized Logical Plan (run in the driver) ==\n" + "\n".join(
            part.segment.plan for part in self.top
        )

    def close(self) -> None:
        """In the thread that has run it."""
        for part in self.top:
            part.segment.close()
        self.segments.disconnect()


def plan_locally(write: Write) -> LocalPlan:
    """Raises NotLocal."""
    segments = segments_of(write.frame.sparkSession)
    cutter = _Cutter(segments, {operator.name: operator for operator in write.operators})
    node: Any = write.frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    try:
        top = cutter.segment(node)
    except BaseException:
        for segment in cutter.segments_made:
            segment.close()
        raise
    plan = LocalPlan(top, tuple(cutter.sources), tuple(cutter.slots), segments)
    clusters = {
        (source.options.bootstrap, source.options.client, source.options.isolation)
        for source in plan.sources
    }
    if len(clusters) != 1:
        plan.close()
        raise NotLocal("sources of several clusters, or none, run as a streaming query of Spark's")
    return plan


class _Cutter:
    def __init__(self, segments: Segments, operators: Mapping[str, Built]) -> None:
        self._segments = segments
        self._operators = operators
        self._nodes: list[Any] = []  # of the sources
        self._plans: dict[str, OperatorPlan] = {}
        self.sources: list[Source] = []
        self.slots: list[int] = []
        self.segments_made: list[Segment] = []

    def segment(self, node: Any) -> SegmentPlan:
        nodes: list[Any] = []
        inputs: list[Source | OperatorPlan] = []
        self._cut(node, nodes, inputs)
        segment = self._segments.add(node, nodes, _schema(node))
        self.segments_made.append(segment)
        return SegmentPlan(segment, tuple(inputs))

    def _cut(self, node: Any, nodes: list[Any], inputs: list[Source | OperatorPlan]) -> None:
        name = node.nodeName()
        if not node.isStreaming():
            return
        if name == _SOURCE:
            nodes.append(node)
            inputs.append(self._source(node))
        elif name == _PYTHON and (built := self._operators.get(node.functionExpr().name())):
            nodes.append(node)
            inputs.append(self._operator(node, built))
        elif drops_watermark_rows(node):  # which there are none of in the driver
            (operator,) = _children(node)
            nodes.append(node)
            inputs.append(self._operator(operator, self._operators[operator.functionExpr().name()]))
        elif name in _STATELESS or _is_static_join(node):
            children = _children(node)
            if name == "Union" and not all(child.isStreaming() for child in children):
                raise NotLocal("a union of a stream and a table is refused by Spark")
            for child in children:
                self._cut(child, nodes, inputs)
        else:
            raise NotLocal(f"{name} runs as a streaming query of Spark's")

    def _source(self, node: Any) -> Source:
        if node.sourceName() != _OURS:
            raise NotLocal(f"the source {node.sourceName()} runs as a streaming query of Spark's")
        number = next((at for at, other in enumerate(self._nodes) if other.equals(node)), None)
        if number is None:
            number = len(self._nodes)
            options = read_options(dict(node.extraOptions().asCaseSensitiveMap()))
            self._nodes.append(node)
            self.sources.append(Source(number, options, _schema(node)))
        self.slots.append(number)
        return self.sources[number]

    def _operator(self, node: Any, built: Built) -> OperatorPlan:
        if built.name in self._plans:  # a frame that is used twice
            for source in _sources(node):
                self._source(source)
        else:
            self._plans[built.name] = self._new_operator(node, built)
        return self._plans[built.name]

    def _new_operator(self, node: Any, built: Built) -> OperatorPlan:
        sides = []
        for number, packed in enumerate(_packings(node)):
            (rows,) = _children(packed)
            is_sorted = (
                rows.nodeName() == _PYTHON and rows.functionExpr().name() == SORTED_BY_POSITION
            )
            if is_sorted:
                (moved,) = _children(rows)
                (rows,) = _children(moved)
            sides.append(OperatorSide(self.segment(rows), built.packings[number], is_sorted))
        return OperatorPlan(built, tuple(sides))


def _sources(node: Any) -> Iterator[Any]:
    """In pre-order."""
    if node.nodeName() == _SOURCE:
        yield node
    for child in _children(node):
        yield from _sources(child)


def _packings(node: Any) -> Iterator[Any]:
    """The nodes below an operator that pack its inputs."""
    for child in _children(node):
        if child.nodeName() == _PYTHON and child.functionExpr().name() == Packing.__name__:
            yield child
        else:
            yield from _packings(child)


def _is_static_join(node: Any) -> bool:
    """A join of the stream with what is no stream, read again for each batch."""
    if node.nodeName() != "Join":
        return False
    left, right = _children(node)
    return (
        left.isStreaming() and not right.isStreaming() and str(node.joinType()) in _STATIC_JOINS
    ) or (right.isStreaming() and not left.isStreaming() and str(node.joinType()) == "Inner")


def _children(node: Any) -> list[Any]:
    found = node.children()
    return [found.apply(at) for at in range(found.size())]


def _schema(node: Any) -> StructType:
    found: StructType = StructType.fromJson(json.loads(node.schema().json()))
    return found
