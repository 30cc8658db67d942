"""Confluent's wire format: the schema id that a registry's serialiser writes before a value.

0 │ int32 id of the schema │ (Protobuf: message indexes) │ the value
"""

from typing import Final

MAGIC_AND_ID_BYTES: Final = 5
_MAX_INDEXES: Final = 100  # messages within each other


def framed(schema_id: int, value: bytes) -> bytes:
    """With the id before it; for Avro and JSON."""
    return b"\x00" + schema_id.to_bytes(4, "big") + value


def unframed(value: bytes) -> tuple[int, int]:
    """The id of the schema, and the index after it. Raises ValueError."""
    if len(value) < MAGIC_AND_ID_BYTES or value[0] != 0:
        raise ValueError("it does not begin with 0 and the id of a schema")
    return int.from_bytes(value[1:5], "big"), MAGIC_AND_ID_BYTES


def message_indexes(value: bytes, at: int) -> tuple[list[int], int]:
    """Protobuf's message indexes, which say which message of the file it is (and within which):
    their number, then each, as zigzag varints; a single 0 is the first message. And the index
    after them. Raises ValueError.
    """
    count, at = _varint(value, at)
    if not count:
        return [0], at
    if not 0 < count <= _MAX_INDEXES:
        raise ValueError("message indexes that cannot be")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        indexes.append(index)
    return indexes, at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at
    raise ValueError("message indexes that do not end")
