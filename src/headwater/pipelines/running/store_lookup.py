"""Stores of a pipeline by its status file (status.py), and its state directory, without Spark."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import config
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from headwater.sinks.contract import Store


def find_store(loaded: config.Config, pipeline: str, write: dict[str, Any]) -> "Store":
    """The store of a write, by its entry in the status file."""
    from headwater.sinks.contract import Log, Target
    from headwater.sinks.settings import SinkSettings
    from headwater.sinks.stores import store_of

    settings = loaded.sinks.get(write["sink"], SinkSettings(write["sink"], kind="topic"))
    owner = f"{pipeline}/{write['sink']}/{write['table']}"
    target = Target(owner, write["table"], tuple(write["key"]), write["options"])
    return store_of(settings, target, Log(loaded.bootstrap(), loaded.client))


def state_dir_of(loaded: config.Config) -> Path:
    """The directory of checkpoints and status files. Raises ConfigError."""
    base = loaded.path.parent if loaded.path else Path.cwd()
    if "://" in (loaded.spark.state_dir or ""):
        raise ConfigError(
            "spark.state_dir has to be a directory",
            detail=f"{loaded.spark.state_dir}: checkpoints in object stores and HDFS do not work"
            " yet; it would be taken for a local path",
            hint="on a cluster a directory that all machines share, such as a mounted volume",
        )
    if loaded.spark.state_dir:
        return (base / loaded.spark.state_dir).resolve()
    return (base / loaded.broker.data_dir / "pipelines").resolve()
