"""A client of live queries that believes nothing: it checks each event against what it has."""

import json
import time

from support.gateway.events import events


class LiveClient:
    """`table` is what it has, `seen` the positions and tables after each event with an id."""

    def __init__(self):
        self.table = {}
        self.mark = ""
        self.seen = []
        self.names = []

    def take(self, event):
        self.names.append(event.name)
        data = json.loads(event.data)
        match event.name:
            case "reset":
                self.table, self.mark = {}, ""
                return
            case "snapshot":
                assert data["key"] not in self.table
                self.table[data["key"]] = data["row"]
                return
            case "added":
                assert data["key"] not in self.table
                self.table[data["key"]] = data["row"]
            case "changed" if "merged" in data:
                self.table[data["key"]] = data["row"]
                return
            case "changed":
                assert self.table[data["key"]] != data["row"]
                self.table[data["key"]] = data["row"]
            case "removed" if "merged" in data:
                self.table.pop(data["key"], None)
                return
            case "removed":
                del self.table[data["key"]]
            case "ready":
                pass
            case _:
                raise AssertionError(event)
        assert event.id
        assert event.name == "ready" or event.id != self.mark
        self.mark = event.id
        self.seen.append((positions(event.id), dict(self.table)))

    def read(self, client, path, until, *, limit_s=60.0, stop_after=None):
        """Reads until `until(self)`, or so many events; then the connection is cut."""
        headers = {"Last-Event-ID": self.mark} if self.mark else {}
        ends_s = time.monotonic() + limit_s
        with client.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            for count, event in enumerate(events(answer.iter_lines()), start=1):
                self.take(event)
                if until(self) or count == stop_after:
                    return
                assert time.monotonic() < ends_s
        raise AssertionError("the stream has ended")


def positions(mark):
    """The next offset of each partition."""
    pairs = (pair.split(":") for pair in mark.split(".", 2)[2].split(","))
    return {int(partition): int(offset) for partition, offset in pairs}


def has_reached(found, ends):
    return all(found[partition] >= offset for partition, offset in ends.items())
