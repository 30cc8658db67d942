"""Highlights: fragments of a document's texts around the words that a query has found; and scores.

Both follow from the document and the query alone, so that a replay gives the same.
"""

from collections.abc import Iterator
from typing import Final

from headwater.pipelines.search.analysis import spans_of
from headwater.pipelines.search.conditions import Condition, Prefix, Words, positive_words
from headwater.pipelines.search.documents import Document

_AROUND: Final = 60  # characters before and after what was found
_SATURATION: Final = 1.2  # as BM25's k1: the tenth occurrence adds less than the second


def fragments(
    document: Document, condition: Condition, marks: tuple[str, str], most: int
) -> list[str]:
    """At most so many, in the order of the texts. Found words are between the two marks; the text
    itself is as it is in the document, and not escaped.
    """
    found = _found_words(document, condition)
    result: list[str] = []
    for segment in sorted(found):
        text = document.segments[segment]
        spans = spans_of(text)
        marked = [spans[position] for position in sorted(found[segment])]
        for group in _groups(marked):
            if len(result) == most:
                return result
            result.append(_fragment(text, group, marks))
    return result


def score(document: Document, condition: Condition) -> float:
    """The sum over the query's words of their occurrences, each with less weight than the one
    before.
    """
    total = 0.0
    for words in positive_words(condition):
        count = sum(1 for _ in _places(document, words))
        total += count * (_SATURATION + 1) / (count + _SATURATION)
    return total


def _found_words(document: Document, condition: Condition) -> dict[int, set[int]]:
    """Positions of found words, by segment."""
    found: dict[int, set[int]] = {}
    for words in positive_words(condition):
        length = len(words.stems) if isinstance(words, Words) else 1
        for segment, position in _places(document, words):
            found.setdefault(segment, set()).update(range(position, position + length))
    return found


def _places(document: Document, words: Words | Prefix) -> Iterator[tuple[int, int]]:
    if isinstance(words, Words):
        yield from words.places(document)
        return
    for segment, of_segment in enumerate(document.words):
        if words.field is None or document.field_of(segment) == words.field:
            for position, word in enumerate(of_segment):
                if word.startswith(words.beginning):
                    yield segment, position


def _groups(spans: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Words that are near enough to each other for one fragment."""
    group: list[tuple[int, int]] = []
    for span in spans:
        if group and span[1] - group[0][0] > 2 * _AROUND:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _fragment(text: str, spans: list[tuple[int, int]], marks: tuple[str, str]) -> str:
    start = _start_of_word(text, max(0, spans[0][0] - _AROUND))
    end = _end_of_word(text, min(len(text), spans[-1][1] + _AROUND))
    parts, at = ["…" if start else ""], start
    for begin, stop in spans:
        parts += [text[at:begin], marks[0], text[begin:stop], marks[1]]
        at = stop
    parts += [text[at:end], "…" if end < len(text) else ""]
    return "".join(parts)


def _start_of_word(text: str, at: int) -> int:
    """So that no fragment begins within a word, unless the word is very long."""
    if at == 0 or text[at - 1].isspace():
        return at
    for moved in range(at, min(at + _AROUND // 2, len(text))):
        if text[moved].isspace():
            return moved + 1
    return at


def _end_of_word(text: str, at: int) -> int:
    if at == len(text) or text[at].isspace():
        return at
    for moved in range(at, max(at - _AROUND // 2, 0), -1):
        if text[moved - 1].isspace():
            return moved - 1
    return at
