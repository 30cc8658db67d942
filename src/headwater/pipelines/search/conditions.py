"""Conditions that a stored query is made of, and how each is decided for a document.

A condition gives a `Test`, a function of a document, and the keys by which it can be found. A key
is something that a matching document must have: a stem, a pair of adjacent stems, the beginning of
a word, or a value of a field. Conditions without keys (ranges, places, negations) are decided for
every document, unless another one of their conjunction has keys.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from headwater.pipelines.search.documents import Document, Path
from headwater.pipelines.search.fields import (
    Number,
    as_number,
    as_time,
    distance_m,
    place_of,
)

Test = Callable[[Document], bool]

WORD: Final = "word"  # kinds of keys
PAIR: Final = "pair"  # two words next to each other, with a space between them
PREFIX: Final = "prefix"
VALUE: Final = "value"
_RARER: Final = 8


class Key(NamedTuple):
    kind: str
    group: str | Path  # the language of a word, the path of a value
    text: str


# How common a key is: the cost of the documents that have it.
Frequency = Callable[[Key], float]


class Cover(NamedTuple):
    """Keys of which every matching document has at least one."""

    cost: float
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """One word, or a phrase: its stems in adjacent positions of one text."""

    stems: tuple[str, ...]
    language: str
    field: int | None = None  # None: any text field

    def test(self) -> Test:
        language, field = self.language, self.field
        if len(self.stems) == 1:
            (stem,) = self.stems
            if field is None:
                return lambda document: stem in document.stems(language)
            return lambda document: stem in document.stems(language, field)
        pairs = frozenset(self._pairs())
        if field is None and len(self.stems) == 2:
            return lambda document: pairs <= document.pairs(language)
        return lambda document: pairs <= document.pairs(language) and bool(self.places(document))

    def _pairs(self) -> list[str]:
        return [f"{one} {other}" for one, other in itertools.pairwise(self.stems)]

    def places(self, document: Document) -> list[tuple[int, int]]:
        """Segments and positions at which it begins."""
        places = document.places(self.language)
        found = places.get(self.stems[0], [])
        if self.field is not None:
            found = [place for place in found if document.field_of(place[0]) == self.field]
        for distance, stem in enumerate(self.stems[1:], 1):
            if not found:
                break
            there = set(places.get(stem, ()))
            found = [place for place in found if (place[0], place[1] + distance) in there]
        return found

    def cover(self, frequency: Frequency) -> Cover | None:
        words = [frequency(Key(WORD, self.language, stem)) for stem in self.stems]
        if len(words) == 1:
            return Cover(words[0], (Key(WORD, self.language, self.stems[0]),))
        # A pair is rarer than its words; by how much is not known.
        costs = [min(two) / _RARER for two in itertools.pairwise(words)]
        cost, pair = min(zip(costs, self._pairs(), strict=True))
        return Cover(cost, (Key(PAIR, self.language, pair),))


@dataclass(frozen=True, slots=True)
class Prefix:
    """A word that begins so, as it is written in the document: prefixes are not stemmed."""

    beginning: str
    field: int | None = None

    def test(self) -> Test:
        beginning, field = self.beginning, self.field

        def has_prefix(document: Document) -> bool:
            words = document.stems("") if field is None else document.stems("", field)
            return any(word.startswith(beginning) for word in words)

        return has_prefix

    def cover(self, frequency: Frequency) -> Cover | None:
        key = Key(PREFIX, "", self.beginning)
        return Cover(frequency(key), (key,))


@dataclass(frozen=True, slots=True)
class Value:
    """A field that equals one of these canonical values (`fields.canonical`)."""

    path: Path
    canonical: tuple[str, ...]

    def test(self) -> Test:
        path, wanted = self.path, frozenset(self.canonical)
        return lambda document: not wanted.isdisjoint(document.canonical_values(path))

    def cover(self, frequency: Frequency) -> Cover | None:
        keys = tuple(Key(VALUE, self.path, text) for text in self.canonical)
        return Cover(sum(frequency(key) for key in keys), keys)


@dataclass(frozen=True, slots=True)
class ValuePrefix:
    """A text field, not analysed, that begins so."""

    path: Path
    beginning: str

    def test(self) -> Test:
        path, beginning = self.path, self.beginning
        return lambda document: any(
            isinstance(value, str) and value.startswith(beginning)
            for value in document.values(path)
        )

    def cover(self, frequency: Frequency) -> Cover | None:
        return None


@dataclass(frozen=True, slots=True)
class Exists:
    """The field has a value."""

    path: Path

    def test(self) -> Test:
        path = self.path
        return lambda document: bool(document.values(path))

    def cover(self, frequency: Frequency) -> Cover | None:
        return None


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range. It compares with values of its own type only."""

    text: str
    number: Number | None
    time: datetime | None
    is_included: bool


