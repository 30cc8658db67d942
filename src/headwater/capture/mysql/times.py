"""Values of dates and times: from the binlog's bytes, and from the text of a SELECT.

Both ways lead to the same value, in Debezium's representation. A zero date ("0000-00-00") and one
that no calendar has (February 31st) become null, or the epoch in a column that cannot be null.

The makers return functions of one argument, for the code that row_decoder.py and text_rows.py
build.
"""

from datetime import date
from typing import Any, Final

from headwater.capture.mysql.values import Decode

EPOCH_DATE: Final = "1970-01-01"
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_CYCLE_DAYS: Final = 146_097  # of 400 years
_DAY_S: Final = 86_400
_CACHED_DAYS: Final = 20_000
_CACHED_MINUTES: Final = 20_000


class _Days(dict[int, int | None]):
    """Days since 1970 of (year * 13 + month) << 5 | day, the form of DATETIME in the binlog."""

    def __missing__(self, packed: int) -> int | None:
        year, month = divmod(packed >> 5, 13)
        days = epoch_days(year, month, packed & 31)
        if len(self) >= _CACHED_DAYS:
            self.clear()
        self[packed] = days
        return days


class _TextDays(dict[bytes, int | None]):
    """The same of b"2024-02-29"."""

    def __missing__(self, text: bytes) -> int | None:
        days = epoch_days(int(text[:4]), int(text[5:7]), int(text[8:10]))
        if len(self) >= _CACHED_DAYS:
            self.clear()
        self[text] = days
        return days


class _Minutes(dict[int, str]):
    """2024-02-29T13:51: of a minute since 1970."""

    def __missing__(self, minute: int) -> str:
        day, rest = divmod(minute, 1440)
        text = f"{date.fromordinal(_EPOCH_ORDINAL + day)}T{rest // 60:02d}:{rest % 60:02d}:"
        if len(self) >= _CACHED_MINUTES:
            self.clear()
        self[minute] = text
        return text


_days: Final = _Days()
_text_days: Final = _TextDays()
_minutes: Final = _Minutes()


def epoch_days(year: int, month: int, day: int) -> int | None:
    try:
        if year:
            return date(year, month, day).toordinal() - _EPOCH_ORDINAL
        # Python begins with year 1; the servers know a year 0, and so does Java.
        return date(400, month, day).toordinal() - _EPOCH_ORDINAL - _CYCLE_DAYS
    except ValueError:
        return None


# --- in the binlog ---


def binary_date(zero: Any, is_iso: bool) -> Decode:
    """Three bytes, little-endian: year << 9 | month << 5 | day."""

    def days(data: bytes) -> Any:
        packed = int.from_bytes(data, "little")
        year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
        found = _days[(year * 13 + month) << 5 | day]
        if found is None:
            return zero
        return f"{year:04d}-{month:02d}-{day:02d}" if is_iso else found

    return days


def binary_datetime(fraction_bytes: int, precision: int, zero: Any, is_iso: bool) -> Decode:
    """Five bytes, big-endian, of (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 |
    second, with the highest bit set; then the fraction.
    """
    width_bits = 8 * fraction_bytes
    fraction_us = 10 ** (6 - 2 * fraction_bytes)
    mask = (1 << width_bits) - 1
    offset = 1 << (39 + width_bits)
    unit_us = 1 if precision > 3 else 1000

    def number(data: bytes) -> Any:
        packed = int.from_bytes(data, "big") - offset
        whole = packed >> width_bits
        days = _days[whole >> 17]
        if days is None:
            return zero
        seconds = days * _DAY_S + (whole >> 12 & 31) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
        return (seconds * 1_000_000 + (packed & mask) * fraction_us) // unit_us

    def iso(data: bytes) -> Any:
        packed = int.from_bytes(data, "big") - offset
        whole = packed >> width_bits
        if _days[whole >> 17] is None:
            return zero
        year, month = divmod(whole >> 22, 13)
        clock = f"{whole >> 12 & 31:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        day = f"{year:04d}-{month:02d}-{whole >> 17 & 31:02d}"
        return f"{day}T{clock}{_fraction((packed & mask) * fraction_us, precision)}Z"

    return iso if is_iso else number


