"""GTID events of the binlog: of MySQL, with tags (since MySQL 8.3), and of MariaDB."""

import struct
from typing import NamedTuple

from headwater.capture.mysql.binlog.events import ANONYMOUS_GTID, Event

_STANDALONE, _PREPARED_XA, _COMPLETED_XA = 0x01, 0x40, 0x80  # flags of MariaDB's GTID event


class Gtid(NamedTuple):
    """The beginning of a transaction. `text` is None without GTIDs."""

    text: str | None
    is_standalone: bool  # one statement (DDL) without an end of its own
    is_xa: bool
    committed_us: int | None


def read_mysql_gtid(event: Event) -> Gtid:
    """Flags (1) server's uuid (16) number (8); since 5.7 type (1) and two numbers of 8 bytes for
    parallel replicas; since 8.0 the time of the commit (7 bytes, microseconds).
    """
    body = event.body
    if len(body) < 25:
        raise ValueError("a GTID is cut")
    committed_us = None
    if len(body) >= 49 and body[25] == 2:
        committed_us = int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)
    if event.type == ANONYMOUS_GTID:
        return Gtid(None, is_standalone=False, is_xa=False, committed_us=committed_us)
    number = int.from_bytes(body[17:25], "little")
    text = f"{_uuid(body[1:17])}:{number}"
    return Gtid(text, is_standalone=False, is_xa=False, committed_us=committed_us)


def read_tagged_gtid(event: Event) -> Gtid:
    """Since 8.3. Version, size, the last field that must not be ignored; then fields in the order
    of their numbers, each number in front of its value: 0 flags, 1 the uuid as 16 numbers, 2 the
    number (signed), 3 the tag with its length, 4 and 5 (signed) for parallel replicas, 6 the time
    of the commit in microseconds, and more behind them. All numbers are of variable length.
    """
    body, at = event.body, 0
    version, at = _variable(body, at)
    if version != 1:
        raise ValueError(f"a tagged GTID in a format of version {version}")
    _, at = _variable(body, at)
    _, at = _variable(body, at)
    uuid, tag = b"", ""
    number, committed_us = 0, None
    while at < len(body):
        kind, at = _variable(body, at)
        if kind == 1:
            parts: list[int] = []
            for _ in range(16):
                part, at = _variable(body, at)
                parts.append(part)
            uuid = bytes(parts)
        elif kind == 3:
            size, at = _variable(body, at)
            tag, at = body[at : at + size].decode(), at + size
        else:
            value, at = _variable(body, at)
            if kind == 2:
                number = value >> 1  # the lowest bit is the sign
            elif kind == 6:
                committed_us = value
            if kind >= 6:  # nothing behind it is needed
                break
    if not uuid or not number or at > len(body):
        raise ValueError("a tagged GTID is cut")
    source = f"{_uuid(uuid)}:{tag}" if tag else _uuid(uuid)
    text = f"{source}:{number}"
    return Gtid(text, is_standalone=False, is_xa=False, committed_us=committed_us)


def _uuid(data: bytes) -> str:
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _variable(data: bytes, at: int) -> tuple[int, int]:
    """A number as MySQL's serialization has it, and where it ends. The first byte ends in as many
    ones as further bytes follow; what is left of the bytes, little-endian, is the number.
    """
    first = data[at]
    further = (~first & first + 1).bit_length() - 1
    part = data[at : at + 1 + further]
    if len(part) != 1 + further:
        raise IndexError("a number is cut")
    if further == 8:
        return int.from_bytes(part[1:], "little"), at + 9
    return int.from_bytes(part, "little") >> further + 1, at + 1 + further


def read_mariadb_gtid(event: Event) -> Gtid:
    """Number (8) domain (4) flags (1) …"""
    number, domain, flags = struct.unpack_from("<QIB", event.body)
    return Gtid(
        f"{domain}-{event.server_id}-{number}",
        is_standalone=bool(flags & _STANDALONE),
        is_xa=bool(flags & (_PREPARED_XA | _COMPLETED_XA)),
        committed_us=None,
    )
