"""The packets of multicast sessions, each one UDP datagram. Numbers are big-endian.

    0   4  "HWM" and the version, 1
    4   1  kind: 1 data, 2 heartbeat, 3 request
    5   1  flags: 1 first packet of a message, 2 last packet of a message, 4 sent again, 8 the end
    6   2  0
    8   8  session: a random number of the sender's process
    16  8  sequence: of this packet (data), of the last data packet so far (heartbeat; 0: none)
    24  8  oldest: sequence of the oldest packet that can be requested (data, heartbeat)
    32     data: a piece of the message; request: up to 100 ranges (first: 8 bytes, last: 8 bytes)

Sequences count packets of a session from 1 on. A message that is larger than a packet has several,
one behind the other.
"""

import struct
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct(">4sBBHQQQ")
_RANGE: Final = struct.Struct(">QQ")
_MAGIC: Final = b"HWM\x01"
HEADER_BYTES: Final = _HEADER.size
MAX_RANGES: Final = 100
MAX_DATAGRAM_BYTES: Final = 65_507

DATA, HEARTBEAT, REQUEST = 1, 2, 3
FIRST, LAST, AGAIN, END = 1, 2, 4, 8

Range = tuple[int, int]  # first and last sequence


class Packet(NamedTuple):
    kind: int
    flags: int
    session: int
    sequence: int
    oldest: int
    payload: bytes


def encode(packet: Packet) -> bytes:
    kind, flags, session, sequence, oldest, payload = packet
    return _HEADER.pack(_MAGIC, kind, flags, 0, session, sequence, oldest) + payload


def decode(datagram: bytes) -> Packet | None:
    """None if it is no packet of ours."""
    if len(datagram) < HEADER_BYTES:
        return None
    magic, kind, flags, _, session, sequence, oldest = _HEADER.unpack_from(datagram)
    if magic != _MAGIC or not DATA <= kind <= REQUEST:
        return None
    if kind == DATA and not sequence:
        return None
    return Packet(kind, flags, session, sequence, oldest, datagram[HEADER_BYTES:])


def encode_request(session: int, ranges: list[Range]) -> bytes:
    payload = b"".join(_RANGE.pack(*found) for found in ranges[:MAX_RANGES])
    return encode(Packet(REQUEST, 0, session, 0, 0, payload))


def requested(packet: Packet) -> list[Range]:
    """The ranges of a request, in order, without what two of them share."""
    usable = len(packet.payload) // _RANGE.size * _RANGE.size
    found = _RANGE.iter_unpack(packet.payload[: min(usable, MAX_RANGES * _RANGE.size)])
    ranges: list[Range] = []
    behind = 1
    for first, last in sorted(found):
        if last >= behind:
            ranges.append((max(first, behind), last))
            behind = last + 1
    return ranges
