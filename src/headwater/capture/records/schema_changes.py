"""Reader of the schema topic: the last schema changes that a capture has published."""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import RequestRefused
from headwater.settings import ClientSettings

_PATIENCE_S: Final = 10.0
_OFFSETS_PER_CHANGE: Final = 4  # a transaction's marker has an offset, too


def read_changes(
    bootstrap: str, login: ClientSettings, capture: str, most: int = 20
) -> list[dict[str, Any]]:
    """The newest first: when, which table, what kind, the statement if it was logged, and the
    columns since then. [] if the capture has written none.
    """
    topic = f"{capture}.schema"
    with Fetcher(bootstrap, login, patience_s=_PATIENCE_S) as fetcher:
        try:
            partition = (topic, 0)
            end = fetcher.offsets([partition], LATEST)[partition]
            first = fetcher.offsets([partition], EARLIEST)[partition]
        except RequestRefused:
            return []  # no topic yet, or none of ours
        start = max(first, end - most * _OFFSETS_PER_CHANGE)
        found = [
            change
            for record in fetcher.records(topic, 0, start, end)
            for change in _changes(record.value)
        ]
    return found[::-1][:most]


def _changes(value: bytes | None) -> Iterator[dict[str, Any]]:
    try:
        record = orjson.loads(value or b"")
        record = record.get("payload", record)  # with its schema beside it, if one is asked for
        for change in record["tableChanges"]:
            table = change["table"]
            yield {
                "at_ms": record["ts_ms"],
                "table": change["id"].replace('"', ""),
                "type": change["type"].lower(),
                "ddl": record.get("ddl"),
                "key": table["primaryKeyColumnNames"] if table else [],
                "columns": [
                    {
                        "name": one["name"],
                        "type": one["typeExpression"],
                        "optional": one["optional"],
                    }
                    for one in (table["columns"] if table else ())
                ],
            }
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # not written by a capture
