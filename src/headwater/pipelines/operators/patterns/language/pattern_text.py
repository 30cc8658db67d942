"""The parser of row patterns: the text between the brackets of PATTERN, as SQL:2016 has it.

    A B+ (C | D)*? PERMUTE(E, F) {- G{2,3} -}

Names are not case-sensitive; a variable is called as it is spelled first. Errors have the line and
column where the text stops being a pattern.
"""

import re
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.pattern_tree import (
    EMPTY,
    Alternation,
    Excluded,
    PartitionStart,
    Repeated,
    Sequence,
    Tree,
    Variable,
)

_TOKEN: Final = re.compile(
    r"""\s*(?:--[^\n]*\n\s*)*(?:
      (?P<open_exclusion>\{-) | (?P<close_exclusion>-\})
    | (?P<name>[^\W\d]\w* | "(?:[^"]|"")+" | `(?:[^`]|``)+`)
    | (?P<number>\d+)
    | (?P<sign>[()|*+?{},^$])
    | (?P<end>$)
    | (?P<other>.)
    )""",
    re.VERBOSE,
)
_QUANTIFIERS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MOST_PERMUTED: Final = 6  # 720 orders
MOST_REPEATED: Final = 1_000
_DEEPEST: Final = 60


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse_pattern(text: str) -> Tree:
    """Raises PipelineError."""
    if not isinstance(text, str) or not text.strip():
        raise PipelineError("the pattern is empty", hint='such as "A B+ C"')
    return _Parser(text).parse()


def place_in(text: str, at: int) -> str:
    """Line and column, counted from 1, and the line with a mark below the place."""
    line = text.count("\n", 0, at) + 1
    begin = text.rfind("\n", 0, at) + 1
    shown = text[begin:].partition("\n")[0]
    return f"line {line}, column {at - begin + 1}\n  {shown}\n  {' ' * (at - begin)}^"


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text)]
        self._at = 0
        self._depth = 0
        self._spelled: dict[str, str] = {}

    def parse(self) -> Tree:
        tree = self._alternation()
        if self._next.kind != "end":
            what = "a bracket is closed that is not open" if self._next.text in ")}-}" else ""
            raise self._refusal(what or f"{self._next.text!r} has no meaning here")
        return tree

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, text: str) -> bool:
        if self._next.text != text or self._next.kind == "end":
            return False
        self._at += 1
        return True

    def _expect(self, text: str, opened: _Token) -> None:
        if not self._take(text):
            where = place_in(self._text, opened.at).partition("\n")[0]
            raise self._refusal(f"{text!r} is missing", hint=f"{opened.text!r} is at {where}")

    def _alternation(self) -> Tree:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._refusal("brackets are nested too deeply")
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self._next.kind != "end" and self._next.text not in (")", "|", ",", "-}"):
            parts.append(self._quantified())
        if not parts:
            raise self._refusal("a variable is missing", hint="the empty pattern is ()")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self) -> Tree:
        anchor = self._next
        part = self._primary()
        place = self._next
        bounds = self._bounds()
        if bounds is None:
            return part
        if isinstance(part, PartitionStart):
            raise self._refusal("an anchor cannot be repeated", at=anchor.at)
        is_greedy = not self._take("?")
        again = self._next
        if self._bounds() is not None:
            raise self._refusal(
                "two quantifiers follow each other",
                at=again.at,
                hint="with brackets, (A+)*, it is clear which is meant",
            )
        least, most = bounds
        if most is not None and (most < least or most == 0):
            raise self._refusal(f"{{{least},{most}}} is no range", at=place.at)
        if max(least, most or 0) > MOST_REPEATED:
            raise self._refusal(f"a quantifier is at most {MOST_REPEATED}", at=place.at)
        return Repeated(part, least, most, is_greedy)

    def _bounds(self) -> tuple[int, int | None] | None:
        sign = self._next
        if sign.kind == "sign" and sign.text in _QUANTIFIERS:
            self._at += 1
            return _QUANTIFIERS[sign.text]
        if not self._take("{"):
            return None
        least = self._number()
        if not self._take(","):
            if least is None:
                raise self._refusal("a number is missing", hint="{2}, {2,}, {2,5} or {,5}")
            self._expect("}", sign)
            return least, least
        most = self._number()
        if least is None and most is None:
            raise self._refusal("a number is missing", hint="{2}, {2,}, {2,5} or {,5}")
        self._expect("}", sign)
        return least or 0, most

    def _number(self) -> int | None:
        token = self._next
        if token.kind != "number":
            return None
        self._at += 1
        return int(token.text[:9])

    def _primary(self) -> Tree:
        token = self._next
        self._at += 1
        if token.kind == "name":
            if token.text.upper() == "PERMUTE" and self._next.text == "(":
                return self._permuted()
            return Variable(self._name(token))
        if token.kind == "open_exclusion":
            part = self._alternation()
            self._expect("-}", token)
            return Excluded(part)
        if token.text == "(":
            if self._take(")"):
                return EMPTY
            part = self._alternation()
            self._expect(")", token)
            return part
        if token.text == "^":
            return PartitionStart()
        if token.text == "$":
            raise self._refusal(
                "the anchor $ matches the last row, and a stream has none",
                at=token.at,
                hint="within=… ends a match by time; timed_out=… gives those that did not complete",
            )
        raise self._refusal(f"{token.text!r} has no meaning here", at=token.at)

    def _permuted(self) -> Tree:
        opened = self._next
        self._at += 1
        parts = [self._alternation()]
        while self._take(","):
            parts.append(self._alternation())
        self._expect(")", opened)
        if len(parts) > _MOST_PERMUTED:
            raise self._refusal(
                f"PERMUTE has {len(parts)} parts, and may have {_MOST_PERMUTED}", at=opened.at
            )
        return Alternation(tuple(Sequence(order) for order in permutations(parts)))

    def _name(self, token: _Token) -> str:
        text = token.text
        if text[0] in '"`':
            text = text[1:-1].replace(text[0] * 2, text[0])
        return self._spelled.setdefault(text.upper(), text)

    def _refusal(self, what: str, *, at: int | None = None, hint: str = "") -> PipelineError:
        place = place_in(self._text, self._next.at if at is None else at)
        return PipelineError(f"pattern: {what}", detail=place, hint=hint)


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while True:
        match = _TOKEN.match(text, at)
        assert match is not None
        assert match.lastgroup is not None
        kind = match.lastgroup
        found.append(_Token(kind, match[kind], match.start(kind)))
        if kind == "end":
            return found
        at = match.end()
