"""`python -m bench.search [--lucene]`: documents a second past 10k and 100k stored queries.

One process, one thread, warm: `headwater` is the operator's step over batches of documents, from
Arrow rows to Arrow rows, with the queries in one bucket; Lucene Monitor (`--lucene`, by Maven) has
the same queries and documents, with its default presearcher over terms and its own analysis by
words. Both count the matches, which must be equal. CPU seconds of the process are given, too: on a
machine with other work they say more.
"""

import argparse
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bench.search import lucene_monitor
from bench.search.workload import Query, documents, queries
from headwater.pipelines.operators.runtime.contract import Input, PartitionProgress
from headwater.pipelines.operators.runtime.packing import packed_schema
from headwater.pipelines.operators.state.state_files import MemoryState
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.search.search_operator import SearchOperator

_AT = datetime(2026, 1, 1, tzinfo=UTC)
_AT_US = int(_AT.timestamp() * 1e6)
_ADDED = [
    pa.field("_op", pa.string()),
    pa.field("_at", pa.timestamp("us", "UTC")),
    pa.field(POSITION, POSITION_TYPE),
]
_DOCUMENTS = pa.schema([("body", pa.string()), *_ADDED])
_QUERIES = pa.schema([("id", pa.string()), ("query", pa.string())])
_BATCH = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--language", default="", help="of the stemmer; none by default")
    parser.add_argument("--lucene", action="store_true", help="Lucene Monitor beside it")
    options = parser.parse_args()
    given = documents(options.documents)
    for count in options.queries:
        stored = queries(count)
        print(f"{count:,} queries, {len(given):,} documents of 20 words")
        _measure(stored, given, options.language)
        if options.lucene:
            lucene_monitor.measure(stored, given)


def _measure(stored: list[Query], given: list[str], language: str) -> None:
    operator, state = _operator(language), MemoryState()
    began_s = time.process_time()
    operator.step(state, (_no_documents(), _changes(stored)))
    built_s = time.process_time() - began_s
    # The first batch is sampled, and the queries are listed again by what is rare.
    operator.step(state, (_documents(given[:_BATCH]), _no_changes()))
    before = dict(state.counters)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, len(given), _BATCH):
        operator.step(state, (_documents(given[start : start + _BATCH]), _no_changes()))
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    matches, candidates = (
        state.counters[name] - before[name] for name in ("matches", "candidates")
    )
    print(
        f"  headwater       {len(given) / took_s:>10,.0f} documents/s"
        f" ({len(given) / cpu_s:,.0f} by CPU time), {matches:,} matches,"
        f" {candidates / len(given):.1f} candidates a document, index in {built_s:.1f} s"
    )


def _operator(language: str) -> SearchOperator:
    added = [pa.field(name, pa.string()) for name in ("query_id", "owner", "target")]
    return SearchOperator(
        output=pa.schema([*_DOCUMENTS, *added]),
        documents=tuple(_DOCUMENTS.names),
        texts=("body",),
        key="id",
        queries=tuple(_QUERIES),
        language=language,
        marks=("", ""),
        fragments=0,
        has_score=False,
        time=EventTime("_at", 0),
        is_stream=False,
    )


def _changes(stored: list[Query]) -> Input:
    rows = {
        "id": [str(number) for number in range(len(stored))],
        "query": [query.text for query in stored],
    }
    return _input([*_QUERIES, *_ADDED[:2]], rows, len(stored), "queries")


def _documents(given: list[str]) -> Input:
    position = {"topic": "documents", "partition": 0, "offset": 0}
    rows = {"body": given, POSITION: [position] * len(given)}
    return _input(list(_DOCUMENTS), rows, len(given), "documents")


def _no_documents() -> Input:
    return _documents([])


def _no_changes() -> Input:
    return _changes([])


def _input(fields: list[pa.Field], rows: dict[str, Any], count: int, topic: str) -> Input:
    schema = packed_schema(fields, stamped=True)
    common: dict[str, Any] = {
        "_op": ["c"] * count,
        "_at": [_AT] * count,
        "__origin": [0] * count,
        "__offset": list(range(count)),
        "__time": [_AT_US] * count,
        "__seen": [_AT_US] * count,
        "__fault": [0] * count,
    }
    columns = common | rows
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    progress = (PartitionProgress(topic, 0, _AT_US, count),) if count else ()
    return Input(table, ((topic, 0),), progress, _AT_US)


if __name__ == "__main__":
    main()
