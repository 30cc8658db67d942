"""A project whose pipeline has windows over rows with times, and what its stores must have."""

import orjson

from support.pipelines.project import Project
from support.sinks.topic_places import read_messages

ONE_WRITE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    at = hw.event_time("at", delay="10 seconds", future=None)
    windows = hw.tumbling(rows, at, "1 minute", by="name", late="side", name="tumbling-1")
    sums = windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    flow.write(sums, to="cache", table="sums", key=["name", "window_start"])
"""


class Clocked(Project):
    """Rows whose time is so many seconds after the start."""

    def __init__(self, directory, bootstrap, name, body, **settings):
        super().__init__(directory, bootstrap)
        self.name = name
        self.events = self.topic(f"{name}-events", 2)
        self.pipeline(name, body.format(topic=self.events), **settings)
        self.made = {0: [], 1: []}

    def at(self, partition, *seconds):
        for at_s in seconds:
            minute, second = divmod(at_s, 60)
            row = {
                "id": sum(map(len, self.made.values())),
                "name": f"n{at_s % 2}",
                "n": at_s,
                "at": f"2026-01-01T00:{minute:02}:{second:02}Z",
            }
            self.made[partition].append(row)
            value = orjson.dumps(row)
            self._producer.produce(self.events, value, partition=partition)
        self._producer.flush()

    def expected_late(self, allowed=0):
        """By the definition: the window ended (so many seconds before) at or before the partition's
        latest time, less 10 s, the row itself included.
        """
        late = []
        for partition, rows in self.made.items():
            latest = 0
            for offset, row in enumerate(rows):
                latest = max(latest, row["n"])
                if (row["n"] // 60 + 1) * 60 + allowed <= latest - 10:
                    late.append((partition, offset))
        return sorted(late)

    def expected_sums(self, allowed=0):
        late = self.expected_late(allowed)
        closed = min(max(row["n"] for row in rows) for rows in self.made.values()) - 10
        sums = {}
        for partition, rows in self.made.items():
            for offset, row in enumerate(rows):
                minute = row["n"] // 60
                if (partition, offset) not in late and (minute + 1) * 60 <= closed:
                    total, count = sums.get((row["name"], minute), (0, 0))
                    sums[row["name"], minute] = total + row["n"], count + 1
        return sums

    def sums_in(self, table):
        columns = "name, substr(window_start, 15, 2) + 0, total, rows"
        found = self.rows(f'SELECT {columns} FROM "{table}"')
        return {(name, minute): (total, count) for name, minute, total, count in found}

    def published(self):
        return [
            message
            for partition in (0, 1)
            for message in read_messages(self.bootstrap, f"{self.name}.late", partition)
        ]


def run_to_end(spark, project):
    with project.running(spark, project.name) as runner:
        project.wait_until_at_end(spark, project.events, project.name)
    return runner
