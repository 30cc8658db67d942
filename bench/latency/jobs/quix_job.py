"""The three jobs in Quix Streams: `guarantee` at-least-once or exactly-once."""

import json
import os
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows import Count, Max, Sum

JOB = json.loads(os.environ["LATENCY_JOB"])


def event_time(value: Any, _headers: Any, _timestamp: float, _kind: Any) -> int:
    return int(value["at"])


def joined(event: dict[str, Any], customer: dict[str, Any] | None) -> dict[str, Any]:
    found = customer or {"name": None, "tier": None}
    return {
        "eid": event["eid"],
        "k": event["k"],
        "v": event["v"],
        "name": found["name"],
        "tier": found["tier"],
    }


def main() -> None:
    app = Application(
        broker_address=JOB["bootstrap"],
        consumer_group=JOB["results"],
        auto_offset_reset="earliest",
        processing_guarantee=JOB["guarantee"],
        commit_interval=0.1 if JOB["guarantee"] == "exactly-once" else 1.0,
        consumer_poll_timeout=0.02,  # its default is one second
        state_dir=JOB["state"],
        loglevel="WARNING",
        producer_extra_config={"linger.ms": 1},
    )
    is_window = JOB["kind"] == "window"
    events = app.topic(
        JOB["events"],
        key_deserializer="bytes",
        value_deserializer="json",
        timestamp_extractor=event_time if is_window else None,
    )
    frame = app.dataframe(events)
    if JOB["kind"] == "map":
        frame = frame.filter(lambda row: row["v"] % 4 != 0)
        frame = frame.apply(lambda row: {"eid": row["eid"], "k": row["k"], "v": row["v"] * 2})
    elif is_window:
        windows = frame.tumbling_window(JOB["window_s"] * 1000, grace_ms=0)
        frame = windows.agg(n=Count(), s=Sum("v"), k=Max("k")).final(closing_strategy="partition")
        frame = frame.apply(
            lambda row: {"k": row["k"], "w": row["start"], "n": row["n"], "s": row["s"]}
        )
    else:
        topic = app.topic(JOB["table"], key_deserializer="bytes", value_deserializer="json")
        frame = frame.join_asof(app.dataframe(topic), how="left", on_merge=joined)
        if JOB["tier"] is not None:
            frame = frame.filter(lambda row: row["tier"] == JOB["tier"])
    frame.to_topic(app.topic(JOB["results"], key_serializer="bytes", value_serializer="json"))
    app.run()


if __name__ == "__main__":
    main()
