"""Readers of JSON values into Arrow types, vectorised and one by one, with equal results.

For all values at once: Arrow's JSON parser reads a column as the node's `wire` type, and `cast`
makes the column's own type of it. One by one: `read` takes the JSON text of one value. Whatever the
first accepts the second makes the same of; what the first does not accept (a date that is a number
among dates that are texts, an object where a text is expected) goes to the second, which gives the
cause if a value cannot be read.
"""

import re
from abc import ABC, abstractmethod
from binascii import a2b_base64
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConfigError
from headwater.pipelines.decoding.times import clock_of, clock_text, days_of, micros_of

NULL: Final = b"null"
_SHOWN_CHARACTERS: Final = 60
_INTEGER: Final = re.compile(rb"-?\d{1,40}\Z")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}
_UNITS_PER_S: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TIMES: Final = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_FLOOR)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


class Unreadable(Exception):
    """A value that cannot be read. `path` names its field, from the outside to the inside."""

    def __init__(self, what: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    @property
    def cause(self) -> str:
        return f"field {'.'.join(self.path)}: {self.what}" if self.path else self.what


class NotVectorised(Exception):
    """These values have to be read one by one."""


def expected(what: str, raw: bytes) -> Unreadable:
    text = raw.decode(errors="replace")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "…"
    return Unreadable(f"expected {what}, got {text}")


class Node(ABC):
    """One type. `form` is what it is most often written as: "text" or "number"."""

    form = "text"

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    def wire(self) -> pa.DataType:
        """The type that Arrow's parser reads it as. Raises NotVectorised if it cannot."""
        return self.type

    def cast(self, array: pa.Array) -> pa.Array:
        """From the wire type. Raises NotVectorised, or pa.ArrowInvalid for a value that is not as
        the others are.
        """
        return array

    @abstractmethod
    def read(self, raw: bytes) -> Any:
        """The value of a JSON text other than null, for pa.array. Raises Unreadable."""

    def follow(self, raw: bytes) -> None:
        """Takes this value's form for the most frequent one."""
        self.form = "text" if raw[:1] == b'"' else "number"


class Boolean(Node):
    def read(self, raw: bytes) -> bool:
        if raw == b"true":
            return True
        if raw == b"false":
            return False
        raise expected("true or false", raw)


class Integer(Node):
    def read(self, raw: bytes) -> int:
        if _INTEGER.match(raw) is None:
            is_long = raw[:1].isdigit() or raw[:1] == b"-"
            raise expected(f"{self.type}" if is_long else "an integer", raw)
        number = int(raw)
        limit = 1 << self.type.bit_width - 1
        if not -limit <= number < limit:
            raise expected(f"{self.type}", raw)
        return number


class Float(Node):
    def cast(self, array: pa.Array) -> pa.Array:
        if pc.any(pc.is_inf(array)).as_py():
            raise NotVectorised  # too large for 32 bits
        return array

    def read(self, raw: bytes) -> float:
        if raw[:1] == b'"':
            special = _NOT_FINITE.get(_text(raw))
            if special is None:
                raise expected("a number", raw)
            return special
        if not (raw[:1].isdigit() or raw[:1] == b"-"):
            raise expected("a number", raw)
        number: float = pa.scalar(raw.decode()).cast(self.type).as_py()  # rounded once only
        if number in _NOT_FINITE.values():
            raise expected(f"{self.type}", raw)
        return number


class Text(Node):
    """A text. Anything else stays the JSON that it is."""

    def read(self, raw: bytes) -> str:
        return str(_text(raw)) if raw[:1] == b'"' else raw.decode()


class Exact(Node):
    """decimal(p, s), from a number or a text; never rounded."""

    def cast(self, array: pa.Array) -> pa.Array:
        array.validate(full=True)  # with exponents Arrow's parser goes beyond the precision
        return array

    def read(self, raw: bytes) -> Decimal:
        text = _text(raw) if raw[:1] == b'"' else raw.decode()
        if _DECIMAL.fullmatch(text) is None:
            raise expected("a number", raw)
        return fitted(_decimal(text, raw), self.type, raw)


def _decimal(text: str, raw: bytes) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        raise expected("a number", raw) from None


def fitted(number: Decimal, type_: pa.DataType, raw: bytes) -> Decimal:
    """The number with the type's scale at most. Raises Unreadable if it has no such form."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "neither NaN nor infinite"
    if not number:
        return Decimal(0)
    zeros = 0
    while digits[-1 - zeros] == 0:
        zeros += 1
    if number.adjusted() < type_.precision - type_.scale and -(exponent + zeros) <= type_.scale:
        return Decimal((sign, digits[: len(digits) - zeros], exponent + zeros))
    raise expected(f"decimal({type_.precision}, {type_.scale})", raw)


class Date(Node):
    """A date, from "2024-02-29" or the number of days since 1970."""

    def wire(self) -> pa.DataType:
        return pa.string() if self.form == "text" else self.type

    def cast(self, array: pa.Array) -> pa.Array:
        return array.cast(self.type)

    def read(self, raw: bytes) -> int:
        days = int(raw) if _INTEGER.match(raw) else None
        if raw[:1] == b'"':
            days = days_of(_text(raw))
        if days is None or not -(2**31) <= days < 2**31:
            raise expected("a date", raw)
        return days


class Timestamp(Node):
    """A time in microseconds, from ISO 8601 or a number of `unit`s since 1970. A text without a
    zone is in UTC; digits beyond the microseconds are cut off.
    """

    def __init__(self, type_: pa.DataType, unit: str) -> None:
        super().__init__(type_)
        self._unit = unit

    def wire(self) -> pa.DataType:
        return self.type if self.form == "text" else pa.int64()

    def cast(self, array: pa.Array) -> pa.Array:
        if self.form == "text":
            return array
        per_s = _UNITS_PER_S[self._unit]
        if per_s < 10**6:
            return pc.multiply_checked(array, 10**6 // per_s).cast(self.type)
        if per_s > 10**6:
            cut = pc.subtract_checked(
                array, pc.bit_wise_and(pc.shift_right(array, 63), per_s // 10**6 - 1)
            )
            return pc.divide(cut, per_s // 10**6).cast(self.type)
        return array.cast(self.type)

    def read(self, raw: bytes) -> int:
        if raw[:1] == b'"':
            micros = micros_of(_text(raw))
        elif raw[:1].isdigit() or raw[:1] == b"-":
            number = _decimal(raw.decode(), raw)
            if number.adjusted() > 25:
                raise expected("a time", raw)
            scaled = _TIMES.divide(number.scaleb(6, _TIMES), _UNITS_PER_S[self._unit])
            micros = int(scaled.to_integral_value(ROUND_FLOOR))
        else:
            micros = None
        if micros is None or not -(2**63) <= micros < 2**63:
            raise expected("a time", raw)
        return micros


class Binary(Node):
    """Bytes, from Base64."""

    def wire(self) -> pa.DataType:
        return pa.string()

    def cast(self, array: pa.Array) -> pa.Array:
        try:
            return pa.array(
                [None if text is None else _base64(text) for text in array.to_pylist()], self.type
            )
        except ValueError:
            raise NotVectorised from None

    def read(self, raw: bytes) -> bytes:
        return base64_of(raw)


def _base64(text: str) -> bytes:
    return a2b_base64(text.encode(), strict_mode=True)


def base64_of(raw: bytes) -> bytes:
    try:
        if raw[:1] == b'"':
            return _base64(_text(raw))
    except ValueError:
        pass
    raise expected("bytes in Base64", raw)


class Listed(Node):
    def __init__(self, type_: pa.DataType, item: Node) -> None:
        super().__init__(type_)
        self._item = item

    def wire(self) -> pa.DataType:
        return pa.list_(self._item.wire())

    def cast(self, array: pa.Array) -> pa.Array:
        items = self._item.cast(array.values)
        if items.null_count and not self.type.value_field.nullable:
            raise NotVectorised
        kind = pa.LargeListArray if pa.types.is_large_list(self.type) else pa.ListArray
        offsets = array.offsets
        if kind is pa.LargeListArray:
            offsets = offsets.cast(pa.int64())
        return kind.from_arrays(offsets, items, type=self.type, mask=array.is_null())

    def read(self, raw: bytes) -> list[Any]:
        if raw[:1] != b"[":
            raise expected("an array", raw)
        is_nullable = self.type.value_field.nullable
        return [
            _read(self._item, bytes(element), f"[{number}]", is_nullable)
            for number, element in enumerate(_elements(raw))
        ]

    def follow(self, raw: bytes) -> None:
        if raw[:1] == b"[":
            for element in _elements(raw)[:1]:
                self._item.follow(bytes(element))


class Struct(Node):
    """An object with the members of a schema; others are ignored."""

    def __init__(self, type_: pa.DataType, members: list[tuple[str, Node, bool]]) -> None:
        """Of each member the name, how it is read, and whether it may be null or missing."""
        super().__init__(type_)
        self.members = members

    def wire(self) -> pa.DataType:
        return pa.struct([(name, node.wire()) for name, node, _ in self.members])

    def cast(self, array: pa.Array) -> pa.Array:
        arrays = self.cast_members([array.field(n) for n in range(len(self.members))], array)
        fields = [self.type.field(n) for n in range(self.type.num_fields)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())

    def cast_members(self, arrays: list[pa.Array], whole: pa.Array | None) -> list[pa.Array]:
        out = []
        for (_, node, is_nullable), array in zip(self.members, arrays, strict=True):
            if array.null_count and not is_nullable:
                missing = array.is_null()
                if whole is not None:
                    missing = pc.and_(missing, whole.is_valid())
                if pc.any(missing).as_py():
                    raise NotVectorised
            out.append(node.cast(array))
        return out

    def read(self, raw: bytes) -> dict[str, Any]:
        if raw[:1] != b"{":
            raise expected("an object", raw)
        found = _members(raw)
        return {
            name: _read(node, bytes(found.get(name, NULL)), name, is_nullable)
            for name, node, is_nullable in self.members
        }

    def follow(self, raw: bytes) -> None:
        if raw[:1] == b"{":
            found = _members(raw)
            for name, node, _ in self.members:
                value = bytes(found.get(name, NULL))
                if value != NULL:
                    node.follow(value)


class Mapped(Node):
    """An object as a map from text."""

    def __init__(self, type_: pa.DataType, item: Node) -> None:
        super().__init__(type_)
        self._item = item

    def wire(self) -> pa.DataType:
        raise NotVectorised

    def read(self, raw: bytes) -> list[tuple[str, Any]]:
        if raw[:1] != b"{":
            raise expected("an object", raw)
        is_nullable = self.type.item_field.nullable
        return [
            (name, _read(self._item, bytes(value), name, is_nullable))
            for name, value in _members(raw).items()
        ]


def _read(node: Node, raw: bytes, name: str, is_nullable: bool) -> Any:
    try:
        if raw != NULL:
            return node.read(raw)
        if is_nullable:
            return None
        raise Unreadable("it is null or missing, and must not be")
    except Unreadable as error:
        raise Unreadable(error.what, (name, *error.path)) from None


class Clock(Node):
    """A time of day as a text, "13:51:30.123456", from ISO 8601 or a number since midnight."""

    def __init__(self, type_: pa.DataType, unit: str) -> None:
        super().__init__(type_)
        self._unit = unit
        self.form = "number"

    def wire(self) -> pa.DataType:
        return pa.string() if self.form == "text" else pa.int64()

    def cast(self, array: pa.Array) -> pa.Array:
        if self.form == "text":
            return pc.utf8_rtrim(array, "Z").cast(pa.time64("us")).cast(self.type)
        per_s = _UNITS_PER_S[self._unit]
        if per_s > 10**6:
            raise NotVectorised
        micros = pc.multiply_checked(array, 10**6 // per_s)
        bounds = pc.min_max(micros)
        if len(array) > array.null_count and not (
            bounds["min"].as_py() >= 0 and bounds["max"].as_py() < 86_400 * 10**6
        ):
            raise NotVectorised
        return micros.cast(pa.time64("us")).cast(self.type)

    def read(self, raw: bytes) -> str:
        text: str | None = None
        if raw[:1] == b'"':
            text = clock_of(_text(raw))
        elif _INTEGER.match(raw):
            text = clock_text(int(raw) * 10**6 // _UNITS_PER_S[self._unit])
        if text is None:
            raise expected("a time of day", raw)
        return text


def node_of(type_: pa.DataType, unit: str, column: str) -> Node:
    """How JSON is read into a column of this type; numbers in times are in `unit`. Raises
    ConfigError for a type that cannot be had.
    """
    is_ = pa.types
    leaf = _LEAVES.get(type_.id)
    if leaf is not None:
        return leaf(type_)
    if is_.is_timestamp(type_) and type_.unit == "us":
        return Timestamp(type_, unit)
    if is_.is_list(type_) or is_.is_large_list(type_):
        return Listed(type_, node_of(type_.value_type, unit, column))
    if is_.is_map(type_) and type_.key_type.id in (pa.string().id, pa.large_string().id):
        return Mapped(type_, node_of(type_.item_type, unit, column))
    if is_.is_struct(type_):
        return Struct(type_, members_of(list(type_), unit, column))
    raise ConfigError(
        f"column {column}: JSON cannot be read into the type {type_}",
        hint="types are string, boolean, int8 to int64, float, double, decimal128, date32, "
        "timestamp in microseconds, binary, lists, structs, and maps from string",
    )


def members_of(
    fields: list[pa.Field], unit: str, column: str | None = None
) -> list[tuple[str, Node, bool]]:
    return [
        (field.name, node_of(field.type, unit, column or field.name), field.nullable)
        for field in fields
    ]


_LEAVES: Final[dict[int, Callable[[pa.DataType], Node]]] = {
    pa.bool_().id: Boolean,
    pa.int8().id: Integer,
    pa.int16().id: Integer,
    pa.int32().id: Integer,
    pa.int64().id: Integer,
    pa.float32().id: Float,
    pa.float64().id: Float,
    pa.string().id: Text,
    pa.large_string().id: Text,
    pa.decimal128(1).id: Exact,
    pa.date32().id: Date,
    pa.binary().id: Binary,
    pa.large_binary().id: Binary,
}
