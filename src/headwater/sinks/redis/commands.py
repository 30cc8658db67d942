"""A batch as Redis commands in their wire format, built from Arrow columns.

No row becomes a Python object: Arrow joins the texts of a column with their lengths, and a
command is a head and a slice of the result.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.sinks.rows.documents import Documents

ROWS_PER_COMMAND: Final = 1000
# A script within EXEC, so that a thousand entries are one command and one answer.
_ADD: Final = b"""
for number = 2, #ARGV do
  if ARGV[1] == '' then redis.call('XADD', KEYS[1], '*', 'row', ARGV[number])
  else redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'row', ARGV[number]) end
end"""


def command(*arguments: bytes) -> bytes:
    return b"*%d\r\n%s" % (len(arguments), b"".join(map(_argument, arguments)))


def commands_of(name: bytes, documents: Documents, *, has_key: bool, maxlen: bytes) -> list[bytes]:
    commands = [command(b"UNLINK", name)] if documents.clears else []
    if not has_key:
        head = (b"EVAL", _ADD, b"1", name, maxlen)
        return commands + list(_with_columns(head, documents.documents))
    commands += _with_columns((b"HDEL", name), documents.deletes)
    commands += _with_columns((b"HSET", name), documents.ids, documents.documents)
    return commands


def _with_columns(head: tuple[bytes, ...], *columns: pa.Array) -> Iterator[bytes]:
    """Commands that begin with `head` and have the columns' values of some rows behind it."""
    if not len(columns[0]):
        return
    parts = [part for column in columns for part in _parts(column)]
    texts = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    whole = memoryview(data)
    begin = b"".join(map(_argument, head))
    for first in range(0, len(texts), ROWS_PER_COMMAND):
        end = min(first + ROWS_PER_COMMAND, len(texts))
        count = len(head) + (end - first) * len(columns)
        yield b"".join((b"*%d\r\n" % count, begin, whole[bounds[first] : bounds[end]]))


def _parts(column: pa.Array) -> tuple[pa.Scalar | pa.Array, ...]:
    binary = pa.large_binary()
    lengths = pc.binary_length(column).cast(pa.large_string()).cast(binary)
    line = pa.scalar(b"\r\n", binary)
    return pa.scalar(b"$", binary), lengths, line, column.cast(binary), line


def _argument(value: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(value), value)
