"""State of pipelines, read without Spark: configuration, reported status, store positions, lag."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headwater import config, extras
from headwater.errors import HeadwaterError, MissingExtra, UsageError
from headwater.inspect.store_lookup import store_of_write
from headwater.inspect.subjects import personal_topics
from headwater.pipelines.running import status
from headwater.pipelines.settings import PipelineSettings
from headwater.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.running.loaded_pipeline import Pipeline
    from headwater.pipelines.verification.comparison import Verdict
    from headwater.sinks.contract import Offsets, Position, Version

RUNNING, STOPPED, NEW = "running", "stopped", "never ran"
_WELL: Final = (RUNNING,)
_IDLE_S: Final = 10.0  # after which a write that has read everything is idle
_STUCK_S: Final = 60.0  # and one that has not: batches may be rare (`every`)


@dataclass(frozen=True, slots=True)
class WriteState:
    """One write of a pipeline, as far as it can be read."""

    name: str
    reported: dict[str, Any]  # by the process that runs it
    versions: "list[Version]"
    error: str | None  # why the store cannot be read
    ends: "Offsets"
    refused: int  # rows among the dead letters

    @property
    def live(self) -> "Version | None":
        return next((version for version in self.versions if version.is_live), None)

    @property
    def position(self) -> "Position | None":
        return self.live.position if self.live else None

    @property
    def lag(self) -> int | None:
        """In records of the log; None if it cannot be computed."""
        from headwater.pipelines.offsets import lag_records

        if self.error is not None:
            return None
        return lag_records(self.position, self.ends)

    @property
    def idle_s(self) -> float | None:
        """Since the last batch that had records has ended; None before the first."""
        try:
            began = datetime.fromisoformat(str(self.reported.get("at"))).timestamp()
        except ValueError:
            return None
        return max(0.0, time.time() - began - (self.reported.get("batch_ms") or 0) / 1000)

    @property
    def is_idle(self) -> bool:
        """Whether its last batch is outdated: there is nothing to read, or no batch ends."""
        idle_s = self.idle_s
        return idle_s is not None and idle_s > (_STUCK_S if self.lag else _IDLE_S)

    @property
    def operators(self) -> dict[str, dict[str, Any]]:
        """The metrics of each after the last batch, with how far its watermark is behind now."""
        found = {
            name: dict(metrics) for name, metrics in self.reported.get("operators", {}).items()
        }
        for metrics in found.values():
            if metrics.get("watermark_us") is not None:
                metrics["watermark_gap_s"] = time.time() - metrics["watermark_us"] / 1e6
        return found

    @property
    def has_late_alert(self) -> bool:
        return any(operator.get("late_alert") for operator in self.operators.values())

    def as_json(self) -> dict[str, Any]:
        rates = ("rows_per_s", "input_rows_per_s")
        return {
            **self.reported,
            **({rate: 0.0 for rate in rates if rate in self.reported} if self.is_idle else {}),
            "idle_seconds": self.idle_s,
            "operators": self.operators,
            "write": self.name,
            "live_version": self.live.number if self.live else None,
            "versions": [
                {
                    "version": version.number,
                    "is_live": version.is_live,
                    "batch": version.position.batch if version.position else None,
                    "offsets": version.position.offsets if version.position else None,
                }
                for version in self.versions
            ],
            "store_error": self.error,
            "lag": self.lag,
            "refused_rows": self.refused,
        }


@dataclass(frozen=True, slots=True)
class PipelineState:
    """One pipeline."""

    name: str
    file: str
    is_running: bool
    is_starting: bool  # Spark, or the function, which describes what is written
    error: str | None
    hint: str
    dead_letters: dict[str, int]  # by topic: records that could not be read
    late_rows: dict[str, int]  # by operator: those that are in <pipeline>.late
    writes: list[WriteState]

    @property
    def state(self) -> str:
        if not self.is_running:
            return STOPPED if self.writes else NEW
        if self.is_starting:
            return status.STARTING
        states = {write.reported.get("state", RUNNING) for write in self.writes}
        if self.error is not None or "failed" in states:
            return "failed"
        return next(
            (state for state in ("stopped", "waiting", status.STARTING) if state in states), RUNNING
        )

    @property
    def is_well(self) -> bool:
        return self.state in _WELL and not any(
            write.has_late_alert or write.error or write.reported.get("error")
            for write in self.writes
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "file": self.file,
            "state": self.state,
            "error": self.error,
            "dead_letters": self.dead_letters,
            "late_rows": self.late_rows,
            "writes": [write.as_json() for write in self.writes],
        }


def pipeline_states(loaded: config.Config, names: list[str]) -> list[PipelineState]:
    from headwater.pipelines.offsets import ends_of
    from headwater.sinks.contract import Log
    from headwater.sinks.topic.transactional_positions import read_positions

    state_dir = loaded.state_dir()
    log = Log(loaded.bootstrap(), loaded.client)
    notes = read_positions(log) if names else {}
    found = []
    for name in names:
        reported = status.read(state_dir, name)
        writes = [
            write_state(
                name, write, about, read_store(loaded, name, about), ends_of(log, topics), notes
            )
            for write, about in reported_writes(reported).items()
            for topics in [about.get("topics", [])]
        ]
        found.append(pipeline_state(loaded.pipelines[name], reported, notes, writes))
    return found


def reported_writes(reported: status.Status) -> dict[str, dict[str, Any]]:
    """The writes whose stores were reported, each with the state that it has now: what an earlier
    process left says what a write is, and not how it is.
    """
    now: dict[str, Any] = {}
    if not reported.is_running:
        now = {"state": STOPPED}
    elif "" in reported.writes:  # the function has not described them yet, or fails
        now = {"state": reported.writes[""].get("state", STOPPED), "error": None, "hint": ""}
    return {
        name: {**write, **now}
        for name, write in reported.writes.items()
        if name and "sink" in write
    }


def pipeline_state(
    settings: PipelineSettings,
    reported: status.Status,
    notes: Mapping[bytes, bytes],
    writes: list[WriteState],
) -> PipelineState:
    require_extra()
    from headwater.pipelines.publishing.dead_letters import counts_in
    from headwater.pipelines.publishing.late_rows import late_counts

    letters: dict[str, int] = {}
    for (topic, _), number in counts_in(notes, settings.name).items():
        letters[topic] = letters.get(topic, 0) + number
    return _state_of(settings, reported, letters, late_counts(notes, settings.name), writes)


def state_without_extra(
    settings: PipelineSettings, reported: status.Status, missing: MissingExtra
) -> PipelineState:
    """What its process has reported. The stores and the counts of rejected rows are not read."""
    writes = [
        WriteState(name, about, [], f"{missing.what}: {missing.hint}", {}, 0)
        for name, about in reported_writes(reported).items()
    ]
    return _state_of(settings, reported, {}, {}, writes)


def require_extra() -> None:
    """Raises MissingExtra if pipelines' stores and dead letters cannot be read."""
    extras.require("the state of a pipeline", "pipelines")


