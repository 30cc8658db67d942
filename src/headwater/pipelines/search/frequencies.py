"""How common words and values are in documents: which part of a query is its rarest.

They are counted in samples: in batches at which the number of documents has grown sixteenfold. So
the counts follow from the log and cost next to nothing. They decide what a document costs, and
never what it matches.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from headwater.pipelines.search.conditions import PREFIX, VALUE, WORD, Key
from headwater.pipelines.search.documents import Document, Path

_MOST_KEYS: Final = 20_000
_FIRST: Final = 64  # documents, before which there is no sample
_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("group", pa.string()), ("text", pa.string()), ("found", pa.int64())]
)


def is_due(before: int, after: int) -> bool:
    """Whether a batch that brings the number of documents from `before` to `after` is sampled."""
    return _stage(after) > _stage(before)


def _stage(documents: int) -> int:
    return 0 if documents < _FIRST else documents.bit_length() // 4


class Frequencies:
    """In how many documents of a sample each key was; the most common ones."""

    def __init__(self, stored: pa.Table | None = None) -> None:
        self._found: dict[tuple[str, str, str], int] = {}
        for row in [] if stored is None else stored.to_pylist():
            self._found[row["kind"], row["group"], row["text"]] = row["found"]

    def of(self, key: Key) -> float:
        """Of keys that were never found, long ones are probably rarer than short ones."""
        if key.kind == PREFIX:  # how many words begin so is not known
            return 50.0 / len(key.text)
        found = self._found.get((key.kind, _text_of(key.group), key.text), 0)
        return found or 1.0 / (1 + len(key.text))

    def sample(
        self, documents: Iterable[Document], languages: Sequence[str], paths: Sequence[Path]
    ) -> None:
        """Counts the words in these languages and the values at these paths."""
        found = self._found
        for document in documents:
            for language in languages:
                for stem in document.stems(language):
                    key = WORD, language, stem
                    found[key] = found.get(key, 0) + 1
            for path in paths:
                group = _text_of(path)
                for text in document.canonical_values(path):
                    key = VALUE, group, text
                    found[key] = found.get(key, 0) + 1
        if len(found) > _MOST_KEYS:
            common = sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))
            self._found = dict(common[:_MOST_KEYS])

    def to_table(self) -> pa.Table:
        rows = [(*key, found) for key, found in sorted(self._found.items())]
        columns = zip(*rows, strict=True) if rows else [[]] * len(_SCHEMA)
        return pa.table([list(column) for column in columns], schema=_SCHEMA)


def _text_of(group: str | Path) -> str:
    return group if isinstance(group, str) else ".".join(group)
