"""Whether the records of a batch begin with ids of schemas: Confluent's wire format, not decoded.

0 │ int32 id of the schema │ …, for a key, for a value, or for both. What is null has no schema. A
caller looks at some records at a time, as in record_scan.py; 1.7 µs a record.
"""

import re
from typing import NamedTuple

from headwater.errors import MalformedMessage
from headwater.protocol.record_scan import KEYLESS

_FRAME_BYTES = 5
# attributes, timestamp delta
_HEAD = re.compile(rb".[\x80-\xff]*+[\x00-\x7f]", re.DOTALL).match


class SchemaIdRule(NamedTuple):
    """The ids that keys and values of a topic may have; None: anything."""

    topic: str
    key_ids: frozenset[int] | None
    value_ids: frozenset[int] | None


class SchemaIdScan:
    """The records of one batch; `refused` has the number of each that has another id, or none, and
    the reason.

    Raises MalformedMessage if the bytes are not `count` records with the offsets 0, 1, 2, …
    """

    def __init__(
        self, body: bytes | memoryview, count: int, rule: SchemaIdRule, *, needs_keys: bool = False
    ) -> None:
        self.refused: list[tuple[int, str]] = []
        self.size_bytes = len(body)
        self._body = body
        self._count = count
        self._rule = rule
        self._needs_keys = needs_keys
        self._at = 0
        self._number = 0

    def step(self, records: int) -> bool:
        """Looks at so many more. True: that was all."""
        body, at, needs_keys = self._body, self._at, self._needs_keys
        _, key_ids, value_ids = self._rule
        end = min(self._number + records, self._count)
        try:
            for number in range(self._number, end):
                size_bytes, at = _varint(body, at)
                ends_at = at + size_bytes
                head = _HEAD(body, at)
                delta, at = (-1, at) if head is None else _varint(body, head.end())
                key_bytes, key_at = _varint(body, at)
                at = key_at + key_bytes if key_bytes > 0 else key_at
                value_bytes, value_at = _varint(body, at)
                at = value_at + value_bytes if value_bytes > 0 else value_at
                # Behind the value is at least the number of headers.
                if delta != number or not at < ends_at <= self.size_bytes or key_bytes < -1:
                    raise MalformedMessage("a record is not what its batch says")
                if key_bytes < 0:
                    if needs_keys:
                        self.refused.append((number, KEYLESS))
                        value_bytes = -1  # refused already
                elif key_ids is not None and not self._fits(key_at, key_bytes, key_ids):
                    self.refused.append((number, self._reason("key", key_at, key_bytes)))
                    value_bytes = -1
                if value_bytes >= 0 and value_ids is not None:
                    if not self._fits(value_at, value_bytes, value_ids):
                        reason = self._reason("value", value_at, value_bytes)
                        self.refused.append((number, reason))
                elif value_bytes < -1:
                    raise MalformedMessage("a record is not what its batch says")
                at = ends_at
        except IndexError:
            raise MalformedMessage("a batch ends inside a record") from None
        self._at, self._number = at, end
        if end < self._count and at < self.size_bytes:
            return False
        if end < self._count or at != self.size_bytes:
            raise MalformedMessage("a batch is not as long as its records")
        return True

    def _fits(self, at: int, size_bytes: int, ids: frozenset[int]) -> bool:
        body = self._body
        return (
            size_bytes >= _FRAME_BYTES
            and not body[at]
            and int.from_bytes(body[at + 1 : at + _FRAME_BYTES], "big") in ids
        )

    def _reason(self, part: str, at: int, size_bytes: int) -> str:
        body = self._body
        if size_bytes < _FRAME_BYTES or body[at]:
            return f"the {part} does not begin with 0 and the id of a schema"
        schema_id = int.from_bytes(body[at + 1 : at + _FRAME_BYTES], "big")
        return f"the {part} has the id {schema_id}, which is none of {self._rule.topic}-{part}"


def _varint(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in zigzag, and where it ends."""
    byte = body[at]
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), at + 1
    number = byte & 127
    for shift in range(7, 70, 7):
        at += 1
        byte = body[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number >> 1 ^ -(number & 1), at + 1
    raise MalformedMessage("a number in a record does not end")
