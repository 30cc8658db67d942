"""The three jobs in Pathway, at least once: with persistence, as a restart would need it."""

import json
import os

import pathway as pw

JOB = json.loads(os.environ["LATENCY_JOB"])
CONSUMER = {
    "bootstrap.servers": JOB["bootstrap"],
    "group.id": JOB["results"],
    "auto.offset.reset": "earliest",
    "session.timeout.ms": "6000",
}
AUTOCOMMIT_MS = 10  # its default is 1,500


class Event(pw.Schema):
    eid: int
    k: int
    v: int
    at: int


class Customer(pw.Schema):
    k: int = pw.column_definition(primary_key=True)
    name: str
    tier: int


def read(topic: str, schema: type[pw.Schema]) -> pw.Table:
    settings = {**CONSUMER, "group.id": f"{JOB['results']}-{topic}"}
    return pw.io.kafka.read(
        settings,
        topic,
        schema=schema,
        format="json",
        autocommit_duration_ms=AUTOCOMMIT_MS,
        name=topic,
    )


def results(events: pw.Table) -> pw.Table:
    if JOB["kind"] == "map":
        return events.filter(events.v % 4 != 0).select(
            eid=pw.this.eid, k=pw.this.k, v=pw.this.v * 2
        )
    if JOB["kind"] == "window":
        behavior = None if JOB["backlog"] else pw.temporal.exactly_once_behavior()
        windows = events.windowby(
            events.at,
            window=pw.temporal.tumbling(duration=JOB["window_s"] * 1000),
            instance=events.k,
            behavior=behavior,
        )
        return windows.reduce(
            k=pw.this._pw_instance,  # noqa: SLF001
            w=pw.this._pw_window_start,  # noqa: SLF001
            n=pw.reducers.count(),
            s=pw.reducers.sum(pw.this.v),
        )
    customers = read(JOB["table"], Customer)
    joined = events.asof_now_join(customers, pw.left.k == pw.right.k, how=pw.JoinMode.LEFT).select(
        eid=pw.left.eid, k=pw.left.k, v=pw.left.v, name=pw.right.name, tier=pw.right.tier
    )
    return joined if JOB["tier"] is None else joined.filter(joined.tier == JOB["tier"])


def main() -> None:
    output = {"bootstrap.servers": JOB["bootstrap"], "linger.ms": "1"}
    pw.io.kafka.write(results(read(JOB["events"], Event)), output, JOB["results"], format="json")
    stored = pw.persistence.Config(
        pw.persistence.Backend.filesystem(JOB["state"]), snapshot_interval_ms=1000
    )
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=stored)


if __name__ == "__main__":
    main()
