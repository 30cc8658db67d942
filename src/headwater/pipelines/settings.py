"""What can be set in [spark] and [pipeline.NAME]. Imported with the configuration, so
it stays light.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any

from headwater.pipelines.state_url import StateUrl
from headwater.settings import (
    boolean,
    integer,
    list_of,
    one_of,
    option_text,
    parse_duration_ms,
    parse_size_bytes,
    setting,
    table,
    text,
)
from headwater.subjects.settings import KeyPlaces, SubjectSettings


def _duration_s(value: Any) -> float:
    try:
        return parse_duration_ms(str(value)) / 1000
    except ValueError:
        if value in {0, "0"}:
            return 0.0
        raise


def _state_url(value: Any) -> str:
    return StateUrl.parse(str(value)).address


def _size_bytes(value: Any) -> int:
    size_bytes = parse_size_bytes(str(value))
    if size_bytes < 1 << 16:
        raise ValueError('a size from "64KiB" on')
    return size_bytes


def _share(value: Any) -> float:
    share = float(value)
    if not 0 <= share < 1:
        raise ValueError("a share from 0 to 1, such as 0.01")
    return share


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The [spark] section."""

    master: str = setting(
        "local[*]", text, "Where pipelines run: `local[*]`, `spark://…`, `yarn`, `k8s://…`."
    )
    state_dir: str | None = setting(
        None,
        text,
        "Checkpoints and state of pipelines; on a cluster a directory that all machines share."
        " Default: `pipelines` in the data directory.",
    )
    state_url: str | None = setting(
        None,
        _state_url,
        "State of operators in an S3-compatible store, `s3://bucket/prefix`, so that machines of a"
        " cluster need no shared directory; of pipelines that begin after it was set."
        " `?endpoint=http://host:9000&region=…` for servers other than AWS'. Credentials come from"
        " the environment (AWS_ACCESS_KEY_ID, …). Default: in `state_dir`.",
    )
    driver_memory: str = setting(
        "1g", text, "Memory of Spark's driver (and of all of it, if local)."
    )
    jars: tuple[str, ...] = setting((), list_of(",", text), "Jars to load into Spark.")
    conf: Mapping[str, str] = table(
        option_text, "A table of Spark's own settings, stronger than ours.", underscore="."
    )


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What [pipeline.NAME] and [view.NAME] have in common. A view is a pipeline, too: one that is
    written in SQL.
    """

    name: str
    file: str = setting(
        MISSING, text, "Python file with the function, relative to the config file."
    )
    start: str = setting(
        "earliest",
        one_of("earliest", "latest"),
        "Where a pipeline without a checkpoint begins to read.",
    )
    every: float = setting(
        0.0, _duration_s, "Time between batches; 0 begins the next one when there is something."
    )
    batch_bytes: int = setting(
        64 << 20, _size_bytes, "How much of the log a batch has at most; memory goes by it."
    )
    batch_rows: int = setting(
        1_000_000, integer(1, 1 << 40), "How many records a batch has at most."
    )
    bad_rows: str = setting(
        "stop",
        one_of("stop", "dead-letter"),
        "What happens when a store refuses a row: the pipeline stops, or the row goes to"
        " `<pipeline>.dlq`. Records that cannot be read always go to `<topic>.dlq`.",
    )
    transactions: str = setting(
        "whole",
        one_of("whole", "any"),
        "Where batches end: `whole` is between transactions of the captured databases, so that"
        " no reader of a store sees a part of one; `any` is wherever records have arrived, so that"
        " a topic that is late delays no other.",
    )
    late_alert: float | None = setting(
        None,
        _share,
        "From which share of rows that come too late (or with no usable time) on"
        " `headwater pipeline status` calls the pipeline not well, e.g. `0.01`; of the rows of an"
        " operator within ten minutes. Default: it only counts them.",
    )
    isolated: bool = setting(
        False,
        boolean,
        "Give it a Spark of its own under `headwater up`, so that others cannot slow or end it.",
    )
    decrypt: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "Kinds of subjects (`[subject.NAME]`) whose personal fields it reads in plain text."
        " Default: none; it reads encrypted texts, and its stores hold them.",
    )
    # For `decrypt`: where the keys are, and which fields of which topics are personal.
    keys: KeyPlaces | None = field(default=None, compare=False, repr=False)
    subjects: Mapping[str, SubjectSettings] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings(PipelineSettings):
    """One [pipeline.NAME] section."""

    function: str | None = setting(
        None, text, "The function's name, if the file has several pipelines. Default: NAME."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings(PipelineSettings):
    """One [view.NAME] section."""

    file: str = setting(MISSING, text, "SQL file with one SELECT, relative to the config file.")
    into: str = setting(MISSING, text, "The sink that has the result, or `topic`.")
    schemas: Mapping[str, str] = table(
        option_text, 'Columns of topics that are no captured tables: `clicks = "at timestamp"`.'
    )
    options: Mapping[str, str] = table(
        option_text, "Options of the table in its sink, as those of `flow.write`."
    )
    table: str | None = setting(None, text, "The table, index or topic of the sink. Default: NAME.")
    key: tuple[str, ...] = setting(
        (),
        list_of(",", text),
        "Columns that identify a row of the result. Default: those that the query implies (its"
        " GROUP BY, or the keys of its tables).",
    )
    views: Mapping[str, "ViewSettings"] = field(default_factory=dict, compare=False, repr=False)
