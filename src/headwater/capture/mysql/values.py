"""Values of numbers, bytes and geometry: from the binlog's bytes, and from the text of a SELECT.

Both ways lead to the same value, in Debezium's representation. Dates and times: times.py.

The makers return functions of one argument, for the code that row_decoder.py and text_rows.py
build.
"""

import socket
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import cache
from typing import Any, Final

Decode = Callable[[bytes], Any]


# --- numbers ---

_PACKED_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # of so many digits, at either end


def decimal_size_bytes(precision: int, scale: int) -> int:
    whole = precision - scale
    return whole // 9 * 4 + _PACKED_BYTES[whole % 9] + scale // 9 * 4 + _PACKED_BYTES[scale % 9]


@cache
def binary_decimal(precision: int, scale: int, form: str) -> Decode:
    """Groups of nine digits in four bytes each, the first and the last group shorter, big-endian;
    the highest bit is set for positive numbers, all others are inverted for negative ones.
    """
    size_bytes = decimal_size_bytes(precision, scale)
    sign = 1 << (8 * size_bytes - 1)
    invert = (1 << (8 * size_bytes)) - 1 - sign
    whole = precision - scale
    sizes = [(_PACKED_BYTES[whole % 9], whole % 9)] + [(4, 9)] * (whole // 9 + scale // 9)
    sizes.append((_PACKED_BYTES[scale % 9], scale % 9))
    groups: list[tuple[int, int, int]] = []  # right shift, mask, 10 ** digits
    shift = 8 * size_bytes
    for group_bytes, digits in sizes:
        if digits:
            shift -= 8 * group_bytes
            groups.append((shift, (1 << (8 * group_bytes)) - 1, 10**digits))
    if form == "string":
        return _decimal_text(sign, invert, groups, scale)
    write = decimal_writer(scale, form)

    def decode(data: bytes) -> Any:
        packed = int.from_bytes(data, "big")
        is_positive = packed & sign
        packed ^= sign if is_positive else invert
        unscaled = 0
        for right, mask, power in groups:
            unscaled = unscaled * power + (packed >> right & mask)
        return write(unscaled if is_positive else -unscaled)

    return decode


def _decimal_text(sign: int, invert: int, groups: list[tuple[int, int, int]], scale: int) -> Decode:
    """The most usual form, as code of its own: twice as quick as by way of the number."""
    parts = [(f"(n >> {right} & {mask})", len(str(power)) - 1) for right, mask, power in groups]
    fraction_groups = (scale + 8) // 9
    whole, fraction = parts[: len(parts) - fraction_groups], parts[len(parts) - fraction_groups :]
    number = "0"
    for expression, digits in whole:
        number = expression if number == "0" else f"({number} * {10**digits} + {expression})"
    form = "%d" + ("." if scale else "") + "".join(f"%0{digits}d" for _, digits in fraction)
    arguments = ", ".join([number, *(expression for expression, _ in fraction)])
    source = (
        "def decode(data):\n"
        "    n = from_bytes(data, 'big')\n"
        f"    if n & {sign}:\n"
        f"        n ^= {sign}\n"
        f"        return {form!r} % ({arguments},)\n"
        f"    n ^= {invert}\n"
        f"    return {'-' + form!r} % ({arguments},)\n"
    )
    namespace: dict[str, Any] = {"from_bytes": int.from_bytes}
    exec(compile(source, "<decimal>", "exec"), namespace)  # noqa: S102
    found: Decode = namespace["decode"]
    return found


def text_decimal(scale: int, form: str) -> Decode:
    if form == "string":
        return bytes.decode
    if form == "double":
        return float
    write = decimal_writer(scale, form)
    return lambda text: write(int(text.replace(b".", b"")))


def decimal_writer(scale: int, form: str) -> Callable[[int], Any]:
    """From the unscaled number to `string`, `double` or `precise`."""
    power = 10**scale
    if form == "precise":
        return unscaled_bytes
    if form == "string" and not scale:
        return str

    def text(unscaled: int) -> str:
        whole, rest = divmod(abs(unscaled), power)
        return f"{'-' if unscaled < 0 else ''}{whole}.{rest:0{scale}d}"

    if form == "string":
        return text
    return lambda unscaled: float(text(unscaled)) if scale else float(unscaled)


def unscaled_bytes(unscaled: int) -> str:
    """Java's BigInteger.toByteArray, as base64."""
    size_bytes = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return b64encode(unscaled.to_bytes(size_bytes, "big", signed=True)).decode()


_FLOAT: Final = struct.Struct("<f")


def float32(value: float) -> float | None:
    """The shortest number that gives the same four bytes: 0.1, not 0.10000000149011612."""
    if (
        value - value != 0
    ):  # infinite, or no number: JSON has neither, and the servers store neither
        return None
    try:
        packed = _FLOAT.pack(value)
        for digits in (6, 7, 8):
            short = float(f"{value:.{digits}g}")
            if _FLOAT.pack(short) == packed:
                return short
    except OverflowError:
        pass
    return float(f"{value:.9g}")


def text_float32(text: bytes) -> float | None:
    return float32(_FLOAT.unpack(_FLOAT.pack(float(text)))[0])


# --- bytes ---


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def padded_base64(size_bytes: int) -> Decode:
    """BINARY(n): the binlog leaves out zero bytes at the end."""
    return lambda data: b64encode(data.ljust(size_bytes, b"\0")).decode()


def bits(size_bits: int) -> Decode:
    """Debezium's bits are little-endian, the servers' are big-endian."""
    if size_bits == 1:
        return lambda data: data[-1:] == b"\x01"
    return lambda data: b64encode(data[::-1]).decode()


def enum(values: tuple[str, ...]) -> Decode:
    """By number; 0 is what the servers store for a text that was none of the values."""
    texts = ("", *values)
    return lambda data: texts[int.from_bytes(data, "little")]


def members(values: tuple[str, ...]) -> Decode:
    def decode(data: bytes) -> str:
        chosen = int.from_bytes(data, "little")
        if chosen >> len(values):
            raise ValueError("a SET has members that its column does not have")
        return ",".join(value for bit, value in enumerate(values) if chosen >> bit & 1)

    return decode


def geometry(data: bytes) -> dict[str, Any]:
    """Four bytes of SRID, then WKB."""
    srid = int.from_bytes(data[:4], "little")
    return {"wkb": b64encode(data[4:]).decode(), "srid": srid or None}


def point(data: bytes) -> dict[str, Any]:
    x, y = struct.unpack_from("<dd" if data[4:5] == b"\x01" else ">dd", data, 9)
    return {"x": x, "y": y, **geometry(data)}


def inet4(data: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET, data.ljust(4, b"\0"))


def inet6(data: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6, data.ljust(16, b"\0"))


def uuid(data: bytes) -> str:
    text = data.ljust(16, b"\0").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
