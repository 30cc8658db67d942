"""Analysis of texts: words and their stems, the same for queries and documents.

A word is a run of letters, digits and underscores, in lower case and Unicode's composed form (NFC).
Each character of Chinese and Japanese scripts is a word, so that a run of them in a query is a
phrase. Stems are those of the Snowball algorithm of the query's language, by tantivy; without a
language words are their own stems. There are no stop words.
"""

import functools
import re
import unicodedata
from typing import Any, Final

from headwater import extras
from headwater.errors import SearchRefused
from headwater.spelling import nearest

NO_LANGUAGE: Final = ""
LANGUAGES: Final = (
    "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian",
    "italian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil",
    "turkish",
)  # fmt: skip
_CODES: Final = {
    "ar": "arabic", "da": "danish", "nl": "dutch", "en": "english", "fi": "finnish",
    "fr": "french", "de": "german", "el": "greek", "hu": "hungarian", "it": "italian",
    "no": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian", "es": "spanish",
    "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
_IDEOGRAPHS: Final = "぀-ヿ㐀-䶿一-鿿豈-﫿"
_WORD: Final = re.compile(rf"[{_IDEOGRAPHS}]|[^\W{_IDEOGRAPHS}]+")
_CACHED_STEMS: Final = 500_000  # of a language; words of a language are fewer, numbers are not


def normalized(text: str) -> str:
    """In Unicode's composed form, which offsets of words refer to."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def words_of(text: str) -> list[str]:
    """The words of a normalized text, in order."""
    return _WORD.findall(text.lower() if text.isascii() else _lower(text))


def spans_of(text: str) -> list[tuple[int, int]]:
    """Where the words of a normalized text begin and end."""
    return [found.span() for found in _WORD.finditer(_lower(text))]


def _lower(text: str) -> str:
    """Of the same length: "İ" would become two characters, of which one is no letter."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(one if len(one.lower()) > 1 else one.lower() for one in text)


def language_of(name: str | None) -> str:
    """By its name or its code of ISO 639-1. Raises SearchRefused."""
    if not name:
        return NO_LANGUAGE
    known = name.lower()
    known = _CODES.get(known, known)
    if known not in LANGUAGES:
        meant = nearest(known, LANGUAGES)
        raise SearchRefused(
            f"there is no language {name}",
            hint=f"did you mean {meant}?" if meant else "languages are " + ", ".join(LANGUAGES),
        )
    return known


class Stems(dict[str, str]):
    """Stem of each word, computed when it is first asked for."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._analyzer = _stemmer(language)

    def __missing__(self, word: str) -> str:
        if len(self) >= _CACHED_STEMS:
            self.clear()
        found: list[str] = self._analyzer.analyze(word)
        self[word] = stem = found[0] if found else word
        return stem


@functools.cache
def stems_in(language: str) -> Stems:
    """Of one process. Raises MissingExtra if tantivy is not installed."""
    return Stems(language)


def _stemmer(language: str) -> Any:
    extras.require("stemming of stored queries", "search")
    import tantivy

    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw())
    return builder.filter(tantivy.Filter.stemmer(language)).build()


def stem_of(word: str, language: str) -> str:
    return stems_in(language)[word] if language else word
