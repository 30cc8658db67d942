"""`headwater pipeline run --once`: a runner that ends when all stores have the log as it is now."""

import threading
from dataclasses import dataclass
from typing import Final

from headwater.errors import HeadwaterError, PipelineError, StoreUnreachable
from headwater.pipelines.flow import Write
from headwater.pipelines.offsets import ends_of, has_reached
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.running.rebuilding import versions_of
from headwater.pipelines.running.runner import Runner
from headwater.sinks.contract import Offsets

_ROUND_S: Final = 0.5
_ATTEMPTS: Final = 3  # of a write: a busy machine may be the reason of one that fails


@dataclass(frozen=True)
class _Goal:
    pipeline: Pipeline
    write: Write
    ends: Offsets

    def is_reached(self) -> bool:
        try:
            versions = versions_of(self.pipeline, self.write)
        except StoreUnreachable:  # the write waits for it
            return False
        live = next((version for version in versions if version.is_live), None)
        return has_reached(live.position if live else None, self.ends)


def run_once(runner: Runner) -> None:
    """Runs until the records that the log has now are applied to all stores. Raises the error of a
    write that fails several times in a row, and PipelineError if it is stopped before the end.
    """
    goals = [
        _Goal(pipeline, write, ends_of(pipeline.environment.log, write.topics, write.patterns))
        for pipeline in runner.pipelines
        for write in pipeline.flow().writes
    ]
    failures: list[HeadwaterError] = []
    has_ended = threading.Event()

    def watch() -> None:
        nonlocal goals
        try:
            while not has_ended.wait(_ROUND_S):
                failures[:] = runner.lasting_errors(_ATTEMPTS)
                goals = [goal for goal in goals if not goal.is_reached()]
                if failures or not goals:
                    break
        except HeadwaterError as error:
            failures.append(error)
        finally:
            runner.stop.set()

    watching = threading.Thread(target=watch, name="once")
    watching.start()
    try:
        runner.run()
    finally:
        has_ended.set()
        watching.join()
    failures = failures or (runner.errors() if goals else [])
    if failures:
        raise failures[0]
    if goals:
        behind = ", ".join(f"{goal.pipeline.name}/{goal.write.name}" for goal in goals)
        raise PipelineError("stopped before the end", detail=f"{behind} did not reach it")
