"""What is known of pipelines without starting Spark: the configuration, what their processes tell,
what their stores say of themselves, and how far the log is ahead.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headwater import config
from headwater.cli.capture_state import load
from headwater.errors import HeadwaterError, UsageError
from headwater.pipelines import status
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.stores_told import place_of, store_told
from headwater.settings import nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.running import Pipeline
    from headwater.sinks.contract import Offsets, Position, Version

RUNNING, STOPPED, NEW = "running", "stopped", "never ran"
_WELL: Final = (RUNNING,)
_IDLE_S: Final = 10.0  # after which a write that has read everything is idle
_STUCK_S: Final = 60.0  # and one that has not: batches may be rare (`every`)


@dataclass(frozen=True, slots=True)
class KnownWrite:
    """One write of a pipeline, as far as it can be told."""

    name: str
    told: dict[str, Any]  # by the process
    versions: "list[Version]"
    error: str | None  # why the store cannot be asked
    ends: "Offsets"
    refused: int  # rows among the dead letters

    @property
    def live(self) -> "Version | None":
        return next((each for each in self.versions if each.is_live), None)

    @property
    def position(self) -> "Position | None":
        return self.live.position if self.live else None

    @property
    def lag(self) -> int | None:
        """In records of the log; None if it cannot be told."""
        from headwater.pipelines.offsets import lag_records

        if self.error is not None:
            return None
        return lag_records(self.position, self.ends)

    @property
    def idle_s(self) -> float | None:
        """Since the last batch that had records has ended; None before the first."""
        try:
            began = datetime.fromisoformat(str(self.told.get("at"))).timestamp()
        except ValueError:
            return None
        return max(0.0, time.time() - began - (self.told.get("batch_ms") or 0) / 1000)

    @property
    def is_idle(self) -> bool:
        """Its last batch says nothing about now: there is nothing to read, or no batch ends."""
        idle_s = self.idle_s
        return idle_s is not None and idle_s > (_STUCK_S if self.lag else _IDLE_S)

    @property
    def operators(self) -> dict[str, dict[str, Any]]:
        """What each has told after the last batch, and how far its time is behind ours."""
        found = {name: dict(each) for name, each in self.told.get("operators", {}).items()}
        for each in found.values():
            if each.get("watermark_us") is not None:
                each["watermark_gap_s"] = time.time() - each["watermark_us"] / 1e6
        return found

    @property
    def has_late_alert(self) -> bool:
        return any(each.get("late_alert") for each in self.operators.values())

    def as_json(self) -> dict[str, Any]:
        rates = ("rows_per_s", "input_rows_per_s")
        return {
            **self.told,
            **({each: 0.0 for each in rates if each in self.told} if self.is_idle else {}),
            "idle_seconds": self.idle_s,
            "operators": self.operators,
            "write": self.name,
            "live_version": self.live.number if self.live else None,
            "versions": [
                {
                    "version": each.number,
                    "is_live": each.is_live,
                    "batch": each.position.batch if each.position else None,
                    "offsets": each.position.offsets if each.position else None,
                }
                for each in self.versions
            ],
            "store_error": self.error,
            "lag": self.lag,
            "refused_rows": self.refused,
        }


@dataclass(frozen=True, slots=True)
class Known:
    """One pipeline."""

    name: str
    file: str
    is_running: bool
    is_starting: bool  # Spark, or the function, which tells what is written
    error: str | None
    hint: str
    dead_letters: dict[str, int]  # by topic: records that could not be read
    late_rows: dict[str, int]  # by operator: those that are in <pipeline>.late
    writes: list[KnownWrite]

    @property
    def state(self) -> str:
        if not self.is_running:
            return STOPPED if self.writes else NEW
        if self.is_starting:
            return status.STARTING
        states = {each.told.get("state", RUNNING) for each in self.writes}
        if self.error is not None or "failed" in states:
            return "failed"
        return next(
            (each for each in ("stopped", "waiting", status.STARTING) if each in states), RUNNING
        )

    @property
    def is_well(self) -> bool:
        return self.state in _WELL and not any(
            each.has_late_alert or each.error or each.told.get("error") for each in self.writes
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.name,
            "file": self.file,
            "state": self.state,
            "error": self.error,
            "dead_letters": self.dead_letters,
            "late_rows": self.late_rows,
            "writes": [each.as_json() for each in self.writes],
        }


def known_pipelines(loaded: config.Config, names: list[str]) -> list[Known]:
    from headwater.pipelines.offsets import ends_of
    from headwater.sinks.contract import Log
    from headwater.sinks.noted_transactions import read_notes

    place = place_of(loaded)
    log = Log(loaded.bootstrap(), loaded.client)
    notes = read_notes(log) if names else {}
    found = []
    for name in names:
        told = status.read(place, name)
        writes = [
            known_write(
                name, each, about, asked_store(loaded, name, about), ends_of(log, topics), notes
            )
            for each, about in writes_told(told).items()
            for topics in [about.get("topics", [])]
        ]
        found.append(known(loaded.pipelines[name], told, notes, writes))
    return found


def writes_told(told: status.Status) -> dict[str, dict[str, Any]]:
    """The writes whose stores are known, each with the state that it has now: what an earlier
    process left says what a write is, and not how it is.
    """
    now: dict[str, Any] = {}
    if not told.is_running:
        now = {"state": STOPPED}
    elif "" in told.writes:  # the function has not described them yet, or fails
        now = {"state": told.writes[""].get("state", STOPPED), "error": None, "hint": ""}
    return {name: {**each, **now} for name, each in told.writes.items() if name and "sink" in each}


def known(
    settings: PipelineSettings,
    told: status.Status,
    notes: Mapping[bytes, bytes],
    writes: list[KnownWrite],
) -> Known:
    from headwater.pipelines.dead_letters import counts_in
    from headwater.pipelines.late_rows import late_counts

    letters: dict[str, int] = {}
    for (topic, _), number in counts_in(notes, settings.name).items():
        letters[topic] = letters.get(topic, 0) + number
    unbuilt = told.writes.get("", {}) if told.is_running else {}
    return Known(
        settings.name,
        settings.file,
        told.is_running,
        unbuilt.get("state") == status.STARTING,
        unbuilt.get("error"),
        unbuilt.get("hint", ""),
        letters,
        late_counts(notes, settings.name),
        writes,
    )


@dataclass(frozen=True, slots=True)
class AskedStore:
    """What a store says of a write's versions, or why it does not."""

    versions: "list[Version]"
    error: str | None = None