@dataclass(frozen=True, slots=True)
class Range:
    """A field between two bounds; None is open. A number is compared with numbers, a time with
    times and texts that are times, any other bound with texts.
    """

    path: Path
    low: Bound | None
    high: Bound | None

    def test(self) -> Test:
        path = self.path
        return lambda document: any(self._has(value) for value in document.values(path))

    def cover(self, frequency: Frequency) -> Cover | None:
        return None

    def _has(self, value: Any) -> bool:
        for bound, is_low in ((self.low, True), (self.high, False)):
            if bound is None:
                continue
            wanted, found = _comparable(bound, value)
            if found is None:
                return False
            if found == wanted:
                if not bound.is_included:
                    return False
            elif (found < wanted) == is_low:
                return False
        return True


def _comparable(bound: Bound, value: Any) -> tuple[Any, Any]:
    if bound.number is not None:
        return bound.number, as_number(value)
    if bound.time is not None:
        return bound.time, as_time(value)
    return bound.text, value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Near:
    """A place within so many metres of another."""

    path: Path
    latitude: float
    longitude: float
    within_m: float

    def test(self) -> Test:
        path, centre = self.path, (self.latitude, self.longitude)

        def is_near(document: Document) -> bool:
            places = (place_of(value) for value in document.values(path))
            return any(
                place is not None and distance_m(centre, place) <= self.within_m for place in places
            )

        return is_near

    def cover(self, frequency: Frequency) -> Cover | None:
        return None


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Condition", ...]

    def test(self) -> Test:
        tests = tuple(part.test() for part in self.parts)
        if len(tests) == 2:
            one, other = tests
            return lambda document: one(document) and other(document)
        return lambda document: all(test(document) for test in tests)

    def cover(self, frequency: Frequency) -> Cover | None:
        """The rarest of its parts."""
        covers = [cover for part in self.parts if (cover := part.cover(frequency)) is not None]
        return min(covers, default=None)


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Condition", ...]

    def test(self) -> Test:
        tests = tuple(part.test() for part in self.parts)
        return lambda document: any(test(document) for test in tests)

    def cover(self, frequency: Frequency) -> Cover | None:
        """Keys of every part: a document may match by any of them."""
        cost = 0.0
        keys: dict[Key, None] = {}
        for part in self.parts:
            cover = part.cover(frequency)
            if cover is None:
                return None
            cost += cover.cost
            keys |= dict.fromkeys(cover.keys)
        return Cover(cost, tuple(keys))


@dataclass(frozen=True, slots=True)
class Not:
    part: "Condition"

    def test(self) -> Test:
        test = self.part.test()
        return lambda document: not test(document)

    def cover(self, frequency: Frequency) -> Cover | None:
        return None


Condition = Words | Prefix | Value | ValuePrefix | Exists | Range | Near | And | Or | Not


def required_words(condition: Condition) -> Iterator[Key]:
    """Words that every matching document has, all of them."""
    if isinstance(condition, Words):
        for stem in condition.stems:
            yield Key(WORD, condition.language, stem)
    elif isinstance(condition, And):
        for part in condition.parts:
            yield from required_words(part)


def columns_of(condition: Condition) -> Iterator[str]:
    """The columns of documents that it reads, besides those of the text fields."""
    if isinstance(condition, And | Or):
        for part in condition.parts:
            yield from columns_of(part)
    elif isinstance(condition, Not):
        yield from columns_of(condition.part)
    elif not isinstance(condition, Words | Prefix):
        yield condition.path[0]


def positive_words(condition: Condition) -> Iterator[Words | Prefix]:
    """The words that make a document match, without those of negations."""
    if isinstance(condition, Words | Prefix):
        yield condition
    elif isinstance(condition, And | Or):
        for part in condition.parts:
            yield from positive_words(part)
