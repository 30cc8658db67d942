"""Takes a backup: of a broker that runs, or of a log that no process uses."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headwater import __version__
from headwater.backup.copying import Copied, OnCopied, copy, sync, sync_all
from headwater.broker.control import NAME as CONTROL
from headwater.broker.control import short_path
from headwater.errors import HeadwaterError, NotReady, UsageError
from headwater.log.disk.ballast import NAME as BALLAST
from headwater.log.disk.data_directory import DELETED, LOCK, UP_LOCK
from headwater.log.staging import LIST
from headwater.pipelines.state_url import ADDRESS_FILE
from headwater.private_files import open_lock
from headwater.subjects.settings import MARKER

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
LOG, PIPELINES = "log", "pipelines"
_STAGE_TIMEOUT_S: Final = 60.0
# Of the data directory, what has no meaning for another process.
_NOT_COPIED: Final = (
    LOCK, CONTROL, UP_LOCK, "up.json", "up.log", "up.log.1", "archive-cache", "console",
    "write-probe", BALLAST,
)  # fmt: skip
# Written in this order reversed: whatever is copied of one has its part in those behind it.
_CHECKPOINT_ORDER: Final = ("commits", "offsets")


def take(
    data_dir: Path,
    state_dir: Path,
    target: Path,
    on_copied: OnCopied,
    left_out: Sequence[Path] = (),
) -> dict[str, Any]:
    """Makes `target` a backup; returns its manifest without the files. `left_out`: directories and
    files that are not copied, such as the keys of personal fields. Raises UsageError if `target` is
    there already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already, and not empty")
    if target.resolve().is_relative_to(data_dir):
        raise UsageError(f"{target} is inside of the data directory", detail=str(data_dir))
    if not (data_dir / "catalog.jsonl").exists():
        raise UsageError("there is no log to back up", detail=str(data_dir))
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    began_at = time.time()
    files = [
        *_copied_state(state_dir, target, on_copied, left_out),
        *_copied_log(data_dir, state_dir, target, on_copied, left_out),
    ]
    about = {"format": FORMAT, "version": __version__, "began_at": began_at, "at": time.time()}
    sync_all(target)
    temporary = target / f"{MANIFEST}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({**about, "files": files}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target / MANIFEST)
    sync(target)
    return {**about, "files": len(files), "size_bytes": sum(file.size_bytes for file in files)}


def _copied_state(
    state_dir: Path, target: Path, on_copied: OnCopied, left_out: Sequence[Path]
) -> Iterator[Copied]:
    """A file may be removed before it is copied: Spark removes what is old enough. It never changes
    one, so whatever is copied is whole. The address of state in an object store is left out: a
    restored checkpoint must not write beside the one that it was copied from. Its state counts as
    lost, and is derived again.
    """
    for source in sorted(_files_below(state_dir), key=_when_written):
        if source.name == ADDRESS_FILE and source.parent.name == "checkpoint":
            continue
        if _is_among(source, left_out):
            continue
        path = f"{PIPELINES}/{source.relative_to(state_dir)}"
        try:
            size_bytes, crc = copy(source, target / path, None, on_copied)
        except FileNotFoundError:
            continue
        yield Copied(path, size_bytes, crc)


def _when_written(file: Path) -> tuple[int, str]:
    parts = file.parts
    order = next((i for i, name in enumerate(_CHECKPOINT_ORDER) if name in parts), 2)
    return order, str(file)


def _copied_log(
    data_dir: Path,
    state_dir: Path,
    target: Path,
    on_copied: OnCopied,
    left_out: Sequence[Path],
) -> Iterator[Copied]:
    with _source(data_dir, state_dir) as files:
        for source, path, size_bytes in files:
            if _is_among(data_dir / path, left_out):
                continue
            copied, crc = copy(source, target / LOG / path, size_bytes, on_copied)
            yield Copied(f"{LOG}/{path}", copied, crc)
    # Without it a restored log would get an empty key store, instead of an error until the right
    # one is restored, too. (A broker that runs stages only its own files.)
    marker = data_dir / MARKER
    if marker.exists() and not (target / LOG / MARKER).exists():
        copied, crc = copy(marker, target / LOG / MARKER, None, on_copied)
        yield Copied(f"{LOG}/{MARKER}", copied, crc)


@contextmanager
def _source(data_dir: Path, state_dir: Path) -> Iterator[list[tuple[Path, str, int | None]]]:
    """The files of the log as of one moment, which stay as they are until this is left."""
    lock = open_lock(data_dir / LOCK)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with _staged(data_dir) as staged:
                listed = json.loads((staged / LIST).read_text(encoding="utf-8"))
                yield [(staged / path, path, size_bytes) for path, size_bytes in listed]
            return
        yield [
            (file, str(file.relative_to(data_dir)), None)
            for file in _files_below(data_dir)
            if not file.is_relative_to(state_dir) and _is_copied(file.relative_to(data_dir))
        ]
    finally:
        os.close(lock)


def _is_among(file: Path, paths: Sequence[Path]) -> bool:
    return any(file.is_relative_to(path) for path in paths)


def _is_copied(path: Path) -> bool:
    return path.parts[0] not in _NOT_COPIED and not path.parts[0].endswith((DELETED, ".tmp"))


@contextmanager
def _staged(data_dir: Path) -> Iterator[Path]:
    """What the broker that runs there stages for us; it removes it when we disconnect."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_STAGE_TIMEOUT_S)
        try:
            with short_path(str(data_dir)) as address:
                connection.connect(address)
            connection.sendall(b'{"stage": true}\n')
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise NotReady(
                "the broker that uses the data directory does not answer",
                detail=f"{data_dir}/control: {error}",
                hint="it may be starting; try again, or stop it: a log that no process uses can be"
                " backed up as well",
            ) from error
        if "staged" not in answer:
            reason = answer.get("error", "it has ended")
            raise HeadwaterError("the broker cannot stage a backup", detail=str(reason))
        yield Path(answer["staged"])


def _files_below(directory: Path) -> list[Path]:
    """Without what is being written (`….tmp`), and what is held by its name (`lock`)."""
    found = []
    for root, _, names in os.walk(directory):
        for name in names:
            file = Path(root, name)
            with suppress(FileNotFoundError):
                if file.is_file() and not name.endswith(".tmp") and name not in ("lock", "running"):
                    found.append(file)
    return found
