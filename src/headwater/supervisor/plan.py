"""The children that a configuration asks for.

Started in this order, each when the broker is ready (all that depends on it finds a broker that is
away by itself, and waits for it; it would only fill every log with that):

    broker      unless broker.bootstrap names another
    console     unless console.listen is off
    gateway     if gateway.listen is set
    captures    one each
    pipelines   one Spark for all, and one more for each with isolated = true

Stopped in the order of STOP_ORDER, one kind after the other: what writes to the log first, the log
last.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headwater.config import Config
from headwater.settings import split_address

BROKER, CONSOLE, GATEWAY = "broker", "console", "gateway"
CAPTURE, PIPELINES = "capture", "pipelines"
STOP_ORDER: Final = (GATEWAY, CAPTURE, PIPELINES, CONSOLE, BROKER)

PAUSED_KINDS: Final = (GATEWAY, CAPTURE, PIPELINES)  # nothing else needs them
# Longer than each takes by itself: terminal/stop_signals.py ends a command that does not answer.
GRACE_S: Final[Mapping[str, float]] = {
    CAPTURE: 12.0, PIPELINES: 25.0, CONSOLE: 10.0, GATEWAY: 10.0, BROKER: 30.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One child: a command of `headwater`."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    pipelines: tuple[str, ...] = ()  # those that it runs
    files: tuple[Path, ...] = ()  # where a mistake can be fixed


def base_of(config: Config) -> Path:
    """Where relative paths begin, for all children: the configuration's directory."""
    return (config.path.parent if config.path else Path.cwd()).resolve()


def data_dir_of(config: Config) -> Path:
    return (base_of(config) / config.broker.data_dir).resolve()


def children_of(config: Config) -> list[ChildPlan]:
    own = (config.path.resolve(),) if config.path else ()
    named = ("--config", str(own[0])) if own else ()
    children = []
    if config.broker.bootstrap is None:
        arguments = ("broker", "--json", "--log-format", "json", *named)
        # One without an address for its metrics gets one: the console samples them.
        has_metrics = config.broker.metrics_listen is not None
        metrics = {} if has_metrics else {"HEADWATER_BROKER__METRICS_LISTEN": "127.0.0.1:0"}
        children.append(ChildPlan("broker", BROKER, arguments, metrics, files=own))
    json_log = {"HEADWATER_BROKER__LOG_FORMAT": "json"}
    for kind, is_on in ((CONSOLE, config.console.is_on), (GATEWAY, config.gateway.is_on)):
        if is_on:
            children.append(ChildPlan(kind, kind, (kind, "--json", *named), json_log, files=own))
    children += [_capture(config, name, (*named, "--json"), own) for name in config.captures]
    together = [pipeline.name for pipeline in config.pipelines.values() if not pipeline.isolated]
    if together:
        children.append(_pipelines(config, "pipelines", together, named, own))
    children += [
        _pipelines(config, f"pipeline {pipeline.name}", [pipeline.name], named, own)
        for pipeline in config.pipelines.values()
        if pipeline.isolated
    ]
    return children


def _capture(
    config: Config, name: str, options: tuple[str, ...], files: tuple[Path, ...]
) -> ChildPlan:
    """One without an address for its readiness gets one."""
    environment = {}
    if config.captures[name].metrics_listen is None:
        variable = name.upper().replace("-", "_")
        environment[f"HEADWATER_CAPTURE__{variable}__METRICS_LISTEN"] = "127.0.0.1:0"
    arguments = ("capture", "run", name, *options)
    return ChildPlan(f"capture {name}", CAPTURE, arguments, environment, files=files)


def _pipelines(
    config: Config,
    title: str,
    names: list[str],
    options: tuple[str, ...],
    files: tuple[Path, ...],
) -> ChildPlan:
    base = base_of(config)
    return ChildPlan(
        title,
        PIPELINES,
        ("pipeline", "run", *names, "--json", *options),
        pipelines=tuple(names),
        files=(*files, *(base / config.pipelines[name].file for name in names)),
    )


def environment_of(config: Config, bootstrap: str | None) -> dict[str, str]:
    """The environment of all children, with the address of a broker that chose its port."""
    environment = dict(os.environ)
    if bootstrap is not None and split_address(config.broker.listen)[1] == 0:
        environment["HEADWATER_BROKER__BOOTSTRAP"] = bootstrap
    return environment
