"""What all writes of a process share: the log, the configured sinks, the state directory."""

from dataclasses import dataclass
from pathlib import Path

from headwater.pipelines.flow import TOPICS, Write
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of


@dataclass(frozen=True)
class Environment:
    log: Log
    sinks: dict[str, SinkSettings]
    state_dir: Path  # of checkpoints and status files
    state_url: str | None = None  # of the state of operators, if it is in an object store


def open_store(environment: Environment, pipeline: str, write: Write) -> Store:
    settings = environment.sinks.get(write.to)
    if settings is None:
        assert write.to == TOPICS, "checked by flow.write"
        settings = SinkSettings(TOPICS, kind="topic")
    return store_of(settings, target_of(pipeline, write), environment.log)


def target_of(pipeline: str, write: Write) -> Target:
    return Target(f"{pipeline}/{write.name}", write.table, write.key, write.options)
