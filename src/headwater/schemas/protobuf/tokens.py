"""The tokens of a .proto file, each with its line and column for errors."""

import re
from typing import Final, NamedTuple

from headwater.errors import SchemaRefused
from headwater.schemas.codes import INVALID_SCHEMA

_TOKEN: Final = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)
    | (?P<number>
          (?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?
        | \d+[eE][+-]?\d+
        | 0[xX][0-9a-fA-F]+
        | \d+
      )
    | (?P<name>[A-Za-z_]\w*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<sign>[;={}\[\]()<>,.:+/-])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(
    rb"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(.))"
)
_SIMPLE: Final = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
}  # fmt: skip
_MAX_TOKENS: Final = 500_000


class Token(NamedTuple):
    kind: str  # number, name, string, sign, end
    text: str
    at: int  # index into the text


class Tokens:
    """The tokens of a text, taken one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._next = 0

    def _split(self, text: str) -> list[Token]:
        found, at = [], 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.refused(f"unexpected {text[at : at + 10]!r}", at)
            kind = match.lastgroup or ""
            if kind != "space":
                found.append(Token(kind, match[0], at))
            at = match.end()
            if len(found) > _MAX_TOKENS:
                raise self.refused("the schema is too large", at)
        found.append(Token("end", "the end", len(text)))
        return found

    def refused(self, reason: str, at: int | None = None) -> SchemaRefused:
        """An error at the next token, or at that index."""
        if at is None:
            at = self.peek.at
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        return SchemaRefused(
            INVALID_SCHEMA, f"no Protobuf schema: {reason} at line {line} column {column}"
        )

    @property
    def peek(self) -> Token:
        return self._tokens[self._next]

    def ahead(self, count: int) -> Token:
        """The token so many behind the next one."""
        return self._tokens[min(self._next + count, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind == "end":
            raise self.refused("the schema ends too early")
        self._next += 1
        return token

    def is_next(self, *texts: str) -> bool:
        token = self.peek
        return token.text in texts and token.kind != "string"

    def take_if(self, text: str) -> bool:
        """Whether it was next; then it is taken."""
        is_there = self.is_next(text)
        if is_there:
            self._next += 1
        return is_there

    def expect(self, text: str) -> None:
        if not self.take_if(text):
            raise self.refused(f"expected {text!r}, found {self.peek.text!r}")

    def name(self) -> str:
        if self.peek.kind != "name":
            raise self.refused(f"expected a name, found {self.peek.text!r}")
        return self.take().text

    def full_name(self) -> str:
        """With dots, perhaps one before all."""
        parts = ["."] if self.take_if(".") else []
        parts.append(self.name())
        while self.take_if("."):
            parts += (".", self.name())
        return "".join(parts)

    def integer(self, first: int, last: int) -> int:
        sign = -1 if self.take_if("-") else 1
        token = self.peek
        try:
            number = sign * parse_integer(token.text)
        except ValueError:
            raise self.refused(f"expected a whole number, found {token.text!r}") from None
        if not first <= number <= last:
            raise self.refused(f"{number} is not between {first} and {last}")
        self.take()
        return number

    def string(self) -> bytes:
        """Of one literal or of several that follow each other."""
        if self.peek.kind != "string":
            raise self.refused(f"expected a string, found {self.peek.text!r}")
        parts = []
        while self.peek.kind == "string":
            parts.append(_unescaped(self.take().text[1:-1]))
        return b"".join(parts)

    def text_string(self) -> str:
        at = self.peek.at
        try:
            return self.string().decode()
        except UnicodeDecodeError:
            raise self.refused("a string is no UTF-8", at) from None

    def aggregate(self) -> str:
        """Behind "{", up to its "}": as text."""
        depth = 1
        parts: list[str] = []
        while True:
            token = self.take()
            depth += (token.text == "{") - (token.text == "}") if token.kind == "sign" else 0
            if not depth:
                return " ".join(parts)
            parts.append(token.text)


def parse_integer(text: str) -> int:
    """Decimal, octal or hexadecimal. Raises ValueError."""
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if len(text) > 1 and text[0] == "0" and text.isdigit():
        return int(text, 8)
    if not text.isdigit() or len(text) > 40:
        raise ValueError(text)
    return int(text)


def _unescaped(text: str) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        two, four, eight, octal, sign = match.groups()
        if two:
            return bytes([int(two, 16)])
        if four or eight:
            point = int(four or eight, 16)
            is_text = point < 0x110000 and not 0xD800 <= point < 0xE000
            return chr(point).encode() if is_text else b"?"
        if octal:
            return bytes([int(octal, 8) & 0xFF])
        return _SIMPLE.get(sign, sign)

    return _ESCAPE.sub(replaced, text.encode(errors="replace"))