def binary_timestamp(fraction_bytes: int, precision: int, zero: Any) -> Decode:
    """Seconds since 1970 in four bytes, big-endian; then the fraction."""
    fraction_us = 10 ** (6 - 2 * fraction_bytes)

    def iso(data: bytes) -> Any:
        seconds = int.from_bytes(data[:4], "big")
        if not precision:
            return f"{_minutes[seconds // 60]}{seconds % 60:02d}Z" if seconds else zero
        fraction = int.from_bytes(data[4:], "big")
        if not seconds and not fraction:
            return zero
        text = _fraction(fraction * fraction_us, precision)
        return f"{_minutes[seconds // 60]}{seconds % 60:02d}{text}Z"

    return iso


def binary_time(fraction_bytes: int, precision: int, is_iso: bool) -> Decode:
    """Three bytes, big-endian, of hour << 12 | minute << 6 | second, and the fraction, together as
    one number with an offset, so that negative times sort in front.
    """
    width_bits = 8 * fraction_bytes
    fraction_us = 10 ** (6 - 2 * fraction_bytes)
    mask = (1 << width_bits) - 1
    offset = 1 << (23 + width_bits)

    def decode(data: bytes) -> Any:
        packed = int.from_bytes(data, "big") - offset
        size = abs(packed)
        whole = size >> width_bits
        seconds = (whole >> 12 & 1023) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
        us = seconds * 1_000_000 + (size & mask) * fraction_us
        us = -us if packed < 0 else us
        return iso_time(us, precision) if is_iso else us

    return decode


def old_datetime(zero: Any, is_iso: bool) -> Decode:
    """Eight bytes, little-endian, of the decimal number YYYYMMDDhhmmss."""
    text = text_datetime(0, zero, is_iso)

    def decode(data: bytes) -> Any:
        digits = b"%014d" % int.from_bytes(data, "little")
        return text(
            b"%s-%s-%s %s:%s:%s"
            % (digits[:4], digits[4:6], digits[6:8], digits[8:10], digits[10:12], digits[12:14])
        )

    return decode


def old_timestamp(zero: Any) -> Decode:
    decode = binary_timestamp(0, 0, zero)
    return lambda data: decode(data[::-1])


def old_time(is_iso: bool) -> Decode:
    """Three bytes, little-endian, signed, of the decimal number hhmmss."""

    def decode(data: bytes) -> Any:
        number = int.from_bytes(data, "little", signed=True)
        size = abs(number)
        us = (size // 10000 * 3600 + size // 100 % 100 * 60 + size % 100) * 1_000_000
        us = -us if number < 0 else us
        return iso_time(us, 0) if is_iso else us

    return decode


# --- as text ---


def text_date(zero: Any, is_iso: bool) -> Decode:
    def decode(text: bytes) -> Any:
        days = _text_days[text[:10]]
        if days is None:
            return zero
        return text.decode() if is_iso else days

    return decode


def text_datetime(precision: int, zero: Any, is_iso: bool) -> Decode:
    unit_us = 1 if precision > 3 else 1000

    def decode(text: bytes) -> Any:
        days = _text_days[text[:10]]
        if days is None:
            return zero
        if is_iso:
            return f"{text[:10].decode()}T{text[11:].decode()}Z"
        seconds = days * _DAY_S + int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
        fraction = int(text[20:26].ljust(6, b"0")) if precision else 0
        return (seconds * 1_000_000 + fraction) // unit_us

    return decode


def text_timestamp(zero: Any) -> Decode:
    """Of a session in UTC."""

    def decode(text: bytes) -> Any:
        if text[:4] == b"0000":
            return zero
        return f"{text[:10].decode()}T{text[11:].decode()}Z"

    return decode


def text_time(precision: int, is_iso: bool) -> Decode:
    def decode(text: bytes) -> Any:
        hours, minutes, seconds = text.lstrip(b"-").split(b":")
        us = (int(hours) * 3600 + int(minutes) * 60 + int(seconds[:2])) * 1_000_000
        us += int(seconds[3:9].ljust(6, b"0")) if precision else 0
        us = -us if text[:1] == b"-" else us
        return iso_time(us, precision) if is_iso else us

    return decode


def iso_time(us: int, precision: int) -> str:
    """13:51:30.123Z; beyond a day as the servers write it: -838:59:59."""
    seconds, fraction = divmod(abs(us), 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    clock += _fraction(fraction, precision)
    return f"{clock}Z" if 0 <= us < _DAY_S * 1_000_000 else f"{'-' if us < 0 else ''}{clock}"


def _fraction(us: int, precision: int) -> str:
    return f".{us:06d}"[: precision + 1] if precision else ""