def _state_of(
    settings: PipelineSettings,
    reported: status.Status,
    letters: dict[str, int],
    late: dict[str, int],
    writes: list[WriteState],
) -> PipelineState:
    unbuilt = reported.writes.get("", {}) if reported.is_running else {}
    return PipelineState(
        settings.name,
        settings.file,
        reported.is_running,
        unbuilt.get("state") == status.STARTING,
        unbuilt.get("error"),
        unbuilt.get("hint", ""),
        letters,
        late,
        writes,
    )


@dataclass(frozen=True, slots=True)
class StoreState:
    """The versions of a write that a store reports, or its error."""

    versions: "list[Version]"
    error: str | None = None


def read_store(loaded: config.Config, pipeline: str, reported: dict[str, Any]) -> StoreState:
    try:
        store = store_of_write(loaded, pipeline, reported)
        try:
            return StoreState(store.versions())
        finally:
            store.close()
    except HeadwaterError as failed:
        return StoreState([], str(failed))


def write_state(
    pipeline: str,
    name: str,
    reported: dict[str, Any],
    store: StoreState,
    ends: "Offsets",
    notes: Mapping[bytes, bytes],
) -> WriteState:
    require_extra()
    from headwater.pipelines.publishing.refused_rows import refused_count

    live = next((version.number for version in store.versions if version.is_live), 1)
    refused = refused_count(notes, f"{pipeline}/{name}", live)
    return WriteState(name, reported, store.versions, store.error, ends, refused)


def wanted(loaded: config.Config, names: list[str]) -> list[str]:
    """The named pipelines, or all. Raises UsageError for one that does not exist."""
    for name in names:
        if name not in loaded.pipelines:
            existing = list(loaded.pipelines)
            meant = nearest(name, existing)
            if meant:
                hint = f"did you mean {meant}?"
            elif existing:
                hint = "there are " + ", ".join(existing)
            else:
                hint = f"a section [pipeline.{name}] in {config.FILE_NAME} makes one"
            raise UsageError(f"there is no pipeline {name}", hint=hint)
    return names or list(loaded.pipelines)


def load_pipelines(
    loaded: config.Config, start: "Callable[[], SparkSession]", names: list[str]
) -> "list[Pipeline]":
    """The named pipelines with their functions. Spark starts after all files were read."""
    extras.require(f"pipeline {names[0]}" if len(names) == 1 else "a pipeline", "pipelines")
    from headwater.pipelines.running.environment import Environment
    from headwater.pipelines.running.loaded_pipeline import pipelines_of
    from headwater.sinks.contract import Log

    log = Log(loaded.bootstrap(), loaded.client)
    environment = Environment(log, dict(loaded.sinks), loaded.state_dir(), loaded.spark.state_url)
    settings = [loaded.pipelines[name] for name in dict.fromkeys(names)]
    return pipelines_of(settings, loaded.base, environment, start)


def verify_captured_topic(loaded: config.Config, spark: "SparkSession", topic: str) -> "Verdict":
    """Compares a captured table in its database with what its topic says."""
    from headwater.capture.settings import with_password
    from headwater.pipelines.verification.captures import verify_captured
    from headwater.sinks.contract import Log

    settings = with_password(loaded.captures[topic.split(".", maxsplit=1)[0]])
    log = Log(loaded.bootstrap(), loaded.client)
    return verify_captured(
        settings,
        log,
        spark,
        topic,
        state_dir=loaded.state_dir(),
        personal=personal_topics(loaded),
    )


def spark_of(loaded: config.Config, app_name: str) -> "SparkSession":
    """The Spark session that [spark] configures."""
    from headwater.pipelines.session import spark

    settings = loaded.spark
    conf = {"spark.driver.memory": settings.driver_memory, **settings.conf}
    return spark(app_name, settings.master, jars=settings.jars, **conf)
