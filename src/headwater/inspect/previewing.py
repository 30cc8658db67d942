"""`hw.flow` and `hw.preview`: frames over the last records of the log, for notebooks."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import orjson
from pyspark.sql import DataFrame, SparkSession

from headwater import config
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import PipelineError
from headwater.inspect.pipelines import spark_of
from headwater.pipelines.flow import Flow, Schema
from headwater.pipelines.offsets import by_topic
from headwater.pipelines.reading import BoundedReader
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import explained
from headwater.sinks.contract import Log, Offsets

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

_NAME: Final = "preview"
_LAST: Final = 10_000


def flow(last: int = _LAST, *, loaded: config.Config | None = None) -> Flow:
    """A flow outside of a pipeline, for a notebook: `flow.changes(topic)` has the last records of
    the topic, at most `last`, as the log has them now; tables of `hw.enrich` are read whole. Frames
    are not streams: all of Spark works on them. Reads headwater.toml, as the commands do.
    """
    loaded = loaded or config.load()
    spark = SparkSession.getActiveSession() or spark_of(loaded, "headwater preview")
    log = Log(loaded.bootstrap(), loaded.client)
    return Flow(spark, _NAME, _TailReader(spark, log, last), dict(loaded.sinks))


def preview(frame: DataFrame, rows: int = 20) -> "pd.DataFrame":
    """The first rows of a frame of `hw.flow()`, which a notebook shows as a table. Raises
    PipelineError, in short, with the line if the user's code fails.
    """
    if not isinstance(frame, DataFrame):
        raise PipelineError(
            f"what is to be shown is no DataFrame: it is {type(frame).__name__}",
            hint="hw.testing.run gives the rows of a whole pipeline; windows become a frame by"
            " .agg(…)",
        )
    if frame.isStreaming:
        raise PipelineError(
            "the frame is a stream, which has no first rows",
            hint="take it from hw.flow(), which has the last records of each topic",
        )
    try:
        return frame.limit(rows).toArrow().to_pandas()
    except Exception as error:
        failure = explained(_NAME, error)
        raise PipelineError(failure.what, detail=failure.detail) from error


class _TailReader(BoundedReader):
    """The last records of each topic. The end of a topic is that of its first use, so that all
    frames of a flow show the same records.
    """

    def __init__(self, spark: SparkSession, log: Log, last: int) -> None:
        self._ends: dict[str, Mapping[int, int]] = {}
        super().__init__(spark, log, PipelineSettings(_NAME, file=""), self._ends)
        self._last = last
        self._starts: dict[str, Mapping[int, int]] = {}

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        with Fetcher(self.log.bootstrap, self.log.login) as fetcher:
            names = (
                topic.split(",") if topic else fetcher.topics_like(re.compile(options["pattern"]))
            )
            for name in names:
                if name not in self._ends:
                    self._find(fetcher, name)
        starts = {name: self._starts[name] for name in names}
        # The table of hw.enrich has a start of its own.
        start = {"start": orjson.dumps(starts, option=orjson.OPT_NON_STR_KEYS).decode()}
        return super().changes(topic, schema, value, {**start, **options})

    def _find(self, fetcher: Fetcher, topic: str) -> None:
        partitions = [(topic, number) for number in range(fetcher.partitions(topic))]
        earliest: Offsets = by_topic(fetcher.offsets(partitions, EARLIEST))
        self._ends[topic] = by_topic(fetcher.offsets(partitions, LATEST))[topic]
        share = -(-self._last // len(partitions))
        self._starts[topic] = {
            partition: max(earliest[topic][partition], end - share)
            for partition, end in self._ends[topic].items()
        }
