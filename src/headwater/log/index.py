"""The two sparse indexes beside a segment, in Kafka's format.

    .index      int32 offset - base offset, int32 position in the .log       8 bytes an entry
    .timeindex  int64 timestamp, int32 offset - base offset                  12 bytes an entry

An offset entry names the first offset of the batch that begins at its position, so an entry is
always a batch boundary. (Kafka names the batch's last offset; its tools accept both.) A time entry
says that no record before that offset's batch end has a later timestamp.

Entries are only hints to begin a walk from, so they are not synced with every append: a crash may
lose or tear them, and recovery rebuilds what it scans. They are searched in the file, not held in
memory: an idle partition costs nothing, and 20 reads of cached pages take some 25 µs.
"""

import struct
from typing import NamedTuple

from headwater.log.disk.files import Files

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


class OffsetEntry(NamedTuple):
    relative_offset: int
    position: int


class TimeEntry(NamedTuple):
    timestamp_ms: int
    relative_offset: int


def floor_by_offset(files: Files, fd: int, count: int, relative_offset: int) -> OffsetEntry:
    """The last entry at or before an offset; (0, 0) if there is none."""
    return OffsetEntry._make(_floor(files, fd, count, OFFSET_ENTRY, 0, relative_offset) or (0, 0))


def floor_by_position(files: Files, fd: int, count: int, position: int) -> OffsetEntry:
    """The last entry at or before a position; (0, 0) if there is none."""
    return OffsetEntry._make(_floor(files, fd, count, OFFSET_ENTRY, 1, position) or (0, 0))


def floor_by_time(files: Files, fd: int, count: int, timestamp_ms: int) -> TimeEntry | None:
    """The last entry strictly before a time; None if there is none."""
    found = _floor(files, fd, count, TIME_ENTRY, 0, timestamp_ms - 1)
    return None if found is None else TimeEntry._make(found)


def last_time(files: Files, fd: int, count: int) -> TimeEntry | None:
    if count == 0:
        return None
    data = files.pread(fd, TIME_ENTRY.size, (count - 1) * TIME_ENTRY.size)
    return TimeEntry._make(TIME_ENTRY.unpack(data)) if len(data) == TIME_ENTRY.size else None


def _floor(
    files: Files, fd: int, count: int, form: struct.Struct, column: int, target: int
) -> tuple[int, int] | None:
    low, high = 0, count  # the answer is in front of `high`; everything before `low` is <= target
    found: tuple[int, int] | None = None
    while low < high:
        middle = (low + high) // 2
        data = files.pread(fd, form.size, middle * form.size)
        if len(data) < form.size:  # shorter than it was: another hint is as good
            high = middle
            continue
        entry = form.unpack(data)
        if entry[column] <= target:
            found = (entry[0], entry[1])
            low = middle + 1
        else:
            high = middle
    return found
