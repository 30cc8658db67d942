"""From records to rows.

A plain value is the row of its key, and a tombstone removes it. Of a change event (Debezium's
envelope, with or without a schema beside it) the row is what is after the change: a delete removes
the row, a truncate removes all, a message is no row.
"""

from enum import Enum, auto
from typing import Any, Final, NamedTuple

import orjson

from headwater.inspect.decoding.forms import decoded
from headwater.protocol.records import Record
from headwater.schema_lookup.lookup import SchemaLookup

_UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE_BYTES: Final = b'"__debezium_unavailable_value"'
_OVERHEAD_BYTES: Final = 350  # of the objects around the bytes, and the entry of the dictionary
_ROWS: Final = ("c", "u", "r")


class Row:
    """One row as it is now. Never changed: a newer one replaces it."""

    __slots__ = ("json", "key", "offset", "partition")

    def __init__(self, key: bytes, json: bytes, partition: int, offset: int) -> None:
        self.key = key
        self.json = json
        self.partition = partition
        self.offset = offset

    @property
    def size_bytes(self) -> int:
        return len(self.key) + len(self.json) + _OVERHEAD_BYTES

    def document(self) -> Any:
        return orjson.loads(self.json)


class Kind(Enum):
    PUT = auto()
    REMOVE = auto()
    CLEAR = auto()  # all rows
    NO_ROW = auto()


class Step(NamedTuple):
    """What one record does to a table."""

    kind: Kind
    partition: int
    offset: int
    key: bytes = b""
    json: bytes = b""


def step_of(
    partition: int,
    record: Record,
    avro_schema: str | None = None,
    lookup: SchemaLookup | None = None,
) -> Step:
    """Never raises: a value that is no JSON is a text, or base64."""
    offset, key = record.offset, record.key
    if record.value is None:
        if key is None:
            return Step(Kind.NO_ROW, partition, offset)
        return Step(Kind.REMOVE, partition, offset, key)
    document, json = decoded(record.value, avro_schema, lookup)
    if isinstance(document, dict):
        if document.keys() == {"schema", "payload"}:
            document, json = document["payload"], b""
            if document is None and key is not None:
                return Step(Kind.REMOVE, partition, offset, key)
        if is_change_event(document):
            return _changed(partition, offset, key, document)
    if key is None:
        return Step(Kind.NO_ROW, partition, offset)
    return Step(Kind.PUT, partition, offset, key, json or orjson.dumps(document))


def is_change_event(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("op"), str)
        and not {"before", "after"}.isdisjoint(document)
    )


def _changed(partition: int, offset: int, key: bytes | None, event: dict[str, Any]) -> Step:
    operation, after = event["op"], event.get("after")
    if operation == "t":
        return Step(Kind.CLEAR, partition, offset)
    if key is None or (operation not in _ROWS and operation != "d"):
        return Step(Kind.NO_ROW, partition, offset)
    if operation == "d" or after is None:
        return Step(Kind.REMOVE, partition, offset, key)
    if isinstance(after, str):  # a document of MongoDB
        return Step(Kind.PUT, partition, offset, key, decoded(after.encode())[1])
    return Step(Kind.PUT, partition, offset, key, orjson.dumps(after))


def completed(json: bytes, before: Row | None) -> bytes:
    """Values that the database's log has left out, because they had not changed, are those that
    the row had before.
    """
    if _UNAVAILABLE_BYTES not in json or before is None:
        return json
    row, old = orjson.loads(json), before.document()
    if not isinstance(row, dict) or not isinstance(old, dict):
        return json
    return orjson.dumps(
        {
            name: old.get(name, value) if value == _UNAVAILABLE else value
            for name, value in row.items()
        }
    )
