"""MySQL's binary JSON to text, in the form in which the server itself prints it.

    type (1) value
    object  count, size, (key offset, key length)*, (type, offset or value)*, keys, values
    array   count, size, (type, offset or value)*, values
    string  variable-length size, utf8mb4        opaque  column type (1), variable-length size, data

Counts, sizes and offsets have two bytes in small, four in large objects and arrays.
"""

import struct
from base64 import b64encode
from json.encoder import ESCAPE, ESCAPE_DCT
from typing import Final

from headwater.capture.mysql import values

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_NUMBERS: Final = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DOUBLE, _STRING, _OPAQUE = 0x0B, 0x0C, 0x0F
_LITERALS: Final = {0: "null", 1: "true", 2: "false"}
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_MAX_DEPTH: Final = 100  # the server's own limit


def to_text(data: bytes) -> str:
    """Raises ValueError, IndexError or struct.error on anything else."""
    if not data:  # an empty value, which the servers read as null
        return "null"
    return _Document(data).value(data[0], 1, 0)


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data
        # Every value has bytes of its own, so that there cannot be more of them. Offsets that lead
        # to the same value again and again (a bomb) exceed this.
        self._left = len(data) + 1

    def value(self, kind: int, at: int, depth: int) -> str:
        self._spend(1)
        if depth > _MAX_DEPTH:
            raise ValueError("JSON is nested too deep")
        data = self._data
        if kind <= _LARGE_ARRAY:
            return self._container(kind, at, depth)
        if kind == _LITERAL:
            return self._literal(data[at])
        if form := _NUMBERS.get(kind):
            return str(struct.unpack_from(form, data, at)[0])
        if kind == _DOUBLE:
            return _double(struct.unpack_from("<d", data, at)[0])
        if kind == _STRING:
            return _quoted(self._sized(at).decode())
        if kind == _OPAQUE:
            return self._opaque(data[at], self._sized(at + 1))
        raise ValueError(f"JSON of type {kind}")

    def _container(self, kind: int, start: int, depth: int) -> str:
        is_large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
        is_object = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        form, width = ("<I", 4) if is_large else ("<H", 2)
        data = self._data
        (count,) = struct.unpack_from(form, data, start)
        if count > len(data):
            raise ValueError("JSON with more values than bytes")
        at = start + 2 * width
        keys: list[str] = []
        if is_object:
            for _ in range(count):
                (offset,) = struct.unpack_from(form, data, at)
                (length,) = struct.unpack_from("<H", data, at + width)
                keys.append(_quoted(self._take(start + offset, length).decode()))
                at += width + 2
        texts: list[str] = []
        for _ in range(count):
            value_kind = data[at]
            if (
                value_kind == _LITERAL
                or value_kind in (5, 6)
                or (is_large and value_kind in (7, 8))
            ):
                texts.append(self.value(value_kind, at + 1, depth + 1))
            else:
                (offset,) = struct.unpack_from(form, data, at + 1)
                texts.append(self.value(value_kind, start + offset, depth + 1))
            at += 1 + width
        if is_object:
            return (
                f"{{{', '.join(f'{key}: {text}' for key, text in zip(keys, texts, strict=True))}}}"
            )
        return f"[{', '.join(texts)}]"

    def _literal(self, code: int) -> str:
        if code not in _LITERALS:
            raise ValueError(f"JSON literal {code}")
        return _LITERALS[code]

    def _opaque(self, kind: int, data: bytes) -> str:
        if kind == _DECIMAL:
            precision, scale = data[0], data[1]
            if not 1 <= precision <= 65 or scale > precision:
                raise ValueError(f"decimal({precision},{scale}) in JSON")
            text: str = values.binary_decimal(precision, scale, "string")(data[2:])
            return text
        if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
            return f'"{_packed_time(kind, struct.unpack("<q", data)[0])}"'
        return f'"base64:type{kind}:{b64encode(data).decode()}"'

    def _sized(self, at: int) -> bytes:
        """Seven bits of the size per byte, the highest bit set while there are more."""
        size = shift = 0
        while True:
            byte = self._data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return self._take(at, size)
            if shift > 28:
                raise ValueError("a size in JSON is too long")

    def _take(self, at: int, size: int) -> bytes:
        self._spend(size)
        part = self._data[at : at + size]
        if len(part) != size:
            raise IndexError("JSON is cut")
        return part

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("JSON refers to the same bytes again and again")


def _quoted(text: str) -> str:
    return '"' + ESCAPE.sub(lambda match: ESCAPE_DCT[match.group()], text) + '"'


def _double(number: float) -> str:
    if number - number != 0:
        raise ValueError("JSON with a number that is none")
    return repr(number).replace("e+", "e").replace("e-0", "e-")


def _packed_time(kind: int, packed: int) -> str:
    size = abs(packed)
    whole, us = size >> 24, size & 0xFFFFFF
    if kind == _TIME:
        sign = "-" if packed < 0 else ""
        clock = f"{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{us:06d}"
        return sign + clock
    year, month = divmod(whole >> 22, 13)
    day = f"{year:04d}-{month:02d}-{whole >> 17 & 31:02d}"
    if kind == _DATE:
        return day
    return f"{day} {whole >> 12 & 31:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{us:06d}"
