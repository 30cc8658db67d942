"""The jobs as a pipeline of Headwater's, exactly once. Its Job is in LATENCY_JOB."""

import json
import os

import headwater as hw

JOB = json.loads(os.environ["LATENCY_JOB"])


@hw.pipeline
def job(flow: hw.Flow) -> None:
    if JOB["kind"] == "view":
        _view(flow)
        return
    at = "timestamp" if JOB["kind"] in ("window", "match") else "bigint"
    events = flow.changes(JOB["events"], f"eid bigint, k bigint, v bigint, at {at}")
    key: list[str] = []
    if JOB["kind"] == "map":
        rows = events.where("v % 4 != 0").selectExpr("eid", "k", "v * 2 AS v", "_op", "_position")
    elif JOB["kind"] == "window":
        by_time = hw.event_time("at", delay="0 seconds")
        rows = hw.tumbling(events, by_time, f"{JOB['window_s']} seconds", by="k").agg(
            n=hw.agg.count(), s=hw.agg.sum("v")
        )
        key = ["k", "window_start"]
    elif JOB["kind"] == "match":
        rows = hw.match(
            events,
            "k",
            "ORDERED X*? SHIPPED Y*? PAID",
            time=hw.event_time("at", delay="0 seconds"),
            define={"ORDERED": "v = 0", "SHIPPED": "v = 2", "PAID": "v = 4"},
            measures={"ordered": "ORDERED.eid", "paid": "PAID.eid"},
            within="1 hour",
        )
    else:
        table = flow.table(JOB["table"], "k bigint, name string, tier bigint", key="k")
        rows = hw.enrich(events, table, on="k", columns=["name", "tier"]).selectExpr(
            "eid", "k", "v", "name", "tier", "_op", "_position"
        )
        if JOB["tier"] is not None:
            rows = rows.where(f"tier = {JOB['tier']}")
    flow.write(rows, to="topic", table=JOB["results"], key=key, options={"partitions": "2"})


def _view(flow: hw.Flow) -> None:
    result = hw.sql(
        """SELECT c.country, count(*) AS orders, sum(o.amount) AS total
           FROM o JOIN c ON o.customer_id = c.id GROUP BY c.country""",
        keys={"o": "id", "c": "id"},
        o=flow.changes(JOB["events"], "id bigint, customer_id bigint, amount bigint"),
        c=flow.changes(JOB["table"], "id bigint, country string"),
    )
    flow.write(result, to="topic", table=JOB["results"], key="country", options={"partitions": "2"})
