"""Rows read with COPY, from its text format."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from headwater.capture.contract import Row
from headwater.capture.postgres.connection import quoted
from headwater.capture.postgres.values import Codec

# COPY's text format writes a vertical tab inside of values as \v: a bare one can only be our NULL.
NULL: Final = "\x0b"
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_INLINE: Final = {
    "int": "int(c{i})",
    "float": "f{i}(c{i})",
    "bool": "c{i} == 't'",
    "text": "c{i}",
    "call": "f{i}(c{i})",
}
# From cells, and what stands for NULL among them, to rows.
MakeRows = Callable[[Iterable[list[str]], str], list[Row]]


class Full(Exception):
    """Enough bytes for one chunk."""


class Lines(list[bytes]):
    """Where COPY writes its rows; ends it when there are enough bytes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes
        self.size_bytes = 0

    def write(self, line: bytes) -> None:
        self.append(line)
        self.size_bytes += len(line)
        if self.size_bytes > self._limit_bytes:
            raise Full


def cells_of(data: bytes) -> tuple[Iterator[list[str]], str]:
    """The cells of each row, and what stands for NULL among them. One row at a time: lists that
    live on would be the garbage collector's work.
    """
    text = data.decode()
    if "\\" not in text:
        lines = text.split("\n")
        lines.pop()
        return map(str.split, lines, repeat("\t")), NULL
    # Once unescaped, a vertical tab may be a value. PostgreSQL's text never has a NUL character.
    lines = text.replace(NULL, "\0").split("\n")
    lines.pop()
    return (unescaped(line) if "\\" in line else line.split("\t") for line in lines), "\0"


def unescaped(line: str) -> list[str]:
    return [
        _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), cell) if "\\" in cell else cell
        for cell in line.split("\t")
    ]


def rows_maker(names: Sequence[str], codecs: Sequence[Codec]) -> MakeRows:
    """One comprehension made for the table: from cells to rows."""
    scope: dict[str, Any] = {f"f{i}": codec.convert for i, codec in enumerate(codecs)}
    if not names:
        return lambda cells, _null: [{} for _ in cells]
    row = ", ".join(
        f"{name!r}: None if c{i} == null else {_INLINE[codec.inline].format(i=i)}"
        for i, (name, codec) in enumerate(zip(names, codecs, strict=True))
    )
    unpacked = ", ".join(f"c{i}" for i in range(len(names)))
    source = f"def make_rows(cells, null):\n  return [{{{row}}} for {unpacked}, in cells]"
    exec(source, scope)  # noqa: S102 - names go in as literals only
    made: MakeRows = scope["make_rows"]
    return made


def find_operators(cursor: Any, types: Iterable[int]) -> None:
    """For the transaction in progress: the operators of types of extensions (citext) are found only
    in their schema.
    """
    own = [oid for oid in types if oid >= 16384]
    if not own:
        return
    cursor.execute(
        """SELECT DISTINCT n.nspname FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace
           WHERE t.oid = ANY(%s::oid[]) AND typtype = 'b'""",
        (own,),
    )
    schemas = ["pg_catalog", *(name for (name,) in cursor.fetchall())]
    cursor.execute("SET LOCAL search_path = " + ", ".join(map(quoted, schemas)))
