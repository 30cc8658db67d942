"""The query language: the text of a stored query to conditions, with the place of every error.

    query     either ("OR" either)*
    either    unary ("AND"? unary)*                 words side by side are all required
    unary     ("NOT" | "-") unary | primary
    primary   "(" query ")" | near | [field ":"] value
    value     word | word"*" | '"' words '"' | range | "(" query ")"
    range     "[" low "TO" high "]" | "{" low "TO" high "}" | (">" | ">=" | "<" | "<=") bound
    near      "near(" field "," latitude "," longitude "," distance ")"

AND, OR and NOT are in capitals; NOT binds closest, then AND. A field is a path, `customer.city`.
Values of the text fields are words in any form of their language; those of other fields are exact.
"""

import re
from collections.abc import Sequence
from typing import Final

from headwater.errors import SearchRefused
from headwater.pipelines.search import conditions
from headwater.pipelines.search.analysis import language_of, normalized, stem_of, words_of
from headwater.pipelines.search.conditions import And, Bound, Condition, Not, Or
from headwater.pipelines.search.documents import Document, path_of
from headwater.pipelines.search.fields import alternatives, number_of, time_of
from headwater.spelling import nearest

MOST_CHARACTERS: Final = 10_000
_MOST_CONDITIONS: Final = 1_000
_DEEPEST: Final = 50
_FIELD: Final = re.compile(r"([A-Za-z_]\w*(?:\.[\w-]+)*):")
_NEAR: Final = re.compile(r"near\(")
_BARE: Final = re.compile(r'[^\s()\[\]{}":]+')
_VALUE: Final = re.compile(r'[^\s()\[\]{}"]+')  # of a field: it may have colons, as times do
_COMPARISON: Final = re.compile(r">=|<=|>|<")
_DISTANCE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(km|mi|m)")
_METRES: Final = {"m": 1.0, "km": 1000.0, "mi": 1609.344}
_KEYWORDS: Final = ("AND", "OR", "NOT", "TO")


def parse_query(
    text: str,
    texts: Sequence[str],
    *,
    language: str | None = None,
    columns: Sequence[str] | None = None,
) -> Condition:
    """`texts`: the fields that words are searched in. `columns`: of the documents, if they are
    known; a field of another name is an error. Raises SearchRefused.
    """
    parser = _Parser(text, tuple(texts), language_of(language), columns)
    condition = parser.parse()
    if condition.test()(Document({}, ())):
        raise SearchRefused(
            "the query would match every document",
            detail=text[:200],
            hint="at least one condition has to be met: NOT alone says what must be absent",
        )
    return condition


