"""hw.match_stored over the driverless harness: rows past definitions, both cut into batches."""

import json

import pyarrow as pa

from headwater.pipelines.operators.patterns.stored.definitions import PATTERN_COLUMNS
from headwater.pipelines.operators.patterns.stored.stored_match_operator import StoredMatching
from headwater.pipelines.operators.patterns.stored.versioned_match import result_schema
from headwater.pipelines.operators.runtime.contract import SHARED_COUNTERS
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from support.pipelines.event_log import SECOND, at, seconds
from support.pipelines.operator_driver import Driver, Source
from support.pipelines.pattern_driver import INPUT

PATTERNS = ("patterns", 0)
END = {"_op": READ_TO_END, "_at": None}
HERE = {"_op": READ_TO_HERE, "_at": None}
FIELDS = (pa.field("id", pa.string()), *(pa.field(*column) for column in PATTERN_COLUMNS.items()))


def stored(id_, second, pattern, **definition):
    """The change by which a pattern is stored; `begins` is called "from" in the topic."""
    texts = {
        name: json.dumps(value) if isinstance(value, dict) else value
        for name, value in definition.items()
        if name != "begins"
    }
    begins = definition.get("begins")
    row = {"id": id_, "pattern": pattern, "from": begins, **texts}
    return {**row, "_op": "u", "_at": at(second)}


def dropped(id_, second):
    return {"id": id_, "_op": "d", "_at": at(second)}


class StoredMatcher:
    def __init__(self, directory, delay=0, *, late="drop", input_=INPUT, buckets=2):
        rows = pa.schema([*input_.items()])
        time = EventTime("time", delay * SECOND)
        operator = StoredMatching(
            output=result_schema([rows.field("name")], FIELDS[0]),
            key=("name",),
            rows=rows,
            pattern_key="id",
            patterns=FIELDS,
            time=time,
            lateness=Lateness(late, 0),
            is_stream=directory is not None,
        )
        events = Source(rows, ("name",), (*rows.names, "_op"), time)
        names = (*(column.name for column in FIELDS), "_op", "_at")
        changes = Source(pa.schema(FIELDS), (), names, EventTime("_at", 0), lambda row: True)
        self.driver = Driver(
            operator.with_topic("operator/m"), [events, changes], directory, buckets
        )

    def batch(self, rows, changes=(), end=END):
        given = [*changes, *([] if end is None else [dict(end)])]
        return brief(self.driver.batch(rows, {PATTERNS: given} if given else {}))

    def again(self):
        return brief(self.driver.again())

    def shared(self, name):
        """A counter of what all buckets have in common."""
        (found,) = {state.document[SHARED_COUNTERS][name] for state in self.driver.states.values()}
        return found


def brief(rows):
    """By pattern, in an order of their own; times in seconds."""
    found = [
        {
            "pattern": row["pattern_id"],
            "name": row["name"],
            "event_time": seconds(row["event_time"]),
            "over": row["timed_out"],
            **json.loads(row["measures"]),
        }
        for row in rows
    ]
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=str)))
