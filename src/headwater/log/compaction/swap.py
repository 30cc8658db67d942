"""The swap: cleaned segments replace the old ones, all of them or none, also through a crash.

The cleaned segment has the name of the first old one, so a crash must not leave a mixture:

  1. Every old file gets a second name, `….<n>.deleted.log`, by which readers go on (a hard link).
  2. A manifest, `….swap`, lists the segments that are replaced, with a checksum: it decides what is
     removed. From here on the swap will happen.
  3. The cleaned files are renamed over the first segment's, the others' names are removed.
  4. The manifest is removed. The log drops the old segments; their files go with the last reader.

A crash before 2 leaves the old segments, a crash after it is completed by the next start; each
step may be done twice. `….cleaned.*` and `….deleted.*` files that a start finds are leftovers.
"""

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headwater.errors import CorruptLog
from headwater.log import segment as segments_on_disk
from headwater.log.disk.files import Files
from headwater.log.segment import Segment, Storage
from headwater.protocol.records import crc32c

if TYPE_CHECKING:
    from headwater.log.partitions.partition import PartitionLog
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

ALWAYS_THERE = ("log", "index", "timeindex")
SUFFIXES = (*ALWAYS_THERE, "txnindex")
_MANIFEST_CRC_BYTES = 9
_MANIFEST = re.compile(r"(\d{20})\.swap")
_LEFTOVER = re.compile(r"\d{20}\.(cleaned|\d+\.deleted)\.\w+|\d{20}\.swap\.tmp")


def _stem(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}"


async def swap_in(store: "LogStore", partition: "PartitionLog", bases: Sequence[int]) -> bool:
    """Replaces the segments of those base offsets by the cleaned one of the first of them.

    False: they are no longer what was cleaned, because retention or a deletion was faster. On
    OSError the old segments are still in use. If the disk fails when the swap has begun, only the
    next start can complete it: until then nothing of the partition is cleaned (`is_stuck`).
    """
    inputs = tuple(segment for segment in partition.segments if segment.base_offset in set(bases))
    if len(inputs) != len(bases):
        # Only this one: the child is already writing the next.
        await store.in_worker(discard, store.storage.files, partition.directory, bases[0])
        return False
    directory, serial = partition.directory, store.next_serial()
    partition.begin_swap(inputs)
    try:
        failure = await store.in_worker(_prepare, store.storage, directory, inputs, serial)
        if failure is None:
            for segment in inputs:
                segment.move_to(f"{_stem(directory, segment.base_offset)}.{serial}.deleted")
            cleaned = await store.in_worker(_finish, store.storage, directory, bases[0])
            partition.replace(inputs, cleaned)
    except BaseException:  # also when the broker stops: what the manifest lists will be done
        partition.is_stuck = True
        raise
    finally:
        partition.end_swap(inputs)
    if failure is not None:
        raise failure
    return True


def _prepare(
    storage: Storage, directory: str, inputs: Sequence[Segment], serial: int
) -> OSError | None:
    """(worker) Steps 1 and 2. An error that is returned has changed nothing; one that is raised
    may have left the manifest.
    """
    files = storage.files
    bases = [segment.base_offset for segment in inputs]
    try:
        suffixes = [
            suffix
            for suffix in SUFFIXES
            if os.path.exists(f"{_stem(directory, bases[0])}.cleaned.{suffix}")
        ]
        if not set(ALWAYS_THERE) <= set(suffixes):  # nothing would replace the old ones
            raise FileNotFoundError(f"a cleaned segment is not whole: {_stem(directory, bases[0])}")
        for base in bases:
            for suffix in SUFFIXES:
                path = f"{_stem(directory, base)}.{suffix}"
                if os.path.exists(path):
                    files.link(path, f"{_stem(directory, base)}.{serial}.deleted.{suffix}")
        manifest = _encode_manifest(suffixes, bases)
        files.write_atomically(f"{_stem(directory, bases[0])}.swap", manifest)
    except OSError as error:
        # The manifest may have got its name all the same. It has to be removed before its files.
        files.unlink(f"{_stem(directory, bases[0])}.swap")
        files.sync_directory(directory)
        discard(files, directory)
        for name in files.listdir(directory):
            if f".{serial}.deleted." in name:
                files.unlink(f"{directory}/{name}")
        return error
    return None


def _finish(storage: Storage, directory: str, base_offset: int) -> Segment:
    """(worker) Steps 3 and 4."""
    changed = _complete(storage.files, directory, base_offset)
    for path in changed:  # a descriptor of the old file must not be found by the name
        storage.open_files.forget(path)
    return segments_on_disk.open_sealed(storage, directory, base_offset)


def _complete(files: Files, directory: str, base_offset: int) -> list[str]:
    """Does what the manifest lists, again if need be. The names that mean another file now."""
    manifest = f"{_stem(directory, base_offset)}.swap"
    suffixes, bases = _decode_manifest(manifest, files.read(manifest))
    changed = []
    for suffix in SUFFIXES:
        target = f"{_stem(directory, base_offset)}.{suffix}"
        changed.append(target)
        if suffix not in suffixes:
            files.unlink(target)
        elif os.path.exists(cleaned := f"{_stem(directory, base_offset)}.cleaned.{suffix}"):
            files.rename(cleaned, target)
    for base in bases:
        if base != base_offset:
            for suffix in SUFFIXES:
                changed.append(f"{_stem(directory, base)}.{suffix}")
                files.unlink(changed[-1])
    files.sync_directory(directory)
    files.unlink(manifest)
    # Should it come back, it would take away what has that name then.
    files.sync_directory(directory)
    return changed


def _encode_manifest(suffixes: Sequence[str], bases: Sequence[int]) -> bytes:
    """The suffixes of the cleaned files, then the base offsets, a line each, then the checksum."""
    lines = "".join(f"{line}\n" for line in (" ".join(suffixes), *bases)).encode()
    return lines + b"%08x\n" % crc32c(lines)


def _decode_manifest(path: str, manifest: bytes) -> tuple[list[str], list[int]]:
    """Raises CorruptLog."""
    lines = manifest[:-_MANIFEST_CRC_BYTES]
    if manifest[-_MANIFEST_CRC_BYTES:] != b"%08x\n" % crc32c(lines):
        raise CorruptLog(
            "the manifest of a compaction is damaged",
            detail=path,
            hint="move the partition's directory away, or restore it from a backup",
        )
    head, *bases = lines.decode("ascii").splitlines()
    return head.split(), [int(line) for line in bases]


def recover(files: Files, directory: str, names: Iterable[str]) -> bool:
    """At a start: completes what has begun and removes what has not. Whether names changed."""
    names = list(names)
    manifests = [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
    for base_offset in manifests:
        log.warning("a compaction is completed: %s", f"{_stem(directory, base_offset)}.swap")
        _complete(files, directory, base_offset)
    leftovers = [name for name in names if _LEFTOVER.fullmatch(name)]
    for name in leftovers:
        files.unlink(f"{directory}/{name}")
    return bool(manifests or leftovers)


def discard(files: Files, directory: str, base_offset: int | None = None) -> None:
    """(worker) Removes what a pass has written and no swap will use: one segment, or all."""
    stem = "" if base_offset is None else f"{base_offset:020d}"
    with contextlib.suppress(FileNotFoundError):
        for name in files.listdir(directory):
            if ".cleaned." in name and name.startswith(stem):
                files.unlink(f"{directory}/{name}")
