"""The clause MATCH_RECOGNIZE ( … ) of SQL, as arguments of hw.match.

sqlglot tokenizes it, and reads none of it: it loses PATTERN, SUBSET and WITHIN. Sections come in
the order of the standard; WITHIN and TIMED OUT, which the standard does not have, are behind
PATTERN. Texts of expressions stay as they are.
"""

import re
from typing import Any, Final

import sqlglot
from sqlglot import TokenType

from headwater.errors import QueryRefused

# Words that begin a section, in their order.
_SECTIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("PARTITION BY",),
    ("ORDER BY",),
    ("MEASURES",),
    ("ONE", "ROW"),
    ("ALL", "ROWS"),
    ("AFTER", "MATCH"),
    ("PATTERN", "("),
    ("WITHIN", "INTERVAL"),
    ("TIMED", "OUT"),
    ("SUBSET",),
    ("DEFINE",),
)
_WITHIN: Final = re.compile(r"\s*interval\s+'?(\d+)'?\s+([a-z]+?)\s*", re.IGNORECASE)
_TIMED_OUT: Final = re.compile(r"\s*as\s+(\w+)\s*", re.IGNORECASE)


def parse_clause(text: str, offset: int = 0) -> dict[str, Any]:
    """Arguments of hw.match of the text between the brackets, which stands at `offset` of a query.
    Raises QueryRefused with its place there.
    """
    return _Clause(text, offset).arguments()