def asked_store(loaded: config.Config, pipeline: str, told: dict[str, Any]) -> AskedStore:
    try:
        store = store_told(loaded, pipeline, told)
        try:
            return AskedStore(store.versions())
        finally:
            store.close()
    except HeadwaterError as failed:
        return AskedStore([], str(failed))


def known_write(
    pipeline: str,
    name: str,
    told: dict[str, Any],
    store: AskedStore,
    ends: "Offsets",
    notes: Mapping[bytes, bytes],
) -> KnownWrite:
    from headwater.pipelines.refused_rows import refused_count

    live = next((each.number for each in store.versions if each.is_live), 1)
    refused = refused_count(notes, f"{pipeline}/{name}", live)
    return KnownWrite(name, told, store.versions, store.error, ends, refused)


def wanted(loaded: config.Config, names: list[str]) -> list[str]:
    """The named pipelines, or all. Raises UsageError for one that does not exist."""
    for name in names:
        if name not in loaded.pipelines:
            known = list(loaded.pipelines)
            meant = nearest(name, known)
            if meant:
                hint = f"did you mean {meant}?"
            elif known:
                hint = "there are " + ", ".join(known)
            else:
                hint = f"a section [pipeline.{name}] in {config.FILE_NAME} makes one"
            raise UsageError(f"there is no pipeline {name}", hint=hint)
    return names or list(loaded.pipelines)


def started(args: argparse.Namespace, name: str) -> "tuple[config.Config, Pipeline]":
    """One pipeline with a Spark of its own, for a command that needs both."""
    loaded = load(args)
    (name,) = wanted(loaded, [name])
    from headwater.pipelines.running import pipelines_of

    (pipeline,) = pipelines_of(loaded, lambda: spark_of(loaded, f"headwater {name}"), [name])
    return loaded, pipeline


def spark_of(loaded: config.Config, app_name: str) -> "SparkSession":
    """Spark as [spark] says."""
    from headwater.pipelines.session import spark

    settings = loaded.spark
    conf = {"spark.driver.memory": settings.driver_memory, **settings.conf}
    return spark(app_name, settings.master, jars=settings.jars, **conf)
