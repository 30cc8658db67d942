"""Text for people: tables, sizes, durations, colour when the reader is a terminal."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TextIO

from headwater.printable import printable, printable_json, printable_with_styles

_STYLES: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36",
}  # fmt: skip


def say(text: str = "") -> None:
    """One or more lines on stdout."""
    sys.stdout.write(_safe(text, sys.stdout) + "\n")


def note(text: str) -> None:
    """One or more lines on stderr: what is not the result."""
    sys.stdout.flush()
    sys.stderr.write(_safe(text, sys.stderr) + "\n")
    sys.stderr.flush()


def _safe(text: str, stream: TextIO) -> str:
    """Only `styled` gives a terminal something to act upon."""
    return printable_with_styles(text) if coloured(stream) else printable(text)


def terminal() -> bool:
    """Whether stdout is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def coloured(stream: TextIO) -> bool:
    """Whether `stream` shows colours: a terminal does, unless NO_COLOR asks it not to."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in the styles named ("bold red"), where the stream (stdout) shows them."""
    if not coloured(stream or sys.stdout):
        return text
    codes = ";".join(_STYLES[name] for name in style.split())
    return f"\x1b[{codes}m{printable(text)}\x1b[0m"


def path_to_type() -> list[str]:
    """What must be typed before `headwater` is found by a shell: nothing, or one line. Right for
    as long as the working directory is the one that the program was started in.
    """
    import shlex
    import shutil

    called = os.path.abspath(sys.argv[0])
    if os.path.basename(called) != "headwater":  # python -m
        called = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "headwater")
    if not os.path.exists(called):
        return []
    found = shutil.which("headwater")
    if found and os.path.realpath(found) == os.path.realpath(called):
        return []
    return [f'export PATH={shlex.quote(os.path.dirname(called))}:"$PATH"']


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns, numbers to the right. A header that begins with ">" aligns right."""
    right = [header.startswith(">") for header in headers]
    titles = [header.removeprefix(">").upper() for header in headers]
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join([styled(line(titles), "bold"), *map(line, cells)])


def print_json(value: Any) -> None:
    """One JSON document on a line of its own, at once (a pipe may be waiting for it)."""
    import orjson

    text = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    sys.stdout.write(printable_json(text) + "\n")
    sys.stdout.flush()


def count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """1 row, 1,234 rows, 2 searches."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def size(size_bytes: float | None) -> str:
    """12.3 MiB."""
    if size_bytes is None:
        return "?"
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float) -> str:
    """3 days 4 h, 2 h 5 min, 42 s, 1.5 ms."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{plural(days, 'day')} {hours} h" if days < 30 else plural(days, "day")
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def ready_reporter(what: str, bootstrap: str, *, as_json: bool) -> Callable[[str], None]:
    """For a server in the foreground: reports its address, to people or as one JSON line."""

    def ready(url: str) -> None:
        if as_json:
            print_json({"url": url, "listen": url.partition("://")[2], "pid": os.getpid()})
            return
        say(
            f"the {what} is at {styled(url, 'bold')}, for the broker at {bootstrap}"
            + ("\nCtrl-C stops it" if sys.stdout.isatty() else "")
        )
        sys.stdout.flush()

    return ready
