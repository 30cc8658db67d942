"""The producer snapshots beside a partition's segments: `<offset>.snapshot` (see producers.py).

Each is the producers' state as of the offset in its name: all batches in front of it are in, none
behind it. It is written when a segment is begun, under the same offset, and with every checkpoint,
but only if there is a producer. From any of them the state at the log's end follows by reading the
headers behind it, so:

  - only one whose offset lies in the log is of use. In front of the first segment there may have
    been batches between, which would make the producer's next one look like a gap; behind the end
    are batches that are lost, whose retry would be taken for a duplicate.
  - a checkpoint removes the older ones except for the newest of them, in case its own is damaged.
"""

import logging
import re

from headwater.errors import CorruptLog
from headwater.log.disk.files import Files
from headwater.log.partitions.producers import Producers

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{20})\.snapshot")
_LEFTOVER = re.compile(r"(\d{20})\.snapshot(?:\.\w+)?\.tmp")


def offset_of(name: str) -> int | None:
    """Of the file of that name; None if it is no snapshot."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def write_at_roll(files: Files, directory: str, offset: int, producers: Producers) -> None:
    """Lasting when it returns. A checkpoint may write the one of the same name meanwhile."""
    if producers.by_id:
        path = f"{directory}/{offset:020d}.snapshot"
        files.write_atomically(path, producers.to_snapshot(), temporary=f"{path}.roll.tmp")


def write_at_checkpoint(files: Files, directory: str, offset: int, producers: Producers) -> None:
    """Durable when it returns; then removes the snapshots that recovery no longer needs."""
    names = files.listdir(directory)
    older = sorted(other for other in _offsets(names) if other < offset)
    if producers.by_id:
        files.write_atomically(f"{directory}/{offset:020d}.snapshot", producers.to_snapshot())
        older = older[:-1]
    else:
        older = [other for other in _offsets(names) if other <= offset]
    for old in older:
        files.unlink(f"{directory}/{old:020d}.snapshot")
    for name in names:
        found = _LEFTOVER.fullmatch(name)
        if found and int(found[1]) < offset:  # a crash interrupted it
            files.unlink(f"{directory}/{name}")


def newest(
    files: Files, directory: str, names: list[str], first_offset: int, end_offset: int
) -> tuple[int | None, Producers]:
    """The producers, and the offset up to which they are right: None if there was no snapshot, the
    log's first offset if there is none of use.

    A damaged one stays until the next checkpoint: without it another start would take it that
    there was no producer.
    """
    offsets = sorted(_offsets(names), reverse=True)
    for offset in offsets:
        if first_offset <= offset <= end_offset:
            path = f"{directory}/{offset:020d}.snapshot"
            try:
                return offset, Producers.from_snapshot(files.read(path))
            except (CorruptLog, OSError) as error:
                log.warning("a producer snapshot is left out: %s: %s", path, error)
    return first_offset if offsets else None, Producers()


def replace_behind(
    files: Files, directory: str, names: list[str], end_offset: int, producers: Producers
) -> None:
    """If the log was cut in front of its last checkpoint, makes good for the snapshots behind its
    end, lastingly: it will grow beyond them.
    """
    behind = [name for name in names if is_behind(name, end_offset)]
    if behind:
        # Also without a producer, for none at all would say so of the last checkpoint.
        files.write_atomically(f"{directory}/{end_offset:020d}.snapshot", producers.to_snapshot())
    for name in behind:
        files.unlink(f"{directory}/{name}")
    if behind:
        files.sync_directory(directory)


def is_behind(name: str, end_offset: int) -> bool:
    """Whether a file is the snapshot of more than the log has."""
    found = _NAME.fullmatch(name)
    return found is not None and int(found[1]) > end_offset


def _offsets(names: list[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
