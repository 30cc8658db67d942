"""A snapshot of a full-text index, as of one commit: its position, its rows, and search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import tantivy

from headwater.errors import StoreRefused
from headwater.sinks.contract import Position, fields_from_text, fields_to_text
from headwater.sinks.rows import json_reading
from headwater.sinks.tantivy.fields import (
    BUCKET,
    BUCKETS,
    ROW,
    STATE,
    Analysis,
    register,
    state_document,
    text_fields,
)

_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Hit:
    score: float  # BM25
    row: dict[str, Any]


def search(path: str | Path, query: str, limit: int = 10) -> list[Hit]:
    """The rows that fit the query best. `path` is DIR/NAME, or DIR/NAME__vN. The query is in
    tantivy's language: words are searched in all full-text columns, `column:word`,
    `column:"a phrase"`, `n:[1 TO 9]`, AND, OR, NOT. Raises StoreRefused if it cannot be read.
    """
    found = Snapshot.of(Path(path))
    try:
        parsed = found.index.parse_query(query, text_fields(found.fields, found.analysis))
    except ValueError as error:
        raise StoreRefused("the query cannot be read", detail=str(error)) from None
    no_state = (tantivy.Occur.MustNot, _state_query(found.index))
    whole = tantivy.Query.boolean_query([(tantivy.Occur.Must, parsed), no_state])
    hits = found.searcher.search(whole, limit, count=False).hits
    rows = found.rows([address for _, address in hits]).to_pylist()
    return [Hit(score, row) for (score, _), row in zip(hits, rows, strict=True)]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the last commit; later commits do not change it."""

    index: tantivy.Index
    searcher: tantivy.Searcher
    position: Position | None
    fields: pa.Schema
    analysis: Analysis

    @classmethod
    def of(cls, path: Path) -> "Snapshot":
        """Raises FileNotFoundError if there is none."""
        for attempt in range(_ATTEMPTS):
            # Resolved once for all files: the link may be replaced, and the old files removed.
            directory = path.resolve(strict=True)
            try:
                index = tantivy.Index.open(str(directory))
                searcher = index.searcher()
                return cls(index, searcher, *_state(index, searcher))
            except ValueError as error:
                if attempt == _ATTEMPTS - 1:
                    raise StoreRefused(
                        f"the index {path} cannot be read",
                        detail=str(error),
                        hint="a rebuild makes a new version from the log",
                    ) from None
        raise AssertionError

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        for bucket in range(BUCKETS):
            query = tantivy.Query.term_query(self.index.schema, BUCKET, bucket)
            query = tantivy.Query.const_score_query(query, 1.0)
            hits = self.searcher.search(query, self.searcher.num_docs, count=False).hits
            if hits:
                yield self.rows([address for _, address in hits])

    def rows(self, addresses: Sequence[tantivy.DocAddress]) -> pa.RecordBatch:
        return json_reading.rows(
            [_stored(self.searcher, address) for address in addresses], self.fields
        )


def put_state(
    writer: tantivy.IndexWriter, position: Position | None, fields: pa.Schema, analysis: Analysis
) -> None:
    """The position is a document too, so that one commit has it and the rows."""
    writer.delete_documents_by_term(STATE, "position")
    state = {
        "position": None if position is None else position.to_json().decode(),
        "fields": fields_to_text(fields),
        "text": analysis.text,
        "language": analysis.language,
    }
    writer.add_json(state_document(state))


def _state(
    index: tantivy.Index, searcher: tantivy.Searcher
) -> tuple[Position | None, pa.Schema, Analysis]:
    hits = searcher.search(_state_query(index), 1, count=False).hits
    if not hits:
        raise ValueError("it has no position: no pipeline wrote it")
    state: dict[str, Any] = _stored(searcher, hits[0][1])
    text = state["text"]
    analysis = Analysis(None if text is None else tuple(text), state["language"])
    register(index, analysis)
    position = state["position"]
    return (
        None if position is None else Position.from_json(position),
        fields_from_text(state["fields"]),
        analysis,
    )


def _state_query(index: tantivy.Index) -> tantivy.Query:
    return tantivy.Query.term_query(index.schema, STATE, "position")


def _stored(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> dict[str, Any]:
    stored: Any = searcher.doc(address).get_first(ROW)
    document: dict[str, Any] = orjson.loads(bytes(stored))
    return document
