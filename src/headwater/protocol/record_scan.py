"""Walks over the records of a batch without decoding them.

    LengthScan  whether there are so many: each length leads to the next, 0.07 µs a record
    KeyScan     which have no key: one regular expression reads what is in between, 0.6 µs a record

A caller that must not hold up others looks at some records at a time (`step`).
"""

import re
from collections.abc import Sequence
from typing import Final

from headwater.errors import MalformedMessage
from headwater.protocol.primitives import write_varlong

KEYLESS: Final = "a record of a compacted topic needs a key"

# attributes, timestamp delta, (offset delta), and the length of the key if it is -1: there is none
_HEAD = re.compile(rb".[\x80-\xff]*+[\x00-\x7f]([\x80-\xff]*+[\x00-\x7f])(\x01)?", re.DOTALL).match


def _steps_from(first: int) -> tuple[int, ...]:
    """Of a record whose length begins with the byte `first`: how many bytes it takes with its
    length, by the second byte. 0: the length is longer than two bytes, or negative.
    """
    if first & 1:
        return (0,) * 256
    if first < 128:
        return (1 + (first >> 1),) * 256
    return tuple(2 + ((first & 127 | second << 7) >> 1) for second in range(128)) + (0,) * 128


_STEPS = tuple(map(_steps_from, range(256)))


class LengthScan:
    """The records of one batch, counted by their lengths.

    Raises MalformedMessage if the bytes are not `count` records, one behind the other.
    """

    refused: Sequence[tuple[int, str]] = ()

    def __init__(self, body: bytes | memoryview, count: int) -> None:
        self.size_bytes = len(body)
        self._body = body
        self._left = count
        self._at = 0

    def step(self, records: int) -> bool:
        """Walks over so many more. True: that was all."""
        body, at, steps = self._body, self._at, _STEPS
        count = min(records, self._left)
        try:
            for _ in range(count):
                at += steps[body[at]][body[at + 1]] or _long_step(body, at)
        except IndexError:
            raise MalformedMessage("a batch ends inside a record") from None
        self._at = at
        self._left -= count
        return _is_end(body, at, self._left)


class KeyScan:
    """The records of one batch, looked at one after the other; `refused` has the number of each
    that has no key.

    Raises MalformedMessage if the bytes are not `count` records with the offsets 0, 1, 2, …
    """

    def __init__(self, body: bytes | memoryview, count: int) -> None:
        self.refused: list[tuple[int, str]] = []
        self.size_bytes = len(body)
        self._body = body
        self._count = count
        self._at = 0
        self._number = 0

    def step(self, records: int) -> bool:
        """Looks at so many more. True: that was all."""
        body, at = self._body, self._at
        end = min(self._number + records, self._count)
        head_at, refused = _HEAD, self.refused
        try:
            for number, delta in enumerate(_deltas(self._number, end), self._number):
                size_bytes = body[at]
                at += 1
                if size_bytes > 127:
                    size_bytes, at = _long_size(body, size_bytes, at)
                head = head_at(body, at)
                if head is None or size_bytes & 1 or head[1] != delta:
                    raise MalformedMessage("a record is not what its batch says")
                if head.lastindex == 2:
                    refused.append((number, KEYLESS))
                at += size_bytes >> 1
        except IndexError:
            raise MalformedMessage("a batch ends inside a record") from None
        self._at, self._number = at, end
        return _is_end(body, at, self._count - end)


def _is_end(body: bytes | memoryview, at: int, left: int) -> bool:
    if left and at < len(body):
        return False
    if left or at != len(body):
        raise MalformedMessage("a batch is not as long as its records")
    return True


def _long_step(body: bytes | memoryview, at: int) -> int:
    size_bytes, behind = _long_size(body, body[at], at + 1)
    if size_bytes & 1:
        raise MalformedMessage("a record's length is negative")
    return behind - at + (size_bytes >> 1)


def _long_size(body: bytes | memoryview, size_bytes: int, at: int) -> tuple[int, int]:
    """The rest of a length whose first byte says that there is one, still in zigzag."""
    size_bytes &= 127
    for shift in (7, 14, 21, 28):
        byte = body[at]
        at += 1
        size_bytes |= (byte & 127) << shift
        if byte < 128:
            return size_bytes, at
    raise MalformedMessage("a record's length is no number")


def _varlong(number: int) -> bytes:
    out = bytearray()
    write_varlong(out, number)
    return bytes(out)


# A constant: a scan keeps no state outside of itself.
_FIRST_DELTAS = tuple(map(_varlong, range(16_384)))


def _deltas(first: int, end: int) -> Sequence[bytes]:
    """The offset deltas first..end as they are encoded; the first thousands are precomputed."""
    if end > len(_FIRST_DELTAS):
        return [_varlong(number) for number in range(first, end)]
    return _FIRST_DELTAS[first:end]