class _Parser:
    def __init__(
        self, text: str, texts: tuple[str, ...], language: str, columns: Sequence[str] | None
    ) -> None:
        self._text = text
        self._texts = texts
        self._language = language
        self._columns = columns
        self._at = 0
        self._depth = 0
        self._count = 0

    def parse(self) -> Condition:
        if len(self._text) > MOST_CHARACTERS:
            raise SearchRefused(
                f"the query has more than {MOST_CHARACTERS:,} characters",
                detail=f"{len(self._text):,}",
            )
        if any("\ud800" <= character <= "\udfff" for character in self._text):
            raise SearchRefused("the query is not encoded in UTF-8")
        if not self._text.strip():
            raise SearchRefused("the query is empty")
        found = self._query(None)
        self._skip_spaces()
        if self._at < len(self._text):
            raise self._error(
                "the query should end here", hint='"…" quotes words with such characters'
            )
        return found

    def _query(self, field: str | None) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"brackets and negations are nested more than {_DEEPEST} times")
        parts = [self._either(field)]
        while self._keyword("OR"):
            parts.append(self._either(field))
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Or(_flat(Or, parts))

    def _either(self, field: str | None) -> Condition:
        parts = [self._unary(field)]
        while True:
            self._skip_spaces()
            is_end = self._at >= len(self._text) or self._is_next(")", "OR")
            if not self._keyword("AND") and is_end:
                break
            parts.append(self._unary(field))
        return parts[0] if len(parts) == 1 else And(_flat(And, parts))

    def _unary(self, field: str | None) -> Condition:
        is_negated = False
        while True:
            self._skip_spaces()
            if self._keyword("NOT"):
                is_negated = not is_negated
            elif self._text.startswith("-", self._at):
                self._at += 1
                is_negated = not is_negated
            else:
                break
        found = self._primary(field)
        return Not(found) if is_negated else found

    def _primary(self, field: str | None) -> Condition:
        self._count += 1
        if self._count > _MOST_CONDITIONS:
            raise self._error(f"the query has more than {_MOST_CONDITIONS:,} conditions")
        start = self._at
        if self._at >= len(self._text):
            raise self._error("the query ends where a word is expected")
        if self._is_next("AND", "OR", "TO"):
            word = self._text[start:].split()[0]
            raise self._error(
                f"{word} is between two words", hint=f'"{word.lower()}" is the word itself'
            )
        if self._take("("):
            return self._group(field, start)
        if field is None:
            if found := _NEAR.match(self._text, self._at):
                self._at = found.end()
                return self._near(start)
            if found := _FIELD.match(self._text, self._at):
                self._at = found.end()
                return self._of_field(self._checked(found[1], start), start)
        return self._value(field, start)

    def _group(self, field: str | None, start: int) -> Condition:
        found = self._query(field)
        self._skip_spaces()
        if not self._take(")"):
            raise self._error("this bracket is not closed", start)
        return found

    def _of_field(self, field: str, start: int) -> Condition:
        self._skip_spaces()
        if self._at >= len(self._text):
            raise self._error(f"{field}: has no value", start)
        if self._take("("):
            return self._group(field, self._at - 1)
        return self._value(field, start)

    def _value(self, field: str | None, start: int) -> Condition:
        begin = self._at
        if self._take('"'):
            return self._exactly(field, self._quoted(begin), begin)
        is_range = self._text[begin : begin + 1] in ("[", "{")
        comparison = _COMPARISON.match(self._text, begin)
        if is_range or comparison:
            if field is None:
                raise self._error("a range needs a field", hint="total:[10 TO 20], total:>10")
            if comparison:
                self._at = comparison.end()
                return self._compared(field, comparison[0])
            return self._range(field)
        pattern = _BARE if field is None else _VALUE
        found = pattern.match(self._text, begin)
        if found is None:
            raise self._error(
                "a word is expected here", hint='"…" quotes words with such characters'
            )
        self._at = found.end()
        if self._text.startswith(":", self._at):
            raise self._error(
                f"{found[0]} is no name of a field", start, hint='quote words with colons: "12:30"'
            )
        return self._word(field, found[0], begin)

    def _word(self, field: str | None, word: str, begin: int) -> Condition:
        if "*" not in word:
            return self._exactly(field, word, begin)
        if word == "*":
            if field is None:
                raise self._error("* would match every document", begin)
            return conditions.Exists(path_of(field))
        if word.index("*") < len(word) - 1:
            raise self._error("* stands at the end of a word only", begin + word.index("*"))
        beginning = word[:-1]
        if field is not None and field not in self._texts:
            return conditions.ValuePrefix(path_of(field), beginning)
        words = words_of(normalized(beginning))
        if len(words) != 1:
            raise self._error("a prefix is the beginning of one word", begin)
        return conditions.Prefix(words[0], self._number(field))

    def _exactly(self, field: str | None, text: str, begin: int) -> Condition:
        if field is not None and field not in self._texts:
            return conditions.Value(path_of(field), alternatives(text))
        if not self._texts:
            raise self._error(
                "there are no text fields to find words in", begin, hint="field:value"
            )
        words = words_of(normalized(text))
        if not words:
            raise self._error("there is no word in it", begin)
        stems = tuple(stem_of(word, self._language) for word in words)
        return conditions.Words(stems, self._language, self._number(field))

    def _number(self, field: str | None) -> int | None:
        return None if field is None else self._texts.index(field)

    def _quoted(self, begin: int) -> str:
        """The text up to the closing quotation mark; a backslash quotes one."""
        found: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == '"':
                return "".join(found)
            if character == "\\" and self._text[self._at : self._at + 1] in ('"', "\\"):
                character = self._text[self._at]
                self._at += 1
            found.append(character)
        raise self._error("this quotation mark is not closed", begin)

    def _range(self, field: str) -> Condition:
        start = self._at
        is_included = [self._text[start] == "["]
        self._at += 1
        low = self._bound()
        self._skip_spaces()
        if not self._keyword("TO"):
            raise self._error("TO is expected between two bounds", hint="[1 TO 5], [10 TO *]")
        high = self._bound()
        self._skip_spaces()
        if self._text[self._at : self._at + 1] not in ("]", "}"):
            raise self._error("this bracket is not closed", start)
        is_included.append(self._text[self._at] == "]")
        self._at += 1
        if low == high == "*":
            return conditions.Exists(path_of(field))
        ends = [
            None if text == "*" else _bound(text, is_included=included)
            for text, included in zip((low, high), is_included, strict=True)
        ]
        return conditions.Range(path_of(field), *ends)

    def _compared(self, field: str, comparison: str) -> Condition:
        bound = _bound(self._bound(), is_included=comparison.endswith("="))
        is_low = comparison.startswith(">")
        return conditions.Range(
            path_of(field), bound if is_low else None, None if is_low else bound
        )

    def _bound(self) -> str:
        self._skip_spaces()
        begin = self._at
        if self._take('"'):
            return self._quoted(begin)
        found = _VALUE.match(self._text, begin)
        if found is None or found[0] in _KEYWORDS:
            raise self._error(
                "a bound is expected here", hint="a number, a time, a text, or * for none"
            )
        self._at = found.end()
        return found[0]

    def _near(self, start: int) -> Condition:
        end = self._text.find(")", self._at)
        if end < 0:
            raise self._error("this bracket is not closed", start)
        given = [part.strip() for part in self._text[self._at : end].split(",")]
        self._at = end + 1
        hint = "near(place, 52.52, 13.40, 10km)"
        if len(given) != 4:
            raise self._error(
                "near has a field, a latitude, a longitude and a distance", start, hint=hint
            )
        name, *numbers, distance = given
        if not _FIELD.fullmatch(f"{name}:"):
            raise self._error(f"{name or 'nothing'} is no name of a field", start, hint=hint)
        latitude, longitude = number_of(numbers[0]), number_of(numbers[1])
        if latitude is None or longitude is None or abs(latitude) > 90 or abs(longitude) > 180:
            place = ", ".join(numbers)
            raise self._error(f"{place} is no place", start, hint="degrees, the latitude first")
        metres = _DISTANCE.fullmatch(distance)
        if metres is None:
            raise self._error(
                f"{distance or 'nothing'} is no distance", start, hint="500m, 10km or 6mi"
            )
        return conditions.Near(
            path_of(self._checked(name, start)),
            float(latitude),
            float(longitude),
            float(metres[1]) * _METRES[metres[2]],
        )

    def _checked(self, field: str, start: int) -> str:
        if self._columns is None or field.partition(".")[0] in self._columns:
            return field
        meant = nearest(field, self._columns)
        raise self._error(
            f"documents have no field {field.partition('.')[0]}",
            start,
            hint=f"did you mean {meant}?" if meant else "fields are " + ", ".join(self._columns),
        )

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _is_next(self, *tokens: str) -> bool:
        """Keywords are whole words."""
        for token in tokens:
            if self._text.startswith(token, self._at):
                after = self._text[self._at + len(token) : self._at + len(token) + 1]
                if not token.isalpha() or not after or after.isspace() or after in '()"':
                    return True
        return False

    def _keyword(self, keyword: str) -> bool:
        self._skip_spaces()
        if not self._is_next(keyword):
            return False
        self._at += len(keyword)
        return True

    def _error(self, what: str, at: int | None = None, *, hint: str = "") -> SearchRefused:
        at = self._at if at is None else at
        before = self._text[:at]
        start = before.rfind("\n") + 1
        line = self._text[start:].partition("\n")[0]
        place = f"line {before.count(chr(10)) + 1}, column {at - start + 1}"
        return SearchRefused(f"{place}: {what}", detail=line[:200], hint=hint)


def _flat(kind: type[And] | type[Or], parts: Sequence[Condition]) -> tuple[Condition, ...]:
    found: list[Condition] = []
    for part in parts:
        found += part.parts if isinstance(part, kind) else (part,)
    return tuple(found)


def _bound(text: str, *, is_included: bool) -> Bound:
    return Bound(text, number_of(text), time_of(text), is_included)
