"""`hw.search`: documents of a stream past stored queries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater import extras
from headwater.errors import PipelineError
from headwater.pipelines.flow import AT, has_results
from headwater.pipelines.operators.joins.enrich import (
    TABLE_EVERYWHERE,
    arrow_schema,
    changes_of_table,
    key_of_table,
    table_in_log,
)
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.position import POSITION
from headwater.pipelines.search.analysis import language_of
from headwater.pipelines.search.search_operator import (
    HIGHLIGHTS,
    OWNER,
    QUERY_ID,
    SCORE,
    TARGET,
    SearchOperator,
)
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KIND: Final = "search"
_QUERY: Final = "query"
_TEXTS: Final = (_QUERY, OWNER, TARGET, "language")  # columns of queries that are strings
_LIMIT: Final = "limit"
_IDLE_US: Final = 600_000_000  # of a partition of documents, after which it is not waited for
_MARKS: Final = ("<em>", "</em>")
_FRAGMENTS: Final = 3


def search(
    documents: "DataFrame",
    queries: "DataFrame",
    text: Sequence[str] | str,
    *,
    language: str | None = None,
    marks: tuple[str, str] = _MARKS,
    fragments: int = _FRAGMENTS,
    score: bool = False,
    name: str | None = None,
) -> "DataFrame":
    """The documents that match stored queries: a row for each document and query, with the columns
    of the document, `query_id`, `owner`, `target` and `highlights`. A document meets the queries
    that were stored before it in the log, as they were then; it is not searched again later.

    `queries`    what `flow.table` gave: a topic of queries by their id, with a column `query` and,
                 if they are there, `owner`, `language`, `target` (texts) and `limit` (bigint: most
                 matches in an hour)
    `text`       fields that words of queries are searched in: "title", or a path "post.body"
    `language`   of queries that name none: "english" or "en"; without one, words are not stemmed
    `marks`      around the words that were found, in `highlights`
    `fragments`  most highlights of a match; 0 leaves the column out
    `score`      adds a column with the weight of the words that were found
    `name`       identifies its state when its inputs are changed
    """
    extras.require("hw.search", "search")
    texts = (text,) if isinstance(text, str) else tuple(text)
    _check_documents(documents, texts)
    found = table_in_log(_KIND, queries)
    (key,) = _one(key_of_table(_KIND, found, ()), found.topic.topic)
    changes = found.applied(changes_of_table(_KIND, found.topic, is_stream=documents.isStreaming))
    stored = _stored(arrow_schema(changes), key, found.topic.topic)
    columns = tuple(documents.columns)
    added = [
        pa.field(QUERY_ID, stored[0].type),
        pa.field(OWNER, pa.string()),
        pa.field(TARGET, pa.string()),
    ]
    if fragments:
        added.append(pa.field(HIGHLIGHTS, pa.list_(pa.string())))
    if score:
        added.append(pa.field(SCORE, pa.float64()))
    _check_names(columns, [field.name for field in added])
    operator = SearchOperator(
        output=pa.schema([*arrow_schema(documents), *added]),
        documents=columns,
        texts=texts,
        key=key,
        queries=stored,
        language=language_of(language),
        marks=(str(marks[0]), str(marks[1])),
        fragments=fragments,
        has_score=score,
        time=EventTime(AT, 0, idle_us=_IDLE_US),
        is_stream=documents.isStreaming,
    )
    read = tuple(dict.fromkeys([*(field.name for field in stored), OP, AT]))
    return run_operator(
        _KIND,
        operator,
        [
            # Documents go to the queries of every bucket. As for hw.enrich, they are planned first.
            Side(documents, (), columns, operator.time, "true", passes=True),
            Side(changes, (key,), read, EventTime(AT, 0), TABLE_EVERYWHERE),
        ],
        name=name,
    )


def _check_documents(documents: "DataFrame", texts: tuple[str, ...]) -> None:
    if has_results(documents):
        raise PipelineError(
            f"{_KIND}: results of windows have no time in the log ({AT})",
            hint="search the documents first, and count matches in windows",
        )
    for name in (OP, AT, POSITION):
        if name not in documents.columns:
            raise PipelineError(
                f"{_KIND}: its documents have no column {name}",
                detail="columns are " + ", ".join(documents.columns),
                hint="flow.changes has it; select it, too",
            )
    if not texts:
        raise PipelineError(f"{_KIND}: text=[] names no field", hint='text=["title", "body"]')
    for name in texts:
        if name.partition(".")[0] not in documents.columns:
            raise PipelineError(
                f"{_KIND}: there is no column {name}",
                detail="columns are " + ", ".join(documents.columns),
            )


def _one(key: tuple[str, ...], topic: str) -> tuple[str]:
    if len(key) != 1:
        raise PipelineError(
            f"{_KIND}: a query has one column that identifies it",
            detail=f"the key of {topic} is {', '.join(key)}",
        )
    return (key[0],)


def _stored(schema: pa.Schema, key: str, topic: str) -> tuple[pa.Field, ...]:
    """The columns of the queries that are used."""
    if key not in schema.names or _QUERY not in schema.names:
        missing = key if key not in schema.names else _QUERY
        raise PipelineError(
            f"{_KIND}: {topic} has no column {missing}",
            detail="columns are " + ", ".join(schema.names),
            hint='flow.table("searches", hw.SEARCHES, key="id") has all',
        )
    names = [name for name in (*_TEXTS, _LIMIT) if name in schema.names]
    for name in names:
        kind = schema.field(name).type
        if name == _LIMIT and not pa.types.is_integer(kind):
            raise PipelineError(f"{_KIND}: {_LIMIT} of {topic} is {kind}, and no bigint")
        if name != _LIMIT and not pa.types.is_string(kind):
            raise PipelineError(f"{_KIND}: {name} of {topic} is {kind}, and no string")
    return schema.field(key), *(schema.field(name) for name in names if name != key)


def _check_names(columns: Sequence[str], added: Sequence[str]) -> None:
    for name in added:
        if name in columns:
            raise PipelineError(
                f"{_KIND}: two columns of the result would be called {name}",
                hint=f'documents.withColumnRenamed("{name}", "document_{name}")',
            )
