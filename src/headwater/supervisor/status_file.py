"""<data_dir>/up.json: the status of the children, for `headwater status` and the console.

    {"pid": 4711, "started_at": 1763258400.0, "stopping": false, "log": null, "children": [
      {"name": "broker", "kind": "broker", "state": "ready", "pid": 4712, "since": …,
       "started_at": …, "restarts": 0, "reason": "", "hint": "", "address": "127.0.0.1:9092"}, …]}

Replaced, never changed in place. Instants are seconds since 1970.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater import private_files
from headwater.supervisor import lock

FILE_NAME: Final = "up.json"

WAITING: Final = "waiting"  # for a child that it needs
STARTING: Final = "starting"
READY: Final = "ready"
NOT_READY: Final = "not ready"  # it was, and its process runs
PAUSED: Final = "paused"  # it has ended, and is started again
FAILED: Final = "failed"  # it has ended by a mistake that only its user can fix
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"


@dataclass(slots=True)
class ChildStatus:
    """One child, as it is now."""

    name: str
    kind: str  # broker, console, gateway, capture, pipelines
    state: str = WAITING
    pid: int | None = None
    since: float = 0.0  # when it came into this state
    started_at: float | None = None  # when this process of it was started
    restarts: int = 0
    reason: str = ""  # why it is not ready, or ended the last time
    hint: str = ""
    address: str | None = None  # where it is reached; of a capture: its metrics
    metrics: str | None = None  # where /metrics of a broker is


@dataclass(slots=True)
class SupervisorStatus:
    pid: int
    started_at: float
    stopping: bool
    children: list[ChildStatus]
    log: str | None = None  # the file that a detached one writes


def write(data_dir: Path, reported: SupervisorStatus) -> None:
    """Raises OSError."""
    private_files.replace(
        data_dir / FILE_NAME, json.dumps(dataclasses.asdict(reported)).encode() + b"\n"
    )


def read(data_dir: Path) -> SupervisorStatus | None:
    """None if no supervisor runs there."""
    if not lock.is_held(data_dir):
        return None
    try:
        stored = json.loads((data_dir / FILE_NAME).read_text(encoding="utf-8"))
        children = [ChildStatus(**child) for child in stored.pop("children")]
        return SupervisorStatus(children=children, **stored)
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it has just begun, or is of another version
