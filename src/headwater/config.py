"""The configuration of a project: all sections of headwater.toml, each defined by its owner.

[broker], [client], [spark] and [console] occur once; [capture.NAME], [sink.NAME] and
[pipeline.NAME] may occur several times. [view.NAME] is reserved. How values are found is described
in settings_loader.py.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headwater import settings_loader
from headwater.capture.settings import CaptureSettings
from headwater.console_settings import ConsoleSettings
from headwater.errors import ConfigError
from headwater.pipelines.settings import PipelineSettings, SparkSettings
from headwater.settings import BrokerSettings, ClientSettings
from headwater.settings_loader import FILE_NAME, Mistake, Sections, Setting, fields_of
from headwater.sinks.settings import SinkSettings

__all__ = ["FILE_NAME", "SECTIONS", "Config", "Mistake", "Setting", "fields_of", "load", "read"]

SECTIONS: Final = Sections(
    single={
        "broker": BrokerSettings,
        "client": ClientSettings,
        "spark": SparkSettings,
        "console": ConsoleSettings,
    },
    named={"capture": CaptureSettings, "sink": SinkSettings, "pipeline": PipelineSettings},
    reserved=("view",),
)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was read. With mistakes, the default stands for each wrong value; a capture
    that lacks a required setting is left out.
    """

    path: Path | None
    broker: BrokerSettings
    client: ClientSettings
    spark: SparkSettings
    console: ConsoleSettings
    captures: Mapping[str, CaptureSettings]
    sinks: Mapping[str, SinkSettings]
    pipelines: Mapping[str, PipelineSettings]
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]

    def bootstrap(self) -> str:
        """Where commands find a broker."""
        return self.broker.bootstrap or self.broker.reached_at(self.broker.listen)

    @property
    def base(self) -> Path:
        """The directory that relative paths of the file begin at."""
        return self.path.parent if self.path else Path.cwd()

    def state_dir(self) -> Path:
        """Where checkpoints and states of pipelines are. Raises ConfigError."""
        if "://" in (self.spark.state_dir or ""):
            raise ConfigError(
                "spark.state_dir has to be a directory",
                detail=f"{self.spark.state_dir}: checkpoints in object stores and HDFS do not work"
                " yet; it would be taken for a local path",
                hint="on a cluster a directory that all machines share, such as a mounted volume",
            )
        if self.spark.state_dir:
            return (self.base / self.spark.state_dir).resolve()
        return (self.base / self.broker.data_dir / "pipelines").resolve()


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """The configuration, whole and right. Raises ConfigError that names every mistake in it.

    `flags` has the values given on the command line by setting name ("broker.listen"); None
    stands for a flag that was not given.
    """
    config = read(flags, path=path, environ=environ, cwd=cwd)
    settings_loader.check(config.mistakes)
    return config


def read(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """As `load`, but mistakes are returned instead of raised."""
    loaded = settings_loader.read(SECTIONS, flags, path=path, environ=environ, cwd=cwd)
    return Config(
        loaded.path,
        loaded.single["broker"],
        loaded.single["client"],
        loaded.single["spark"],
        loaded.single["console"],
        loaded.named["capture"],
        loaded.named["sink"],
        loaded.named["pipeline"],
        loaded.settings,
        loaded.raw_sections,
        loaded.mistakes,
    )
