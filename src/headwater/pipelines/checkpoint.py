"""The checkpoint of a query: the offsets of its batches, and the lock of the process that runs it.

    <state_dir>/<pipeline>/<sink>.<table>/v<N>/     a write's version
        checkpoint/metadata                         {"id": …}: the query
        checkpoint/offsets/<batch>                  written before the batch runs
        checkpoint/commits/<batch>                  written when it is done
        checkpoint/operators/                       state of operators (operators/state), or
        checkpoint/operators.json                   {"address": …}: where else it is
        checkpoint/lost                             why the checkpoint is unusable, if so
        lock                                        held by the process that runs it

An offsets file: a line with the format's version, one with the batch's metadata, and one line for
each source with the offsets where the batch ends (or "-").
"""

import fcntl
import os
import re
import secrets
import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import orjson

from headwater.errors import PipelineError
from headwater.log.disk.files import Files
from headwater.pipelines.operators.state.state_files import unwritable
from headwater.pipelines.operators.state.state_store import (
    LocalDirectory,
    StateDirectory,
    state_directory,
)
from headwater.pipelines.source.progress import split_end_markers
from headwater.pipelines.state_url import ADDRESS_FILE, StateUrl
from headwater.private_files import open_lock
from headwater.sinks.contract import Offsets, Position, offsets_from

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")


class RunsElsewhere(PipelineError):
    """Another process has the lock."""


class Checkpoint:
    """The checkpoint of one version of one write. Spark writes it, except `lost` and the state of
    operators.

    `state_url`: an object store, for the operators' state of checkpoints that are yet to begin.
    One that has begun continues where its state is.
    """

    def __init__(
        self,
        state_dir: Path,
        pipeline: str,
        write: str,
        version: int,
        *,
        state_url: str | None = None,
    ) -> None:
        self.directory = state_dir / pipeline / _UNSAFE.sub(_escaped, write) / f"v{version}"
        self.path = self.directory / "checkpoint"
        self._state_url = StateUrl.parse(state_url) if state_url else None
        self._lock: int | None = None

    @cached_property
    def operators(self) -> StateDirectory:
        """Where the state of operators is. In an object store the prefix ends with a random number:
        a driver elsewhere with the same settings and a checkpoint of its own has another one.
        """
        stored = self._stored_url()
        if stored is None and self._state_url is not None and not self.has_begun():
            version = f"{self.directory.name}-{secrets.token_hex(4)}"
            pipeline, write = self.directory.parts[-3:-1]
            stored = self._state_url / pipeline / write / version
        local = (self.path / "operators").absolute()
        return state_directory(local if stored is None else stored.address)

    def begin_operators(self) -> None:
        """Removes what a start that failed has left, and records where the state is. Raises
        PipelineError.
        """
        try:
            self.operators.remove_all()
            if not isinstance(self.operators, LocalDirectory):
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                content = orjson.dumps({"address": self.operators.address})
                Files().write_atomically(str(self.path / ADDRESS_FILE), content)
        except OSError as error:
            raise unwritable(self.operators, error) from error

    def _stored_url(self) -> StateUrl | None:
        """With the endpoint and region of the settings, if there are any: servers may move."""
        try:
            address = orjson.loads((self.path / ADDRESS_FILE).read_bytes())["address"]
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise PipelineError(
                "the address of operator state cannot be read",
                detail=f"{self.path / ADDRESS_FILE}: {error}",
            ) from error
        stored, now = StateUrl.parse(address), self._state_url
        if now is None or now.bucket != stored.bucket:
            return stored
        return replace(stored, endpoint=now.endpoint, region=now.region)

    def query(self) -> str | None:
        """The query's id; None if there is no checkpoint."""
        try:
            return str(orjson.loads((self.path / "metadata").read_bytes())["id"])
        except (FileNotFoundError, KeyError, ValueError):
            return None

    def offsets(self, batch: int) -> Offsets | None:
        """The end offsets of the batch; None if the checkpoint has none."""
        try:
            lines = (self.path / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return None
        sources = [split_end_markers(orjson.loads(line))[0] for line in lines[2:] if line != "-"]
        return _merged([offsets_from(source) for source in sources])

    def time_us(self, position: Position) -> int | None:
        """The time of the batch that the store has at this position; None if the checkpoint is of
        another query, or no longer has it.
        """
        try:
            if self.query() != position.query:
                return None
            lines = (self.path / "offsets" / str(position.batch)).read_text().splitlines()
            return int(orjson.loads(lines[1])["batchTimestampMs"]) * 1000
        except (FileNotFoundError, LookupError, ValueError):
            return None

    def is_at(self, position: Position) -> bool:
        """Whether Spark would continue from this position: with the next batch, or with the same
        one again, which the store skips.
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
        except (FileNotFoundError, ValueError):  # partly lost
            return False

    def has_begun(self) -> bool:
        """Whether a batch was ever begun."""
        try:
            return bool(_numbers(self.path / "offsets"))
        except FileNotFoundError:
            return False

    def last_done(self) -> int:
        """The last batch that is committed; -1 if there is none."""
        try:
            return max(_numbers(self.path / "commits"), default=-1)
        except FileNotFoundError:
            return -1

    def lose(self, reason: str) -> None:
        """Marks the checkpoint as lost: a part of it is missing or damaged."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it may be missing altogether
        (self.path / "lost").write_text(reason)

    def is_lost(self) -> bool:
        return (self.path / "lost").exists()

    def remove(self) -> None:
        """For a version that was dropped or emptied: no store matches the checkpoint any more.
        Raises PipelineError if an object store does not answer.
        """
        if (self.path / ADDRESS_FILE).exists():
            try:
                self.operators.remove_all()
            except OSError as error:
                raise unwritable(self.operators, error) from error
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
        except OSError:  # a full disk; the lock must not stay with this process
            os.close(lock)
            raise
        self._lock = lock
        if (stored := self._stored_url()) and str(stored) != str(self.operators):
            self.unlock()
            raise RunsElsewhere("the pipeline was begun by another process just now")
        return self

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _merged(sources: list[Offsets]) -> Offsets:
    """Two sources may read the same topic: the lower offset counts."""
    merged: dict[str, dict[int, int]] = {}
    for topic in {topic for offsets in sources for topic in offsets}:
        ends = [offsets[topic] for offsets in sources if topic in offsets]
        merged[topic] = {
            partition: min(offsets[partition] for offsets in ends)
            for partition in sorted(ends[0])
            # One source may have found a new partition before the other.
            if all(partition in offsets for offsets in ends)
        }
    return merged


def _numbers(directory: Path) -> list[int]:
    return [int(name) for name in os.listdir(directory) if name.isdigit()]


def _escaped(character: "re.Match[str]") -> str:
    return "." if character[0] == "/" else f"%{ord(character[0]):x}"
