"""Documents and stored queries of a made-up language, the same for every peer.

Words are as frequent as in a natural language (Zipf), in documents of 20 words. Queries look for
content words, so not for the 1,000 most common ones: two words of which both are required (60 %), a
phrase of two out of some document (20 %), one of two words (10 %), one without another (10 %).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

_VOCABULARY = 50_000
_COMMON = 1_000  # words that nobody searches for
_WORDS = 20


@dataclass(frozen=True)
class Query:
    kind: str  # and, phrase, or, not
    first: str
    second: str

    @property
    def text(self) -> str:
        """In the syntax of hw.search."""
        if self.kind == "phrase":
            return f'"{self.first} {self.second}"'
        word = {"and": "AND", "or": "OR", "not": "AND NOT"}[self.kind]
        return f"{self.first} {word} {self.second}"


def documents(count: int, seed: int = 1) -> list[str]:
    random = np.random.default_rng(seed)
    words = _vocabulary()
    chosen = random.choice(len(words), (count, _WORDS), p=_weights(0))
    return [" ".join(words[number] for number in row) for row in chosen]


def queries(count: int, seed: int = 2) -> list[Query]:
    random = np.random.default_rng(seed)
    words = _vocabulary()
    pairs = _COMMON + random.choice(len(words) - _COMMON, (count, 2), p=_weights(_COMMON))
    kinds = random.choice(["and", "phrase", "or", "not"], count, p=[0.6, 0.2, 0.1, 0.1])
    phrases = _phrases(set(words[:_COMMON]))
    made = []
    for number, kind in enumerate(kinds):
        first, second = (words[one] for one in pairs[number])
        if kind == "phrase":
            first, second = phrases[random.integers(len(phrases))]
        made.append(Query(str(kind), first, second))
    return made


def _phrases(common: set[str]) -> list[tuple[str, str]]:
    return [
        (one, other)
        for text in documents(20_000, seed=3)
        for one, other in pairwise(text.split())
        if one not in common and other not in common
    ]


def _vocabulary() -> list[str]:
    """Pronounceable, and of different lengths."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    random = np.random.default_rng(0)
    found: dict[str, None] = {}
    for numbers in random.integers(len(syllables), size=(4 * _VOCABULARY, 4)):
        parts = [syllables[number] for number in numbers[: 2 + numbers[0] % 3]]
        found["".join(parts)] = None
        if len(found) == _VOCABULARY:
            break
    return list(found)


def _weights(first: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    weights = 1 / np.arange(first + 1, _VOCABULARY + 1)
    weights /= weights.sum()
    return weights
