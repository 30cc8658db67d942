"""A reader of server-sent events, as browsers read them."""

import json
from typing import NamedTuple


class Event(NamedTuple):
    name: str
    id: str
    data: str

    @property
    def json(self):
        return json.loads(self.data)


def events(lines):
    """The events of a stream's lines; those without data only change the id."""
    name, data, last_id = "message", [], ""
    for line in lines:
        if not line:
            if data:
                yield Event(name, last_id, "\n".join(data))
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            last_id = value
