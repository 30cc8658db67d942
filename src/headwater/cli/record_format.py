r"""Records as text: format strings, and the form that people read on a terminal.

    %t topic      %p partition   %o offset      %k key        %v value
    %h headers    %T timestamp in ms            %d time, ISO 8601, UTC
    %%  a percent sign     \n \t \r \0 \\ and \xNN as in C

Output is bytes: keys and values go out as they are, unless `binary` asks for hex or base64 where
they are not UTF-8. On a terminal control characters in them are escaped, unless `binary` asks for
`raw`.
"""

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from headwater.errors import UsageError
from headwater.printable import printable
from headwater.protocol.erased_records import is_erased

Formatter = Callable[[Any], bytes]

BINARY_FORMS: Final = ("raw", "hex", "base64")
_ENCODERS: Final[dict[str | None, Callable[[bytes], bytes]]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
    None: lambda data: printable(data.decode(errors="backslashreplace")).encode(),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)


def formatter(template: str, binary: str | None = None, *, terminal: bool = False) -> Formatter:
    """A function from a message to its bytes. Raises UsageError for an unknown escape."""
    shown = _shown(binary, terminal=terminal)
    fields: dict[str, Formatter] = {
        "t": lambda message: message.topic().encode(),
        "p": lambda message: b"%d" % message.partition(),
        "o": lambda message: b"%d" % message.offset(),
        "k": lambda message: shown(message.key()),
        "v": lambda message: shown(message.value()),
        "h": lambda message: _headers(message, shown),
        "T": lambda message: b"%d" % message.timestamp()[1],
        "d": lambda message: iso_time(message.timestamp()[1]).encode(),
    }
    parts: list[bytes | Formatter] = []
    for percent, hexadecimal, escape, text, stray in _TOKEN.findall(template):
        if text:
            parts.append(text.encode())
        elif percent == "%":
            parts.append(b"%")
        elif percent in fields and percent:
            parts.append(fields[percent])
        elif hexadecimal:
            parts.append(bytes.fromhex(hexadecimal))
        elif escape in _ESCAPES and escape:
            parts.append(_ESCAPES[escape])
        else:
            raise UsageError(
                f"unknown in a format: {'%' + percent if percent else chr(92) + (escape or stray)}",
                hint="%t %p %o %k %v %h %T %d %%, \\n \\t \\r \\0 \\\\ \\xNN",
            )

    def render(message: Any) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return render


def value_lines(messages: list[Any]) -> bytes:
    """The values of a batch, one per line: the fast way, and the form in a pipe."""
    lines = [message.value() or b"" for message in messages]
    lines.append(b"")
    return b"\n".join(lines)


def terminal_formatter(binary: str | None, *, with_topic: bool, colour: bool) -> Formatter:
    """One line for a person: where, when, key, value, headers."""
    shown = _shown(binary or "hex", terminal=True)
    dim, cyan, plain = (b"\x1b[2m", b"\x1b[36m", b"\x1b[0m") if colour else (b"", b"", b"")

    def render(message: Any) -> bytes:
        where = f"{message.partition()}@{message.offset()}"
        if with_topic:
            where = f"{message.topic()}:{where}"
        kind, timestamp_ms = message.timestamp()
        when = datetime.fromtimestamp(timestamp_ms / 1000).astimezone() if kind else None
        clock = f"{when:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}" if when else "-"
        line = b"%s%-8s %s%s  " % (dim, where.encode(), clock.encode(), plain)
        if message.key() is not None:
            line += b"%s%s%s  " % (cyan, shown(message.key()), plain)
        headers = message.headers() or ()
        if is_erased(message.key(), message.value(), headers):
            return line + dim + b"(erased)" + plain + b"\n"
        line += dim + b"(null)" + plain if message.value() is None else shown(message.value())
        if headers:
            line += b"  %s{%s}%s" % (dim, _headers(message, shown), plain)
        return line + b"\n"

    return render


def iso_time(timestamp_ms: int) -> str:
    """2026-11-15T10:00:00.000Z; what `-o @…` understands."""
    if timestamp_ms < 0:
        return "-"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def _headers(message: Any, shown: Callable[[bytes | None], bytes]) -> bytes:
    pairs = message.headers() or ()
    return b",".join(shown(name.encode()) + b"=" + shown(value) for name, value in pairs)


def _shown(binary: str | None, *, terminal: bool) -> Callable[[bytes | None], bytes]:
    if binary == "raw" or (binary is None and not terminal):
        return lambda data: data or b""
    encode = _ENCODERS[binary]

    def shown(data: bytes | None) -> bytes:
        if data is None:
            return b""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return encode(data)
        return printable(text).encode() if terminal else data

    return shown
