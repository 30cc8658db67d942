"""The messages of pgoutput (protocol version 1, text format), and row decoders generated per table.

The formats are those of "Logical Replication Message Formats" in PostgreSQL's documentation
(https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html).

A row is a TupleData: int16 columns, then for each column its kind: null, unchanged TOAST (not
sent), or text with an int32 length in front. The decoder of a table is generated as one function
without a loop; a loop over columns and a call per value would cost twice the time.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from headwater.capture.contract import UNAVAILABLE, Row
from headwater.capture.postgres.values import Codec

# Message types: the first byte of each message. Others (Type, Origin) carry nothing that we need.
BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
LOGICAL_MESSAGE: Final = ord("M")
ROW_CHANGES: Final = frozenset((INSERT, UPDATE, DELETE))

# The byte in front of a TupleData: a new tuple, or the old one as a key ("K") or whole ("O").
NEW_TUPLE: Final = ord("N")
# A row message is its type, the relation's oid (int32), the byte above, then the TupleData: that of
# the message's first tuple begins at TUPLE_AT, and its first column (behind the int16) at ROW_AT.
RELATION_OID: Final = slice(1, 5)
TUPLE_KIND_AT: Final = 5
TUPLE_AT: Final = 6
ROW_AT: Final = 8
NEXT_ROW: Final = 3  # from the end of an old tuple to the first column of the new one

# Kinds of column values in a TupleData.
_NULL: Final = ord("n")
_TEXT: Final = ord("t")

EPOCH_2000_US: Final = 946_684_800_000_000

read_begin: Final = Struct(">xqqI").unpack_from  # commit LSN, commit time, xid
read_commit: Final = Struct(">xBqqq").unpack_from  # flags, commit LSN, end LSN, commit time
_read_message: Final = Struct(">xBq").unpack_from  # flags (1: transactional), LSN
_read_truncate: Final = Struct(">xIB").unpack_from  # number of relations, options

# Decodes a tuple whose first column stands at an offset; returns the row and where it ended.
Decode = Callable[[bytes, int], tuple[Row, int]]

_INT32: Final = Struct(">I").unpack_from
_INLINE: Final = {
    "int": "int(d[s:p])",
    "float": "c{i}(d[s:p])",  # float() reads bytes too
    "bool": "d[s:p] == b't'",
    "text": "d[s:p].decode()",
    "call": "c{i}(d[s:p].decode())",
}


class RelationColumn(NamedTuple):
    name: str
    oid: int
    typmod: int
    identity: bool  # part of the replica identity


class RelationMessage(NamedTuple):
    oid: bytes  # as the other messages have it
    schema: str
    name: str
    replica_identity: str  # d default, i index, f full, n nothing
    columns: tuple[RelationColumn, ...]


def parse_relation(data: bytes) -> RelationMessage:
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    identity = chr(data[at])
    count = int.from_bytes(data[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        oid, typmod = _INT32(data, at)[0], int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
        columns.append(RelationColumn(column, oid, typmod, bool(flags & 1)))
        at += 8
    # The catalog's own schema is sent as nothing.
    return RelationMessage(
        data[RELATION_OID], schema or "pg_catalog", name, identity, tuple(columns)
    )


def parse_message(data: bytes) -> tuple[bool, int, str, bytes]:
    """A logical message: whether it is transactional, its LSN, prefix and content."""
    flags, lsn = _read_message(data)
    prefix, at = _text(data, 10)
    return bool(flags & 1), lsn, prefix, data[at + 4 :]


def parse_truncate(data: bytes) -> list[bytes]:
    count, _ = _read_truncate(data)
    return [data[6 + 4 * i : 10 + 4 * i] for i in range(count)]


def key_texts(data: bytes, columns: Sequence[int]) -> tuple[str, ...]:
    """Of an update: these columns of the new row as PostgreSQL writes them. Of a large key that did
    not change only the old row has the value.
    """
    if data[TUPLE_KIND_AT] == NEW_TUPLE:
        new, _ = _tuple(data, TUPLE_AT)
        old = new
    else:
        old, at = _tuple(data, TUPLE_AT)
        new, _ = _tuple(data, at + 1)
    found = (new[i] if new[i] is not None else old[i] for i in columns)
    return tuple((text or b"").decode() for text in found)


def _tuple(data: bytes, at: int) -> tuple[list[bytes | None], int]:
    """The texts of a row; None for those that are null or left out."""
    texts: list[bytes | None] = []
    count = int.from_bytes(data[at : at + 2], "big")
    at += 2
    for _ in range(count):
        if data[at] != _TEXT:
            texts.append(None)
            at += 1
            continue
        end = at + 5 + _INT32(data, at + 1)[0]
        texts.append(data[at + 5 : end])
        at = end
    return texts, at


def make_decode(names: Sequence[str], codecs: Sequence[Codec]) -> Decode:
    """Generates the decoder of a table's rows."""
    scope: dict[str, Any] = {"u": _INT32, "unavailable": UNAVAILABLE}
    lines = ["def decode(d, p):"]
    for i, codec in enumerate(codecs):
        scope[f"c{i}"] = codec.convert
        lines += [
            "  k = d[p]",
            f"  if k == {_TEXT}:",
            "    s = p + 5",
            "    p = s + u(d, p + 1)[0]",
            f"    v{i} = {_INLINE[codec.inline].format(i=i)}",
            "  else:",
            f"    v{i} = None if k == {_NULL} else unavailable",
            "    p += 1",
        ]
    row = ", ".join(f"{name!r}: v{i}" for i, name in enumerate(names))
    lines.append(f"  return {{{row}}}, p")
    exec("\n".join(lines), scope)  # noqa: S102 - names go in as literals only
    decode: Decode = scope["decode"]
    return decode


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
