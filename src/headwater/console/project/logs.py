"""The log of a detached supervisor, searched from its end: at most the newest lines that match."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headwater.supervisor.log_events import event_of, name_of, text_of
from headwater.supervisor.log_file import files_of

MOST_LINES: Final = 200
_BLOCK_BYTES: Final = 256 << 10
_TEXT_CHARACTERS: Final = 4000  # of a line
_SEVERITY: Final = {"warning": 1, "error": 2, "critical": 3}


def read_log(
    data_dir: Path, *, child: str = "", search: str = "", level: str = ""
) -> list[dict[str, Any]]:
    """The newest first. `search`: all its words occur in a line, whatever their case; `level`: only
    lines as serious as that. Raises OSError.
    """
    words = [word.encode() for word in search.lower().split()]
    found: list[dict[str, Any]] = []
    for path in reversed(files_of(data_dir)):
        for line in _lines_backwards(path):
            # Before it is decoded: most lines of a long log are none of those.
            if words and not all(word in line.lower() for word in words):
                continue
            event = event_of(line)
            name, text = name_of(event), text_of(event)
            if child and name != child:
                continue
            if _severity(event) < _SEVERITY.get(level, 0):
                continue
            if words and not all(word.decode() in f"{name} {text}".lower() for word in words):
                continue
            found.append(
                {
                    "at": event.get("at"),
                    "child": name,
                    "level": "error" if event["event"] == "error" else event.get("level") or "",
                    "text": text[:_TEXT_CHARACTERS],
                }
            )
            if len(found) == MOST_LINES:
                return found
    return found


def _severity(event: dict[str, Any]) -> int:
    if event["event"] == "error" or event.get("state") == "failed":
        return _SEVERITY["error"]
    return _SEVERITY.get(str(event.get("level")), 0)


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Whole lines, the last first; of the file as it is now."""
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        rest: bytes | None = None  # the beginning of the line that the block before ends
        while at:
            size = min(_BLOCK_BYTES, at)
            at -= size
            file.seek(at)
            block = file.read(size) + (rest or b"")
            first, *lines = block.split(b"\n")
            if rest is None and lines:
                lines.pop()  # what follows the last line's end: nothing, or a line that is written
            yield from reversed(lines)
            rest = first
        if rest:
            yield rest
