"""Status files of the process that runs a pipeline, beside the checkpoints.

    <state_dir>/<pipeline>/status.json   replaced, never changed in place, at most once a second
    <state_dir>/<pipeline>/plans.json    Spark's plan of each write, once it has had a batch
    <state_dir>/<pipeline>/view.json     the steps of a view (views/plan_steps.py)
    <state_dir>/<pipeline>/running       locked by that process for as long as it lives

Only the process that holds the lock writes them; a second one that tries to run the pipeline does
not.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater import private_files

if TYPE_CHECKING:
    from headwater.pipelines.flow import Write

STARTING: Final = "starting"
_EVERY_S: Final = 1.0
_PLAN: Final = 100_000  # characters of a plan
_log = logging.getLogger(__name__)
_written: dict[Path, tuple[float, bytes]] = {}
_locks: dict[Path, int] = {}  # those that this process has
_unwritten: set[Path] = set()  # those that could not be written last time


@dataclass(frozen=True, slots=True)
class Status:
    is_running: bool  # whether a process runs it now
    writes: Mapping[
        str, Mapping[str, Any]
    ]  # by <sink>/<table>; "" before the function has described them
    at_s: float = 0.0  # when that was


def about(write: "Write") -> dict[str, Any]:
    """A description of a write: enough to find its store and its lag without Spark."""
    return {
        "sink": write.to,
        "table": write.table,
        "key": list(write.key),
        "key_types": [write.frame.schema[name].dataType.simpleString() for name in write.key],
        "options": dict(write.options),
        "topics": list(write.topics),
    }


def starting(state_dir: Path, pipeline: str) -> None:
    """A process has started, and has not yet called the pipeline's function."""
    write(state_dir, pipeline, {"": {"state": STARTING}})


def write(state_dir: Path, pipeline: str, writes: Mapping[str, Mapping[str, Any]]) -> None:
    """Does nothing if no state has changed within the last second, or another process runs it. A
    full disk is logged, and no reason to stop.
    """
    path = state_dir / pipeline / "status.json"
    states = orjson.dumps({name: entry["state"] for name, entry in writes.items()})
    last_s, last = _written.get(path, (0.0, b""))
    if states == last and time.monotonic() - last_s < _EVERY_S:
        return
    _written[path] = (time.monotonic(), states)
    try:
        if _lock(path.parent):
            _replace(path, _merged(read(state_dir, pipeline).writes, writes))
        _unwritten.discard(path)
    except OSError as error:
        if path not in _unwritten:
            _log.warning("the status of %s cannot be written: %s", pipeline, error)
        _unwritten.add(path)


def write_plan(state_dir: Path, pipeline: str, write: str, plan: str) -> None:
    """For display only; `write` reports a disk error."""
    path = state_dir / pipeline / "plans.json"
    if path.parent in _locks:
        with contextlib.suppress(OSError):
            plans = {**read_plans(state_dir, pipeline), write: plan[:_PLAN]}
            private_files.replace(path, orjson.dumps(plans))


def read_plans(state_dir: Path, pipeline: str) -> dict[str, str]:
    """By write."""
    try:
        plans: dict[str, str] = orjson.loads((state_dir / pipeline / "plans.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return plans


def write_view(state_dir: Path, pipeline: str, steps: Mapping[str, Any]) -> None:
    """For display only, as `write_plan`."""
    path = state_dir / pipeline / "view.json"
    if path.parent in _locks:
        with contextlib.suppress(OSError):
            private_files.replace(path, orjson.dumps(steps))


def read_view(state_dir: Path, pipeline: str) -> dict[str, Any]:
    """{} if it is no view, or has not run."""
    try:
        steps: dict[str, Any] = orjson.loads((state_dir / pipeline / "view.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return steps


def ended(state_dir: Path, pipeline: str) -> None:
    """Releases the lock: this process no longer runs it."""
    lock = _locks.pop(state_dir / pipeline, None)
    if lock is not None:
        os.close(lock)


def read(state_dir: Path, pipeline: str) -> Status:
    directory = state_dir / pipeline
    try:
        stored = orjson.loads((directory / "status.json").read_bytes())
        return Status(_is_locked(directory), stored["writes"], stored["at"])
    except (OSError, ValueError, KeyError):
        return Status(is_running=False, writes={})


def _merged(
    before: Mapping[str, Mapping[str, Any]], writes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Writes that fail have their description from before."""
    merged: dict[str, Mapping[str, Any]] = {
        name: {**before.get(name, {}), **entry} for name, entry in writes.items() if name
    }
    return merged or {**before, "": dict(writes.get("", {}))}


def _replace(path: Path, writes: Mapping[str, Mapping[str, Any]]) -> None:
    content = orjson.dumps({"pid": os.getpid(), "at": time.time(), "writes": writes})
    private_files.replace(path, content)


def _lock(directory: Path) -> bool:
    if directory in _locks:
        return True
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = private_files.open_lock(directory / "running")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    _locks[directory] = lock
    return True


def _is_locked(directory: Path) -> bool:
    try:
        lock = os.open(directory / "running", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
