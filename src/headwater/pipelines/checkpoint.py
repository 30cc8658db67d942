"""What Spark has noted about a query in its checkpoint, and whose the checkpoint is.

    <state_dir>/<pipeline>/<sink>.<table>/v<N>/     a write's version
        checkpoint/metadata                         {"id": …}: the query
        checkpoint/offsets/<batch>                  written before the batch runs
        checkpoint/commits/<batch>                  written when it is done
        checkpoint/operators/                       what operators remember (operators/state.py)
        checkpoint/lost                             why nothing can go on from here, if so
        lock                                        held by the process that runs it

An offsets file: a line with the format's version, one with the batch's metadata, and one line for
each source with the offsets where the batch ends (or "-").
"""

import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Final, Self

import orjson

from headwater.errors import PipelineError
from headwater.pipelines.source.progress import split_end_markers
from headwater.private_files import open_lock
from headwater.sinks.contract import Offsets, Position, offsets_from

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class RunsElsewhere(PipelineError):
    """Another process has the lock."""


class Checkpoint:
    """Of one version of one write. It is Spark that writes, but for `lost`."""

    def __init__(self, state_dir: Path, pipeline: str, write: str, version: int) -> None:
        self.directory = state_dir / pipeline / _UNSAFE.sub(_escaped, write) / f"v{version}"
        self.path = self.directory / "checkpoint"
        self.operators = self.path / "operators"
        self._lock: int | None = None

    def query(self) -> str | None:
        """None if there is no checkpoint, or no more."""
        try:
            return str(orjson.loads((self.path / "metadata").read_bytes())["id"])
        except (FileNotFoundError, KeyError, ValueError):
            return None

    def offsets(self, batch: int) -> Offsets | None:
        """Where the batch ends; None if it is not known."""
        try:
            lines = (self.path / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return None
        sources = [split_end_markers(orjson.loads(line))[0] for line in lines[2:] if line != "-"]
        return _merged([offsets_from(each) for each in sources])

    def stands_at(self, position: Position) -> bool:
        """Whether Spark would go on behind this position: with the next batch, or with the same
        one again, which the store knows.
        """
        if self.is_lost():
            return False
        try:
            if self.query() != position.query or self.offsets(position.batch) != position.offsets:
                return False
            last = max(_numbers(self.path / "offsets"))
            if last == position.batch + 1:
                return last not in _numbers(self.path / "commits")
            return last == position.batch
        except (FileNotFoundError, ValueError):  # lost in part
            return False

    def has_begun(self) -> bool:
        """Whether a batch was ever begun."""
        try:
            return bool(_numbers(self.path / "offsets"))
        except FileNotFoundError:
            return False

    def lose(self, reason: str) -> None:
        """What belongs to it is gone or damaged; from now on it counts as gone as a whole."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be gone as a whole
        (self.path / "lost").write_text(reason)

    def is_lost(self) -> bool:
        return (self.path / "lost").exists()

    def remove(self) -> None:
        """Of a version that is gone: what Spark would go on with does not belong to any store."""
        shutil.rmtree(self.path, ignore_errors=True)

    def lock(self) -> Self:
        """Two processes on one checkpoint would run the same batches with different contents."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_lock(self.directory / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise RunsElsewhere(
                "the pipeline is run by another process",
                detail=f"process {holder or 'unknown'} holds {self.directory}",
                hint="stop it first",
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        except OSError:  # a full disk; or this process would shut itself out for good
            os.close(lock)
            raise
        self._lock = lock
        return self

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _merged(sources: list[Offsets]) -> Offsets:
    """Two sources may read the same topic: what both have read is what counts."""
    merged: dict[str, dict[int, int]] = {}
    for topic in {topic for offsets in sources for topic in offsets}:
        ends = [offsets[topic] for offsets in sources if topic in offsets]
        merged[topic] = {
            partition: min(each[partition] for each in ends)
            for partition in sorted(ends[0])
            # One may have found a new partition before the other.
            if all(partition in each for each in ends)
        }
    return merged


def _numbers(directory: Path) -> list[int]:
    return [int(name) for name in os.listdir(directory) if name.isdigit()]


def _escaped(character: "re.Match[str]") -> str:
    return "." if character[0] == "/" else f"%{ord(character[0]):x}"
