"""The output of a child as parsed lines.

Children write JSON, so that the supervisor can distinguish log lines, reasons and addresses; what
user code prints in between is taken as it is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MAX_LINE_BYTES: Final = 16 << 10  # a longer line comes in pieces


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a child's output."""

    text: str
    level: str = ""  # of the log: info, warning, error …; "" for what is no log line
    at: float | None = None
    announced: dict[str, Any] | None = None  # what a command announces when it has started
    error: dict[str, str] | None = None  # the error of a command that fails


class Splitter:
    """Bytes in, whole lines out. Holds at most one line of MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._rest = b""

    def lines(self, data: bytes) -> Iterator[Line]:
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            yield from (_line(piece) for piece in _pieces(line))
        *full, self._rest = _pieces(rest)
        yield from (_line(piece) for piece in full)

    def last(self) -> Iterator[Line]:
        """What has no end of line, for nothing comes any more."""
        rest, self._rest = self._rest, b""
        if rest:
            yield _line(rest)


def _pieces(line: bytes) -> list[bytes]:
    return [
        line[start : start + MAX_LINE_BYTES] for start in range(0, len(line), MAX_LINE_BYTES)
    ] or [b""]


def _line(data: bytes) -> Line:
    text = data.decode("utf-8", "replace").rstrip("\r")
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = {}
        # User code may print any JSON: what is not of our commands' making is text.
        if _are_texts(fields, "message", "level", "traceback"):
            message = "\n".join(filter(None, (fields["message"], fields.get("traceback", ""))))
            at = fields.get("at")
            return Line(message, fields["level"], at if isinstance(at, int | float) else None)
        if _are_texts(fields, "error", "detail", "hint"):
            parts = (fields["error"], fields.get("detail", ""))
            return Line(": ".join(filter(None, parts)), "error", error=fields)
        if isinstance(fields.get("pid"), int):
            return Line(text, announced=fields)
    return Line(text)


def _are_texts(fields: dict[str, Any], name: str, *others: str) -> bool:
    """Whether the first is there, a message with its level, and whatever is there is text."""
    needed = (name, "level") if name == "message" else (name,)
    texts = [fields[key] for key in (name, *others) if key in fields]
    return all(key in fields for key in needed) and all(isinstance(x, str) for x in texts)
