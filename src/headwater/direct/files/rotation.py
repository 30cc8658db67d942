"""Files that a rotation has made of a followed one, oldest first.

    rename and create    app.log is renamed to app.log.1, the writer creates a new app.log
    copytruncate         app.log is copied to app.log.1 and truncated, the writer goes on in it

Rotated files are the ones beside the path whose name has a number or a date added: app.log.1,
app.log-20261117, app-2026-11-17.log. Compressed ones are not among them, because their bytes differ
from what was read.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

_ADDED: Final = r"[.-](\d[\d.:T_-]*)"
_LONGEST_COUNT: Final = 4  # digits; more are a date


class Rotated(NamedTuple):
    """One of them, in the order of their ages: the oldest is the smallest."""

    changed_ns: int
    age: int  # of files that were changed in the same moment, app.log.2 is older than app.log.1
    added: str
    path: Path
    status: os.stat_result


def rotated_files(path: Path) -> list[Rotated]:
    """Without the file that now has the path itself."""
    pattern = re.compile(
        rf"{re.escape(path.name)}{_ADDED}|{re.escape(path.stem)}{_ADDED}{re.escape(path.suffix)}"
    )
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    current = _status(path)
    found = []
    for name in names:
        match = pattern.fullmatch(name)
        status = _status(path.parent / name) if match else None
        if match is None or status is None or _is_same(status, current):
            continue
        added = match[1] or match[2]
        is_count = added.isdigit() and len(added) <= _LONGEST_COUNT
        age = -int(added) if is_count else 0
        found.append(Rotated(status.st_mtime_ns, age, added, path.parent / name, status))
    return sorted(found, key=lambda rotated: rotated[:4])


def successors(path: Path, status: os.stat_result) -> list[Rotated]:
    """The rotated files that were written after the one with this status, oldest first."""
    files = rotated_files(path)
    for index, rotated in enumerate(files):
        if _is_same(rotated.status, status):
            return files[index + 1 :]
    return [rotated for rotated in files if rotated.changed_ns > status.st_mtime_ns]


def names(path: Path) -> list[tuple[Path, int, int]]:
    """Which file has which name now. Names move on with every rotation: who looks for a file and
    does not find it looks again if they have changed meanwhile.
    """
    current = _status(path)
    found = [(rotated.path, rotated.status) for rotated in rotated_files(path)]
    found += [(path, current)] if current is not None else []
    return [(name, status.st_dev, status.st_ino) for name, status in found]


def open_rotated(rotated: Rotated) -> int | None:
    """None if the name belongs to another file now."""
    try:
        file = os.open(rotated.path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    if os.path.samestat(os.fstat(file), rotated.status):
        return file
    os.close(file)
    return None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _is_same(one: os.stat_result, other: os.stat_result | None) -> bool:
    return other is not None and os.path.samestat(one, other)
