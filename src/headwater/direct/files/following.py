"""The lines of a file that grows, is rotated and is truncated: each line once, in order.

A line counts when its newline is there. The last bytes of a file without one are a line only when
nothing can follow any more, because the path belongs to another file and this one has not changed
for a while (a writer may write to a renamed file until it opens the new one).

That a file was truncated shows in its size or its fingerprints (position.py). They are compared
behind each read, so that what was read of a file that was replaced meanwhile is not used.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.direct.files.position import FilePosition
from headwater.direct.files.rotation import names, open_rotated, rotated_files, successors

CHUNK_BYTES: Final = 1 << 20
FINAL_AFTER_S: Final = 5.0
_SHOWN_BYTES: Final = 4096  # of a line that is too long
_COMPARED_BYTES: Final = 1024
_LOOKS: Final = 50  # while names change; a rotation is over after some


@dataclass(frozen=True, slots=True)
class Line:
    """Without its newline. Of one that is too long, `data` is only the beginning."""

    data: bytes
    offset: int
    size_bytes: int
    is_too_long: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines, and the position behind them."""

    lines: list[Line]
    end: FilePosition


class FollowedFile:
    """Lines of `path` from `position` on (None: from the beginning of the file that is there).

    `report` gets a sentence about everything that a user should know: what could not be read.
    To be used by one thread.
    """

    def __init__(
        self,
        path: Path,
        position: FilePosition | None,
        *,
        max_line_bytes: int,
        report: Callable[[str], None],
        final_after_s: float = FINAL_AFTER_S,
    ) -> None:
        self.path = path
        self._max_line_bytes = max_line_bytes
        self._report = report
        self._final_after_s = final_after_s
        self._file = -1
        self._position: FilePosition | None = position
        self._seen_bytes = 0  # how long the file was when it was last looked at
        self._scanned = 0  # up to here there is no newline behind the position
        self._quiet_since_s = 0.0  # since the last new byte, and since the path is another file
        self._compared = (b"", 0)  # bytes that were read, and where
        self._left = (-1, 0)  # the former file, and how long it was
        self._older: set[tuple[int, int]] = set()  # rotated files when this one was begun
        if position is not None:
            self._find(position)

    def close(self) -> None:
        for file in (self._file, self._left[0]):
            if file >= 0:
                os.close(file)
        self._file, self._left = -1, (-1, 0)

    def position_at(self, line: Line) -> FilePosition:
        """In front of a line of the last `read`."""
        return FilePosition.at(self._file, line.offset)

    def read(self) -> Lines | None:
        """The next lines, about CHUNK_BYTES of them; None if there are none now."""
        if self._file < 0 and not self._open_path():
            return None
        self._watch_left()
        position = self._position
        assert position is not None
        lines = self._lines(position.offset)
        # Asked once: what becomes final later is read once more before it is left.
        is_final = not lines and self._is_final()
        if is_final:
            lines = self._last_line(position.offset)
        end = position
        if lines:
            end = FilePosition.at(self._file, self._end_of(lines[-1]))
        # Behind all reads, so that they are of one file if the answer is yes.
        if not self._is_unchanged() or not position.is_held_by(self._file):
            self._restart_truncated(position)
            return None
        if not position.offset and (copy := self._unread_copy(end)) is not None:
            self._replace(copy, 0)
            return None
        self._seen_bytes = max(self._seen_bytes, self._scanned)
        if lines:
            self._position = end
            self._scanned = end.offset
            self._quiet_since_s = time.monotonic()
            return Lines(lines, end)
        if is_final:
            self._go_on()
        return None

    def _end_of(self, line: Line) -> int:
        """Behind its newline, if it has one: the last line of a file that was rotated has none."""
        end = line.offset + line.size_bytes
        return end + (os.pread(self._file, 1, end) == b"\n")

    # Lines

    def _lines(self, offset: int) -> list[Line]:
        scanned = max(self._scanned, offset)
        while True:
            data = os.pread(self._file, CHUNK_BYTES, scanned)
            self._compared = data[:_COMPARED_BYTES], scanned
            last = data.rfind(b"\n")
            if last >= 0:
                break
            if data:
                self._quiet_since_s = time.monotonic()
            scanned += len(data)
            self._scanned = scanned
            if len(data) < CHUNK_BYTES:
                return []
        data = data[: last + 1]
        if scanned == offset:
            return self._split(data, offset)
        first = data.index(b"\n")
        begun = self._line(offset, scanned + first - offset)
        return [begun, *self._split(data[first + 1 :], scanned + first + 1)]

    def _split(self, data: bytes, offset: int) -> list[Line]:
        lines = []
        for text in data.split(b"\n")[:-1]:
            size_bytes = len(text)
            if size_bytes > self._max_line_bytes:
                lines.append(Line(text[:_SHOWN_BYTES], offset, size_bytes, is_too_long=True))
            else:
                lines.append(Line(text, offset, size_bytes))
            offset += size_bytes + 1
        return lines

    def _line(self, offset: int, size_bytes: int) -> Line:
        """One that begins in front of the chunk."""
        is_too_long = size_bytes > self._max_line_bytes
        wanted = min(size_bytes, _SHOWN_BYTES) if is_too_long else size_bytes
        data = _read_exactly(self._file, wanted, offset)
        return Line(data, offset, size_bytes, is_too_long)

    def _last_line(self, offset: int) -> list[Line]:
        """What stands behind the last newline, where nothing can follow."""
        if self._scanned <= offset:
            return []
        return [self._line(offset, self._scanned - offset)]

    # Files

    def _open_path(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        self._begin(0)
        return True

    def _begin(self, offset: int, older: set[tuple[int, int]] | None = None) -> None:
        """In the file that has just been opened."""
        self._older = self._rotated() if older is None else older
        self._position = FilePosition.at(self._file, offset)
        self._seen_bytes = self._scanned = offset
        self._compared = (b"", 0)
        self._quiet_since_s = time.monotonic()

    def _replace(self, file: int, offset: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._begin(offset)

    def _rotated(self) -> set[tuple[int, int]]:
        return {(found.status.st_dev, found.status.st_ino) for found in rotated_files(self.path)}

    def _unread_copy(self, end: FilePosition) -> int | None:
        """Of the open file, opened, if it was copied and truncated before its first byte was read:
        nothing in the file itself shows that. `end` is behind what was read of it now.
        """
        return self._look(lambda: self._find_unread_copy(end))

    def _find_unread_copy(self, end: FilePosition) -> int | None:
        ours = os.fstat(self._file)
        for rotated in rotated_files(self.path):
            status = rotated.status
            if os.path.samestat(status, ours):
                break  # what follows is younger
            if (status.st_dev, status.st_ino) in self._older or not status.st_size:
                continue
            file = open_rotated(rotated)
            if file is not None and not (end.offset and end.is_held_by(file)):
                return file
            if file is not None:
                os.close(file)
        return None

    def _look(self, search: Callable[[], int | None]) -> int | None:
        """A file that `search` opens; again, if it finds none while names change."""
        for _ in range(_LOOKS):
            before = names(self.path)
            found = search()
            if found is not None or names(self.path) == before:
                return found
        return None

    def _leave_for(self, file: int, older: set[tuple[int, int]]) -> None:
        """The former file is complete, or so it seems."""
        if self._left[0] >= 0:
            os.close(self._left[0])
        self._left = (self._file, self._scanned)
        self._file = file
        self._begin(0, older)

    def _is_unchanged(self) -> bool:
        data, offset = self._compared
        return os.pread(self._file, len(data), offset) == data

    def _is_final(self) -> bool:
        """Whether nothing can be added any more to the open file, which was read to its end."""
        ours = os.fstat(self._file)
        try:
            if os.path.samestat(ours, self.path.stat()):
                self._quiet_since_s = time.monotonic()
                return False
        except FileNotFoundError:
            pass
        if ours.st_size > self._scanned:
            return False
        # A rename changes the ctime. Clocks of file servers differ from ours, so both are asked.
        quiet_s = time.time() - max(ours.st_mtime, ours.st_ctime)
        return max(quiet_s, time.monotonic() - self._quiet_since_s) >= self._final_after_s

    def _watch_left(self) -> None:
        """Reports what a writer adds to a file that we took for complete."""
        file, size_bytes = self._left
        if file >= 0 and (now_bytes := os.fstat(file).st_size) > size_bytes:
            self._report(
                f"{now_bytes - size_bytes:,} bytes were written to a rotated file of {self.path}"
                f" more than {self._final_after_s:g} s after it was rotated; they are not read"
            )
            self._left = (file, now_bytes)

    def _go_on(self) -> None:
        """From the end of a file to the next one: rotated meanwhile, or what the path is now."""
        ours = os.fstat(self._file)
        while True:
            later = successors(self.path, ours)
            file = open_rotated(later[0]) if later else _open(self.path)
            if file is None:
                if later:
                    continue  # renamed once more
                return  # deleted, and not created again yet
            older = self._rotated()
            # The path may have been rotated behind our look.
            now = successors(self.path, ours)
            if now and not os.path.samestat(now[0].status, os.fstat(file)):
                os.close(file)
                continue
            younger = {(found.status.st_dev, found.status.st_ino) for found in later}
            self._leave_for(file, older - younger)
            return

    def _restart_truncated(self, position: FilePosition) -> None:
        """The file was truncated. A copy of it may have what was not read."""
        older = self._rotated()
        copy = self._look(lambda: self._holder(position))
        if copy is not None:
            self._replace(copy, position.offset)
            return
        unread_bytes = self._seen_bytes - position.offset
        self._report(
            f"{self.path} was truncated, and no copy of it is found: at least {unread_bytes:,}"
            " bytes were not read before"
            if unread_bytes > 0
            else f"{self.path} was truncated; it is read from its beginning"
        )
        self._begin(0, older)

    def _find(self, position: FilePosition) -> None:
        """The file that the stored position speaks of, whatever its name is now."""
        found = self._look(lambda: self._place_of(position))
        if found is not None:
            self._replace(found, position.offset)
            return
        if position.offset:
            self._report(
                f"the file that was read up to byte {position.offset:,} is no longer there:"
                f" what it had behind that is lost, and {self.path} is read from its beginning"
            )
        current = _open(self.path)
        if current is not None:
            self._replace(current, 0)

    def _place_of(self, position: FilePosition) -> int | None:
        """The same file under its path or another name, else a copy, else the same bytes under
        the path: moved, or saved again.
        """
        current = _open(self.path)
        is_held = current is not None and position.is_held_by(current)
        if is_held and current is not None and position.is_in(os.fstat(current)):
            return current
        holder = self._holder(position)
        if holder is None and is_held and position.offset:
            return current
        if current is not None:
            os.close(current)
        return holder

    def _holder(self, position: FilePosition) -> int | None:
        """A rotated file that has all that was read, opened: the same file, else a copy."""
        copy = None
        for rotated in reversed(rotated_files(self.path)):
            file = open_rotated(rotated)
            if file is None:
                continue
            if position.is_held_by(file):
                if position.is_in(os.fstat(file)):
                    if copy is not None:
                        os.close(copy)
                    return file
                if copy is None and position.offset:
                    copy = file
                    continue
            os.close(file)
        return copy


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None


def _read_exactly(file: int, size_bytes: int, offset: int) -> bytes:
    """Short only if the file is truncated meanwhile, which its caller finds out."""
    parts = []
    while size_bytes and (part := os.pread(file, size_bytes, offset)):
        parts.append(part)
        size_bytes -= len(part)
        offset += len(part)
    return b"".join(parts)
