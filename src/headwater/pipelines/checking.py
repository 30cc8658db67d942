"""A pipeline checked before it runs: its file, function and writes are built, no record is read."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headwater.errors import BrokerUnreachable, HeadwaterError, PipelineError, QueryRefused
from headwater.pipelines.flow import AT, TOPICS, Write
from headwater.pipelines.pipeline import failed
from headwater.pipelines.pipeline_file import PipelineFile, imported_by
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running.environment import Environment, open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.views.nodes.join import Join
from headwater.pipelines.views.nodes.result import ResultChanges
from headwater.sinks.contract import OP, Log


@dataclass(frozen=True, slots=True)
class CheckedWrite:
    name: str
    kind: str  # of its sink
    key: tuple[str, ...]
    mode: str  # Spark's output mode
    columns: Mapping[str, str]  # that the store has, to their types in Spark's words
    topics: tuple[str, ...]
    patterns: tuple[str, ...]
    operators: Mapping[str, list[str]]  # names to the columns that rows meet by
    warnings: tuple[str, ...] = ()  # of what may stop it later

    def as_json(self) -> dict[str, Any]:
        return {
            "write": self.name,
            "kind": self.kind,
            "key": list(self.key),
            "mode": self.mode,
            "columns": dict(self.columns),
            "topics": list(self.topics),
            "patterns": list(self.patterns),
            "operators": [{"name": name, "by": by} for name, by in self.operators.items()],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class CheckedPipeline:
    """What a pipeline would write, or why it cannot run."""

    name: str
    file: str
    writes: tuple[CheckedWrite, ...] = ()
    error: HeadwaterError | None = None
    line: str | None = None  # "orders.py:13", if the error comes from the pipeline's files

    def as_json(self) -> dict[str, Any]:
        error = self.error
        return {
            "pipeline": self.name,
            "file": self.file,
            "is_sound": error is None,
            "writes": [write.as_json() for write in self.writes],
            "error": error.what if error else None,
            "detail": error.detail if error else "",
            "hint": error.hint if error else "",
            "line": self.line,
        }


def check_pipeline(
    settings: PipelineSettings,
    base: Path,
    environment: Environment,
    start: Callable[[], SparkSession],
    unreachable: HeadwaterError | None,
) -> CheckedPipeline:
    """`start` is called once the file has been loaded. `unreachable` says that there is no broker:
    then a pipeline can be checked if its function gives the columns of its topics.
    """
    path = base / settings.file
    try:
        file = PipelineFile(settings, base)
        pipeline = Pipeline(settings, file.function, environment, start(), file)
        reader = None
        if unreachable is not None:
            reader = _OfflineReader(pipeline.spark, environment.log, settings, unreachable)
        writes = tuple(_checked(pipeline, write) for write in pipeline.flow(reader).writes)
    except HeadwaterError as error:
        return CheckedPipeline(settings.name, settings.file, (), error, _line_of(error, path))
    return CheckedPipeline(settings.name, settings.file, writes)


def _checked(pipeline: Pipeline, write: Write) -> CheckedWrite:
    _check_stream(pipeline, write)
    open_store(pipeline.environment, pipeline.name, write).close()  # its options; not connected
    sink = pipeline.environment.sinks.get(write.to)
    stored = [field for field in write.frame.schema if field.name not in (OP, AT, POSITION)]
    return CheckedWrite(
        write.name,
        sink.kind if sink else TOPICS,
        write.key,
        write.mode,
        {field.name: field.dataType.simpleString() for field in stored},
        write.topics,
        write.patterns,
        {
            operator.name: list(dict.fromkeys(name for key in operator.keys for name in key))
            for operator in write.operators
        },
        tuple(_warnings(write)),
    )


def _warnings(write: Write) -> Iterator[str]:
    operators = [built.operator for built in write.operators]
    if any(isinstance(one, ResultChanges) and not one.is_unique for one in operators):
        yield (
            f"the query does not imply that {', '.join(write.key)} is unique: two rows of one key"
            " would stop the view"
        )
    if any(isinstance(one, Join) and one.is_product for one in operators):
        yield (
            "a join has no equality of columns of both sides: each change is compared with all"
            " rows of the other side"
        )


def _check_stream(pipeline: Pipeline, write: Write) -> None:
    """Raises what Spark would say when the query starts."""
    frame = write.frame
    if not frame.isStreaming:
        raise PipelineError(
            f"pipeline {pipeline.name}: what is written to {write.name} is no stream",
            detail="it would be written once, and never updated",
            hint="derive it from flow.changes(…)",
        )
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, write.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)  # noqa: SLF001
    except Exception as error:
        found = failed(pipeline.name, error)
        raise PipelineError(
            f"pipeline {pipeline.name}: Spark cannot run {write.name} as a stream",
            detail=found.detail,
        ) from error


class _OfflineReader(LiveReader):
    """Without a broker: the columns of captured tables are not available."""

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        settings: PipelineSettings,
        unreachable: HeadwaterError,
    ) -> None:
        super().__init__(spark, log, settings)
        self._unreachable = unreachable

    def schema_of(self, topic: str) -> StructType:
        raise self._missing(f"the columns of {topic} are")

    def key_of(self, topic: str, options: Mapping[str, str]) -> tuple[str, ...]:
        if options.get("key"):
            return super().key_of(topic, options)
        raise self._missing(f"the key of {topic} is")

    def cleanup_policy(self, topic: str) -> str:
        raise self._missing(f"the cleanup policy of {topic} is")

    def _missing(self, what: str) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"{what} read from the broker, which does not answer",
            detail=self._unreachable.what,
            hint="start it (`headwater broker`, or `headwater up`); a pipeline that gives the"
            " schema and key of its topics needs none, nor does hw.testing.run",
        )


def _line_of(error: HeadwaterError, file: Path) -> str | None:
    """Where in the pipeline's files it was raised, or what it was raised for."""
    if isinstance(error, QueryRefused) and error.place:
        return error.place
    files = {path.resolve() for path in (file, *imported_by(file))}
    raised: BaseException | None = error
    while raised is not None:
        if isinstance(raised, SyntaxError) and raised.filename:
            return f"{Path(raised.filename).name}:{raised.lineno}"
        frames = traceback.extract_tb(raised.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve() in files]
        if own:
            return f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        raised = raised.__cause__
    return None
