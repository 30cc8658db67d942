"""Checks of this machine for `headwater doctor`: data directory, disk, archive, files, clock."""

import asyncio
import dataclasses
import os
import resource
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headwater.errors import HeadwaterError
from headwater.settings import BrokerSettings
from headwater.terminal.output import duration, size

_SYNCS: Final = 9
_SLOW_SYNC_S: Final = 0.02
_LITTLE_SPACE_BYTES: Final = 1 << 30
_FILES_BESIDE_SEGMENTS: Final = 64  # listeners, indexes being written, libraries
_ARCHIVE_TIMEOUT_S: Final = 15.0
_EARLIEST_SANE_TIME_S: Final = 1_767_225_600  # 2026-01-01: no record is older than the program
_VOLATILE: Final = ("tmpfs", "ramfs")
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `level`: ok, info, warning, broken."""

    level: str
    check: str
    found: str
    hint: str = ""


def check_data_dir(data_dir: Path) -> Iterator[Finding]:
    there = data_dir.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "broken",
            "data directory",
            f"{there} is not a directory that this user can write to",
            "change its owner, or set broker.data_dir",
        )
        return
    note = "" if there == data_dir.absolute() else f" ({data_dir} will be made)"
    kind = _file_system(there)
    if kind in _VOLATILE:
        yield Finding(
            "warning",
            "data directory",
            f"{there} is on {kind}: in memory, lost when the machine stops{note}",
            "set broker.data_dir to a directory on a disk",
        )
    elif kind in _REMOTE:
        yield Finding(
            "warning",
            "data directory",
            f"{there} is on {kind}: a remote disk, whose fsync is slow or does nothing{note}",
            "set broker.data_dir to a directory on a local disk",
        )
    else:
        yield Finding("ok", "data directory", f"{there} is writable, on {kind}{note}")
    yield _check_space(there)
    yield _check_sync(there)


def _file_system(directory: Path) -> str:
    """The kind of the file system that `directory` is on: the mount with the longest prefix."""
    best, kind = "", "an unknown file system"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    path = str(directory.resolve())
    for line in mounts:
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def _check_space(directory: Path) -> Finding:
    usage = shutil.disk_usage(directory)
    found = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free < _LITTLE_SPACE_BYTES:
        return Finding(
            "warning",
            "disk space",
            found,
            "free some, or bound the log: [broker.topic_defaults] retention.bytes",
        )
    return Finding("ok", "disk space", found)


def _check_sync(directory: Path) -> Finding:
    """How long an acknowledged record waits for the disk."""
    block = b"\0" * 4096
    taken_s = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(_SYNCS):
                began_s = time.perf_counter()
                os.write(file.fileno(), block)
                os.fdatasync(file.fileno())
                taken_s.append(time.perf_counter() - began_s)
    except OSError as error:
        return Finding(
            "broken", "disk sync", f"writing 4 KiB failed: {error}", "see dmesg; try another disk"
        )
    median_s = statistics.median(taken_s)
    found = f"fdatasync of 4 KiB takes {duration(median_s)} (median of {_SYNCS})"
    if median_s > _SLOW_SYNC_S:
        return Finding(
            "warning",
            "disk sync",
            found,
            "every acknowledgement waits so long; use a faster disk, or headwater.durability=os"
            " on topics that may lose their last records",
        )
    return Finding("ok", "disk sync", found)


def check_open_files(broker: BrokerSettings) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = broker.max_open_files + _FILES_BESIDE_SEGMENTS
    wanted = least + broker.max_connections
    found = f"limit {soft} (hard {hard})"
    if hard != resource.RLIM_INFINITY and hard < least:
        yield Finding(
            "broken",
            "open files",
            f"{found}, broker.max_open_files = {broker.max_open_files} needs {least}",
            f"raise it (ulimit -n {least}) or lower broker.max_open_files",
        )
    elif soft != resource.RLIM_INFINITY and soft < wanted:
        yield Finding(
            "warning",
            "open files",
            f"{found}, {broker.max_open_files} segments and {broker.max_connections} connections"
            f" need {wanted}",
            f"ulimit -n {wanted}, or lower broker.max_connections",
        )
    else:
        yield Finding("ok", "open files", found)


def check_archive(broker: BrokerSettings, url: str) -> Finding:
    """Writes, lists, reads and deletes a small object, as the broker does with segments."""
    from headwater.log.archive.objects import open_objects

    directory = unquote(urlsplit(url).path)
    if url.startswith("file:") and not os.path.isdir(directory):
        found = f"{directory} is not there; the first segment will make it"
        return Finding("warning", "archive", found, "is it on a disk that is not mounted?")
    name = f"doctor/{uuid.uuid4().hex}"

    async def contents() -> AsyncIterator[bytes]:
        yield b"headwater"

    async def use() -> None:
        objects = open_objects(url, endpoint=broker.archive_endpoint, region=broker.archive_region)
        try:
            async with asyncio.timeout(_ARCHIVE_TIMEOUT_S):
                await objects.put(name, contents())
                if name not in await objects.names("doctor"):
                    raise HeadwaterError("what was written is not in the list")
                await objects.get(name, 0, 9)
                await objects.delete([name])
        finally:
            objects.close()

    begun_s = time.perf_counter()
    try:
        asyncio.run(use())
    except TimeoutError:
        found = f"{url} does not answer within {_ARCHIVE_TIMEOUT_S:.0f} s"
    except (HeadwaterError, OSError) as error:
        found = str(error)
    else:
        took = (time.perf_counter() - begun_s) * 1000
        return Finding("ok", "archive", f"{url} takes, lists and gives back, in {took:.0f} ms")
    hint = "broker.archive and archive_endpoint say where it is; AWS_ACCESS_KEY_ID and"
    return Finding("broken", "archive", found, f"{hint} AWS_SECRET_ACCESS_KEY who may use it")


def check_clock() -> Iterator[Finding]:
    now_s = time.time()
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        apart_s = abs(os.fstat(file.fileno()).st_mtime - now_s)
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    if now_s < _EARLIEST_SANE_TIME_S:
        yield Finding(
            "broken", "clock", f"{shown} is in the past", "set it, e.g. timedatectl set-ntp true"
        )
    elif apart_s > 2:
        yield Finding(
            "warning",
            "clock",
            f"{shown}, but the file system's is {duration(apart_s)} apart",
            "synchronise both with NTP",
        )
    else:
        yield Finding("ok", "clock", shown)
