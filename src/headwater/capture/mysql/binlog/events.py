"""Events of the binlog: their framing, and what each type contains.

    timestamp (4) type (1) server id (4) size (4) end position (4) flags (2) | body | CRC32 (4)

Nothing is skipped in silence: an event that is cut, has a wrong checksum or is of a kind that this
reader does not know (and that is not marked as ignorable) is an error with its position.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pymysql.charset import charset_by_id

from headwater.errors import CaptureError
from headwater.protocol import compression

QUERY, STOP, ROTATE, INTVAR = 2, 3, 4, 5
FORMAT_DESCRIPTION, XID, TABLE_MAP = 15, 16, 19
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1 = 23, 24, 25
INCIDENT, HEARTBEAT, ROWS_QUERY = 26, 27, 29
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 30, 31, 32
GTID, ANONYMOUS_GTID = 33, 34
XA_PREPARE, PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = range(38, 43)
EXECUTE_LOAD_QUERY = 18
ANNOTATE_ROWS, CHECKPOINT, MARIADB_GTID, GTID_LIST = 160, 161, 162, 163
QUERY_COMPRESSED = 165
WRITE_ROWS_COMPRESSED_V1, UPDATE_ROWS_COMPRESSED_V1, DELETE_ROWS_COMPRESSED_V1 = 166, 167, 168
WRITE_ROWS_COMPRESSED, UPDATE_ROWS_COMPRESSED, DELETE_ROWS_COMPRESSED = 169, 170, 171

# Events without rows: random seeds and variables of statements, previous GTIDs, …
_WITHOUT_NEWS: Final = frozenset(
    {STOP, INTVAR, 13, 14, 17, 28, 35, 36, 37, CHECKPOINT, GTID_LIST, 164}
)
_ROWS: Final = {
    WRITE_ROWS_V1: ("c", 1, False),
    UPDATE_ROWS_V1: ("u", 1, False),
    DELETE_ROWS_V1: ("d", 1, False),
    WRITE_ROWS: ("c", 2, False),
    UPDATE_ROWS: ("u", 2, False),
    DELETE_ROWS: ("d", 2, False),
    WRITE_ROWS_COMPRESSED_V1: ("c", 1, True),
    UPDATE_ROWS_COMPRESSED_V1: ("u", 1, True),
    DELETE_ROWS_COMPRESSED_V1: ("d", 1, True),
    WRITE_ROWS_COMPRESSED: ("c", 2, True),
    UPDATE_ROWS_COMPRESSED: ("u", 2, True),
    DELETE_ROWS_COMPRESSED: ("d", 2, True),
}
ROWS: Final = frozenset(_ROWS)

HEADER: Final = struct.Struct("<IBIIIH")
_HEADER_BYTES: Final = 19
_CHECKSUM_BYTES: Final = 4
_ARTIFICIAL: Final = 0x20  # made by the server for this connection; not in the file
_IGNORABLE: Final = 0x80
MAX_EVENT_BYTES: Final = 1 << 30
_QUERY_CHARSETS, _QUERY_CATALOG = 4, 6
_QUERY_STATUS_BYTES: Final = {0: 4, 1: 8, 3: 4}
_MAX_PAYLOAD_BYTES: Final = 1 << 30


class Event(NamedTuple):
    timestamp_s: int
    type: int
    server_id: int
    size: int  # in the file, with header and checksum
    end: int  # position behind it, 0 if it stands in no file
    flags: int
    body: bytes

    @property
    def begin(self) -> int:
        # Positions have four bytes; inside a transaction of more than 4 GiB they wrap around.
        return self.end - self.size & 0xFFFFFFFF

    @property
    def is_artificial(self) -> bool:
        return bool(self.flags & _ARTIFICIAL)


class Rows(NamedTuple):
    op: str
    table_id: int
    present: bytes  # bitmap of the columns in the (first) image
    present_after: bytes  # of the second; empty if there is none
    data: bytes
    at: int  # where the rows begin in `data`
    is_last: bool  # of its statement: the table maps are forgotten behind it


class Query(NamedTuple):
    database: str
    text: str
    thread_id: int


@dataclass(slots=True)
class Framing:
    """How events are cut and checked. One per connection, or per compressed transaction."""

    has_checksums: bool
    file: str = ""
    rows_header_bytes: int = 8  # before MySQL 5.1.4: 6
    is_described: bool = False  # the file's own format description has been read

    def event(self, packet: bytes, offset: int = 0) -> Event:
        """The event that `packet` holds behind `offset`, checked."""
        if len(packet) - offset < _HEADER_BYTES:
            raise self.malformed(0, "an event without a header")
        timestamp, kind, server_id, size, end, flags = HEADER.unpack_from(packet, offset)
        if size != len(packet) - offset:
            raise self.malformed(end, f"{size} bytes announced, {len(packet) - offset} are there")
        body = packet[offset + _HEADER_BYTES :]
        if kind == FORMAT_DESCRIPTION:
            body = self._describe(packet, offset, end)
        elif kind == ROTATE and flags & _ARTIFICIAL:
            # It comes in front of the format description of its file, with a checksum or without.
            if len(body) > 12 and zlib.crc32(packet[offset:-4]) == int.from_bytes(
                body[-4:], "little"
            ):
                body = body[:-4]
        elif self.has_checksums:
            if len(body) < _CHECKSUM_BYTES:
                raise self.malformed(end, "an event without its checksum")
            body = self._checked(packet, offset, end)
        return Event(timestamp, kind, server_id, size, end, flags, body)

    def _checked(self, packet: bytes, offset: int, end: int) -> bytes:
        content = memoryview(packet)[offset:-_CHECKSUM_BYTES]
        if zlib.crc32(content) != int.from_bytes(packet[-_CHECKSUM_BYTES:], "little"):
            raise self.malformed(end, "its checksum is wrong")
        return packet[offset + _HEADER_BYTES : -_CHECKSUM_BYTES]

    def _describe(self, packet: bytes, offset: int, end: int) -> bytes:
        """Binlog version (2) server version (50) created (4) header size (1) post-header sizes…
        checksum algorithm (1) CRC32 (4). The last two are always there since MySQL 5.6.1.
        """
        body = packet[offset + _HEADER_BYTES :]
        if len(body) < 57 + 30 + 5 or int.from_bytes(body[:2], "little") != 4 or body[56] != 19:
            raise self.malformed(end, "an unknown format of binlog")
        algorithm = body[-5]
        if algorithm not in (0, 1):
            raise self.malformed(end, f"checksums of an unknown kind ({algorithm})")
        self.rows_header_bytes = body[57 + TABLE_MAP - 1]
        self.has_checksums = algorithm == 1
        self.is_described = True
        return self._checked(packet, offset, end) if algorithm else body

    def malformed(self, end: int, detail: str) -> CaptureError:
        return malformed(f"{self.file}:{end}", detail)


def malformed(location: str, detail: str) -> CaptureError:
    return CaptureError(
        "an event of the binlog cannot be read",
        detail=f"{location}: {detail}",
        hint="compare with `mysqlbinlog --verify-binlog-checksum`; `headwater capture reset NAME` "
        "makes the next run begin with a snapshot",
    )


def is_without_news(event: Event) -> bool:
    """Nothing about rows, or marked by the server as something that a reader may pass over."""
    return event.type in _WITHOUT_NEWS or bool(event.flags & _IGNORABLE)


def read_rotate(event: Event) -> tuple[str, int]:
    """SourcePosition (8), then the name of the next file."""
    if len(event.body) <= 8:
        raise ValueError("a rotation without a file")
    name = event.body[8:].decode()
    if not name.rpartition(".")[2].isdecimal():
        raise ValueError(f"a file with the name {name[:100]!r}")
    return name, int.from_bytes(event.body[:8], "little")


def read_query(event: Event) -> Query:
    """Thread (4) seconds (4) schema length (1) error (2) status length (2), status, schema, text"""
    thread_id, _, schema_bytes, _, status_bytes = struct.unpack_from("<IIBHH", event.body)
    at = 13 + status_bytes
    text_at = at + schema_bytes + 1
    if text_at > len(event.body):
        raise ValueError("a statement is cut")
    text = event.body[text_at:]
    if event.type == QUERY_COMPRESSED:
        text = mariadb_decompressed(text)
    encoding = _client_encoding(event.body[13:at])
    return Query(_text(event.body[at : text_at - 1]), _text(text, encoding), thread_id)


def _client_encoding(status: bytes) -> str:
    """Of the client that sent the statement, in which its text is. Status variables are a code and
    a value of a length that the code implies, in this order: flags, mode, catalog, auto_increment,
    and the character sets of the client, connection and server.
    """
    at = 0
    while at < len(status):
        code = status[at]
        if code == _QUERY_CHARSETS:
            number = int.from_bytes(status[at + 1 : at + 3], "little")
            try:
                return str(charset_by_id(number).encoding or "utf-8")
            except KeyError:
                return "utf-8"
        if code == _QUERY_CATALOG and at + 1 < len(status):
            at += 2 + status[at + 1]
        elif code in _QUERY_STATUS_BYTES:
            at += 1 + _QUERY_STATUS_BYTES[code]
        else:
            break
    return "utf-8"


def read_rows_query(event: Event) -> str:
    return _text(event.body[1:] if event.type == ROWS_QUERY else event.body)


def _text(data: bytes, encoding: str = "utf-8") -> str:
    for codec in (encoding, "utf-8"):
        try:
            return data.decode(codec)
        except (UnicodeDecodeError, LookupError):
            continue
    return data.decode("latin-1")


def read_rows(event: Event, header_bytes: int) -> Rows:
    """Table id (6, or 4 in old formats) flags (2); v2: size of extra data (2), itself included;
    lenenc column count, bitmap of the columns (twice for updates), rows.
    """
    op, version, is_compressed = _ROWS[event.type]
    body = event.body
    id_bytes = header_bytes - 2
    if len(body) < header_bytes + 2:
        raise ValueError("rows are cut")
    table_id = int.from_bytes(body[:id_bytes], "little")
    flags = int.from_bytes(body[id_bytes:header_bytes], "little")
    at = header_bytes
    if version == 2:
        extra_bytes = int.from_bytes(body[at : at + 2], "little")
        if extra_bytes < 2:
            raise ValueError("extra data of rows are cut")
        at += extra_bytes
    count, at = _number(body, at)
    bitmap_bytes = (count + 7) // 8
    present = body[at : at + bitmap_bytes]
    at += bitmap_bytes
    present_after = b""
    if op == "u":
        present_after = body[at : at + bitmap_bytes]
        at += bitmap_bytes
    if at > len(body):
        raise ValueError("rows are cut")
    if is_compressed:
        body, at = mariadb_decompressed(body[at:]), 0
    return Rows(op, table_id, present, present_after, body, at, bool(flags & 1))


def read_table_id(event: Event, header_bytes: int) -> int:
    if len(event.body) < header_bytes:
        raise ValueError("a table map is cut")
    return int.from_bytes(event.body[: header_bytes - 2], "little")


def read_heartbeat_v2(event: Event) -> tuple[str, int]:
    """Fields of type, length, value: 1 the file, 2 the position; 0 ends them."""
    name, position, at = "", 0, 0
    body = event.body
    while at < len(body) and body[at]:
        kind = body[at]
        length, at = _number(body, at + 1)
        value = body[at : at + length]
        at += length
        if kind == 1:
            name = value.decode()
        elif kind == 2:
            position, _ = _number(value, 0)
    return name, position


def payload_events(event: Event, file: str) -> Iterator[bytes]:
    """TRANSACTION_PAYLOAD: fields of type, length, value (1 size, 2 algorithm, 3 plain size; 0 ends
    them), then the events of one transaction without checksums, compressed by zstd.
    """
    body, at = event.body, 0
    algorithm, plain_bytes, size = 255, 0, -1
    while True:
        kind, at = _number(body, at)
        if kind == 0:
            break
        length, at = _number(body, at)
        value, _ = _number(body[at : at + length], 0)
        at += length
        if kind == 1:
            size = value
        elif kind == 2:
            algorithm = value
        elif kind == 3:
            plain_bytes = value
    data = body[at:]
    if size not in (-1, len(data)):
        raise ValueError("a compressed transaction is cut")
    if algorithm == 0:
        if plain_bytes > _MAX_PAYLOAD_BYTES:
            raise CaptureError(
                "a compressed transaction exceeds 1 GiB",
                detail=f"{file}:{event.begin}: {plain_bytes} bytes",
                hint="SET GLOBAL binlog_transaction_compression = OFF;",
            )
        data = bytes(compression.decompress(compression.ZSTD, data, max(plain_bytes, 1)))
        if len(data) != plain_bytes:
            raise ValueError("a compressed transaction has another length")
    elif algorithm != 255:
        raise ValueError(f"a transaction compressed by algorithm {algorithm}")
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER_BYTES:
            raise ValueError("an event in a compressed transaction is cut")
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < _HEADER_BYTES or at + size > len(data):
            raise ValueError("an event in a compressed transaction is cut")
        yield data[at : at + size]
        at += size


def mariadb_decompressed(data: bytes) -> bytes:
    """0x80 | algorithm << 4 | bytes of the length, the plain length big-endian, zlib."""
    if not data or data[0] & 0xF8 != 0x80 or not 1 <= data[0] & 7 <= 4:
        raise ValueError("an unknown compression of events")
    length_bytes = data[0] & 7
    size = int.from_bytes(data[1 : 1 + length_bytes], "big")
    if size > MAX_EVENT_BYTES:
        raise ValueError("a compressed event exceeds 1 GiB")
    try:
        plain = zlib.decompressobj().decompress(data[1 + length_bytes :], size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(plain) != size:
        raise ValueError("a compressed event has another length")
    return plain


def _number(data: bytes, at: int) -> tuple[int, int]:
    """The protocol's length-encoded integer, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    if first not in (252, 253, 254):
        raise ValueError("no length")
    size = (2, 3, 8)[first - 252]
    part = data[at + 1 : at + 1 + size]
    if len(part) != size:
        raise IndexError("a length is cut")
    return int.from_bytes(part, "little"), at + 1 + size
