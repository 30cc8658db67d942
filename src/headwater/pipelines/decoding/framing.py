"""Confluent's wire format: the schema id that a registry's serialiser writes before a value.

0 │ int32 id of the schema │ (Protobuf: message indexes) │ the value
"""

from collections.abc import Mapping
from typing import Final

from headwater.errors import ConfigError

OPTION: Final = "framing"
_MAGIC_AND_ID_BYTES: Final = 5


def has_framing(options: Mapping[str, str]) -> bool:
    """Whether the option says so: "confluent", or by default "none"."""
    framing = options.get(OPTION, "none")
    if framing not in ("none", "confluent"):
        raise ConfigError(f"option {OPTION}: {framing}", hint="none or confluent")
    return framing == "confluent"


def unframed(value: bytes) -> tuple[int, int]:
    """The id of the schema, and the index after it. Raises ValueError."""
    if len(value) < _MAGIC_AND_ID_BYTES or value[0] != 0:
        raise ValueError("it does not begin with 0 and the id of a schema")
    return int.from_bytes(value[1:5], "big"), _MAGIC_AND_ID_BYTES


def behind_indexes(value: bytes, at: int) -> int:
    """The index after Protobuf's message indexes: their number, then each, as zigzag varints.
    Raises ValueError.
    """
    count, at = _varint(value, at)
    for _ in range(count):
        _, at = _varint(value, at)
    return at


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