class _Clause:
    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self._offset = offset
        self._tokens: list[Any] = sqlglot.tokenize(text, read="spark")

    def arguments(self) -> dict[str, Any]:
        sections = self._sections()
        for words in (_SECTIONS[0], _SECTIONS[1], ("PATTERN", "(")):
            if words not in sections:
                hint = "PARTITION BY user ORDER BY at MEASURES … PATTERN (A B+) DEFINE …"
                raise self._refused(f"{' '.join(words).rstrip(' (')} is missing", 0, hint=hint)
        found: dict[str, Any] = {}
        for words, (begin, end) in sections.items():
            name = words[0]
            body = self._text[begin:end].strip()
            if name == "PARTITION BY":
                found["key"] = [self._column(part) for part in self._parts(begin, end)]
            elif name == "ORDER BY":
                found["time"] = self._time(begin, end)
            elif name in ("MEASURES", "DEFINE"):
                found[name.lower()] = self._named(begin, end, is_name_first=name == "DEFINE")
            elif name in ("ONE", "ALL"):
                found["rows_per_match"] = " ".join([*words, body])
            elif name == "AFTER":
                found["after_match"] = body
            elif name == "PATTERN":
                found["pattern"] = self._pattern(begin, end)
            elif name == "WITHIN":
                found["within"] = self._within(begin, end)
            elif name == "TIMED":
                found["timed_out"] = self._timed_out(begin, end)
            else:
                found["subset"] = self._subsets(begin, end)
        return found

    def _sections(self) -> dict[tuple[str, ...], tuple[int, int]]:
        """Where the text behind the words of each section is."""
        begins: list[tuple[tuple[str, ...], int, int]] = []
        depth = at = 0
        while at < len(self._tokens):
            words = self._section_at(at) if depth == 0 else None
            token = self._tokens[at]
            if words is not None:
                last = self._tokens[at + len(words) - 1]
                after = last.end + 1 if words[0] != "WITHIN" else last.start
                begins.append((words, token.start, after))
                at += len(words) - (words[-1] == "(")
                continue
            if not begins:
                raise self._refused(f"{token.text!r} has no meaning here", token.start)
            depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
            depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
            at += 1
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        last_order = -1
        for number, (words, start, after) in enumerate(begins):
            order = _SECTIONS.index(words)
            if order <= last_order or (words == ("ALL", "ROWS") and ("ONE", "ROW") in found):
                raise self._refused(
                    f"{' '.join(words).rstrip(' (')} stands twice, or in the wrong place",
                    start,
                    hint="the order is PARTITION BY, ORDER BY, MEASURES, ONE ROW PER MATCH, AFTER"
                    " MATCH, PATTERN, WITHIN, TIMED OUT, SUBSET, DEFINE",
                )
            last_order = order
            end = begins[number + 1][1] if number + 1 < len(begins) else len(self._text)
            found[words] = (after, end)
        return found

    def _section_at(self, at: int) -> tuple[str, ...] | None:
        for words in _SECTIONS:
            texts = tuple(token.text.upper() for token in self._tokens[at : at + len(words)])
            is_bare = all(
                token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
                for token in self._tokens[at : at + len(words)]
            )
            if texts == words and is_bare:
                return words
        return None

    def _parts(self, begin: int, end: int) -> list[list[Any]]:
        """The tokens between commas."""
        found: list[list[Any]] = [[]]
        depth = 0
        for token in self._tokens:
            if not begin <= token.start < end:
                continue
            depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
            depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
            if depth == 0 and token.token_type == TokenType.COMMA:
                found.append([])
            else:
                found[-1].append(token)
        if not all(found):
            raise self._refused("something is missing", begin)
        return found

    def _column(self, part: list[Any]) -> str:
        if len(part) != 1:
            raise self._refused("a column alone is expected", part[0].start)
        return str(part[0].text)

    def _time(self, begin: int, end: int) -> str:
        parts = self._parts(begin, end)
        if len(parts) == 1 and len(parts[0]) == 2 and parts[0][1].text.upper() == "ASC":
            parts[0].pop()
        if len(parts) != 1 or len(parts[0]) != 1:
            raise self._refused(
                "rows are in the order of one column, their time, ascending", parts[0][0].start
            )
        return self._column(parts[0])

    def _named(self, begin: int, end: int, *, is_name_first: bool) -> dict[str, str]:
        """`A AS condition` or `measure AS name`."""
        found: dict[str, str] = {}
        for part in self._parts(begin, end):
            named = part[1] if len(part) > 2 else None
            if not is_name_first and len(part) > 2:
                named = part[-2]
            if named is None or named.text.upper() != "AS":
                how = "A AS price > 1" if is_name_first else "A.price AS price"
                raise self._refused("AS is missing", part[0].start, hint=how)
            name = part[0] if is_name_first else part[-1]
            first, last = (part[2], part[-1]) if is_name_first else (part[0], part[-3])
            if str(name.text) in found:
                raise self._refused(f"{name.text} is there twice", name.start)
            found[str(name.text)] = self._text[first.start : last.end + 1]
        return found

    def _pattern(self, begin: int, end: int) -> str:
        """Up to the bracket that closes it."""
        depth, close = 1, None
        for token in self._tokens:
            if not begin <= token.start < end:
                continue
            if close is not None:
                raise self._refused(f"{token.text!r} has no meaning here", token.start)
            depth += token.token_type == TokenType.L_PAREN
            depth -= token.token_type == TokenType.R_PAREN
            if depth == 0:
                close = token.start
        if close is None:
            raise self._refused("the bracket of PATTERN is not closed", begin)
        return self._text[begin:close].strip()

    def _within(self, begin: int, end: int) -> str:
        found = _WITHIN.fullmatch(self._text[begin:end])
        if found is None:
            raise self._refused("WITHIN has no interval", begin, hint="WITHIN INTERVAL '1' HOUR")
        return f"{found[1]} {found[2].lower()}"

    def _timed_out(self, begin: int, end: int) -> str:
        found = _TIMED_OUT.fullmatch(self._text[begin:end])
        if found is None:
            raise self._refused("TIMED OUT has no column", begin, hint="TIMED OUT AS is_unpaid")
        return found[1]

    def _subsets(self, begin: int, end: int) -> dict[str, list[str]]:
        found = {}
        for part in self._parts(begin, end):
            texts = [str(token.text) for token in part]
            members = texts[3:-1:2]
            if len(texts) < 5 or [texts[1], texts[2], texts[-1]] != ["=", "(", ")"]:
                raise self._refused("a subset is U = (A, B)", part[0].start)
            found[texts[0]] = members
        return found

    def _refused(self, what: str, at: int, *, hint: str = "") -> QueryRefused:
        return QueryRefused(f"MATCH_RECOGNIZE: {what}", hint=hint, offset=self._offset + at)
