"""A pipeline's function, loaded from its file and bound to an environment and a Spark session."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError, PipelineError
from headwater.pipelines.flow import Flow, Write
from headwater.pipelines.operators.runtime.naming import building
from headwater.pipelines.pipeline import Function, failed
from headwater.pipelines.pipeline_file import PipelineFile
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running.environment import Environment
from headwater.pipelines.settings import PipelineSettings

# Functions may name frames (temporary views), and a session has each name only once: the views of
# a trace would replace those of the stream.
_describing = threading.Lock()


@dataclass
class Pipeline:
    """A pipeline's function, and the environment that it runs in."""

    settings: PipelineSettings
    function: Function
    environment: Environment
    spark: SparkSession
    file: PipelineFile | None = None  # where the function was loaded from
    file_error: HeadwaterError | None = None  # why its changed file is not in use

    @property
    def name(self) -> str:
        return self.settings.name

    def flow(self, reader: LiveReader | None = None, *, now_us: int | None = None) -> Flow:
        """What the function describes. Raises PipelineError if it fails, or describes nothing.
        `now_us` is the time of a bounded run that repeats an earlier one.
        """
        if reader is None:
            reader = LiveReader(self.spark, self.environment.log, self.settings)
        flow = Flow(self.spark, self.name, reader, self.environment.sinks, now_us=now_us)
        return described(flow, self.function)


def described(flow: Flow, function: Function) -> Flow:
    """The flow after the function has described its writes. Raises PipelineError if it fails, or
    describes nothing.
    """
    try:
        with _describing, building(flow.name, flow.now_us) as built:
            function(flow)
            flow.unrepeatable = built.unrepeatable
    except HeadwaterError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(flow.name, error) from error
    if not flow.writes:
        raise PipelineError(f"pipeline {flow.name} writes nothing", hint="flow.write(…) does")
    return flow


def pipelines_of(
    settings: Sequence[PipelineSettings],
    base: Path,
    environment: Environment,
    start: Callable[[], SparkSession],
) -> list[Pipeline]:
    """Loads all files before it starts Spark, so that a mistake is reported at once."""
    files = [PipelineFile(pipeline, base) for pipeline in settings]
    spark = start()
    return [
        Pipeline(pipeline, file.function, environment, spark, file)
        for pipeline, file in zip(settings, files, strict=True)
    ]


def write_named(flow: Flow, name: str) -> Write:
    """Raises PipelineError."""
    for write in flow.writes:
        if name in (write.name, write.table):
            return write
    raise PipelineError(
        f"pipeline {flow.name} does not write {name}",
        detail="it writes " + ", ".join(write.name for write in flow.writes),
    )
