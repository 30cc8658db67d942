"""A document as queries see it: its columns, and the words and stems of its texts.

Everything is computed when a query first asks for it, once for all queries. Text fields may hold
lists and structs: each string in them is a segment, and phrases do not cross segments.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from headwater.pipelines.search.analysis import normalized, stems_in, words_of
from headwater.pipelines.search.fields import canonical, texts_in, values_at

MOST_CHARACTERS: Final = 1_000_000  # of a document's texts that are searched
_NO_WORDS: Final[frozenset[str]] = frozenset()

Path = tuple[str, ...]
Places = dict[str, list[tuple[int, int]]]  # of a stem: the segments and the positions in them


def path_of(name: str) -> Path:
    return tuple(name.split("."))


class Document:
    """Not for use by several threads."""

    __slots__ = (
        "_canonical",
        "_fields",
        "_pairs",
        "_places",
        "_segments",
        "_stems",
        "_stems_of_fields",
        "_values",
        "_words",
        "columns",
        "is_cut",
        "texts",
    )

    def __init__(self, columns: Mapping[str, Any], texts: Sequence[Path]) -> None:
        """`texts`: the fields that words are searched in."""
        self.columns = columns
        self.texts = texts
        self.is_cut = False  # it has more text than is searched
        self._segments: list[str] | None = None
        self._fields: list[int] = []  # of each segment: which of `texts`
        self._words: list[list[str]] | None = None  # by segment
        self._stems: dict[str, frozenset[str]] = {}
        self._stems_of_fields: dict[tuple[str, int], frozenset[str]] = {}
        self._pairs: dict[str, frozenset[str]] = {}
        self._places: dict[str, Places] = {}
        self._values: dict[Path, list[Any]] = {}
        self._canonical: dict[Path, frozenset[str]] = {}

    @property
    def segments(self) -> list[str]:
        """The strings of its text fields, normalized; each with its field (`field_of`)."""
        if self._segments is None:
            self._segments, left = [], MOST_CHARACTERS
            for field, path in enumerate(self.texts):
                for value in values_at(self.columns, path):
                    for text in (value,) if type(value) is str else texts_in(value):
                        if len(text) > left:
                            self.is_cut = True
                        self._segments.append(normalized(text[:left]))
                        self._fields.append(field)
                        left = max(0, left - len(text))
        return self._segments

    def field_of(self, segment: int) -> int:
        return self._fields[segment]

    @property
    def words(self) -> list[list[str]]:
        """By segment, in order."""
        if self._words is None:
            self._words = [words_of(text) for text in self.segments]
        return self._words

    def stems(self, language: str, field: int | None = None) -> frozenset[str]:
        """The stems of all text fields, or of one."""
        if field is None:
            found = self._stems.get(language)
            if found is None:
                found = self._stems[language] = self._stemmed(language, self.words)
            return found
        of_field = self._stems_of_fields.get((language, field))
        if of_field is None:
            words = self.words
            chosen = [words[number] for number, one in enumerate(self._fields) if one == field]
            of_field = self._stemmed(language, chosen)
            self._stems_of_fields[language, field] = of_field
        return of_field

    def pairs(self, language: str) -> frozenset[str]:
        """Stems that are next to each other in one text, with a space between them."""
        found = self._pairs.get(language)
        if found is None:
            texts: Sequence[Sequence[str]] = self.words
            if language:
                stem = stems_in(language).__getitem__
                texts = [list(map(stem, words)) for words in texts]
            found = frozenset(f"{one} {other}" for words in texts for one, other in pairwise(words))
            self._pairs[language] = found
        return found

    def places(self, language: str) -> Places:
        """Where each stem is."""
        found = self._places.get(language)
        if found is None:
            found = self._places[language] = {}
            stems = stems_in(language) if language else None
            for segment, words in enumerate(self.words):
                for position, word in enumerate(words):
                    stem = stems[word] if stems is not None else word
                    found.setdefault(stem, []).append((segment, position))
        return found

    def values(self, path: Path) -> list[Any]:
        found = self._values.get(path)
        if found is None:
            found = self._values[path] = values_at(self.columns, path)
        return found

    def canonical_values(self, path: Path) -> frozenset[str]:
        found = self._canonical.get(path)
        if found is None:
            texts = (canonical(value) for value in self.values(path))
            found = frozenset(text for text in texts if text is not None)
            self._canonical[path] = found
        return found

    @staticmethod
    def _stemmed(language: str, words: Sequence[Sequence[str]]) -> frozenset[str]:
        if not words:
            return _NO_WORDS
        if len(words) == 1:
            all_words: frozenset[str] = frozenset(words[0])
        else:
            all_words = frozenset().union(*words)
        if not language:
            return all_words
        return frozenset(map(stems_in(language).__getitem__, all_words))
