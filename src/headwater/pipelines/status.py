"""What the process that runs a pipeline tells about it, in a file beside the checkpoints.

    <state_dir>/<pipeline>/status.json

It is replaced, never changed in place, at most once a second; a process that is gone is known by
its time and its process id.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from headwater.pipelines.flow import Write

_EVERY_S: Final = 1.0
_STALE_S: Final = 15.0
_written: dict[Path, tuple[float, bytes]] = {}


@dataclass(frozen=True, slots=True)
class Status:
    is_running: bool  # whether a process runs it now
    writes: Mapping[str, Mapping[str, Any]]  # by <sink>/<table>; "" before they are known


def about(write: "Write", topics: Iterable[str]) -> dict[str, Any]:
    """What a write is: enough to find its store and its lag without Spark."""
    return {
        "sink": write.to,
        "table": write.table,
        "key": list(write.key),
        "options": dict(write.options),
        "topics": sorted(topics),
    }


def write(state_dir: Path, pipeline: str, writes: Mapping[str, Mapping[str, Any]]) -> None:
    """Nothing, if nothing is new or the last time was just now."""
    path = state_dir / pipeline / "status.json"
    states = orjson.dumps({name: each["state"] for name, each in writes.items()})
    last_s, last = _written.get(path, (0.0, b""))
    if states == last and time.monotonic() - last_s < _EVERY_S:
        return
    _written[path] = (time.monotonic(), states)
    before = read(state_dir, pipeline).writes  # what they are is known, also while they fail
    told: dict[str, Mapping[str, Any]] = {
        name: {**before.get(name, {}), **each} for name, each in writes.items() if name
    }
    if not told:
        told = {**before, "": dict(writes.get("", {}))}
    content = orjson.dumps({"pid": os.getpid(), "at": time.time(), "writes": told})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def read(state_dir: Path, pipeline: str) -> Status:
    try:
        stored = orjson.loads((state_dir / pipeline / "status.json").read_bytes())
        is_running = time.time() - stored["at"] < _STALE_S
        return Status(is_running, stored["writes"])
    except (OSError, ValueError, KeyError):
        return Status(is_running=False, writes={})
