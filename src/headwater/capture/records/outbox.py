"""The outbox: a table whose inserted rows are events of an application's transactions.

A row goes to `outbox.event.<aggregatetype>`, with `aggregateid` as key and `payload` as value, all
three as they are (a JSON text unchanged, bytes as bytes): what Debezium's outbox event router does
with its defaults and plain converters. The headers have the event's id, its type (`eventType`) and
every further column under its own name. Rows may be deleted at any time, even in the transaction
that wrote them; an update is no event and is ignored.

A collection of documents is an outbox in the same way: its _id is the event's id, and an ObjectId
is its hexadecimal digits.
"""

import logging
import re
from base64 import b64decode
from typing import Any, Final

import orjson

from headwater.capture.contract import Row, Table
from headwater.capture.records.envelope import Headers, Shaped
from headwater.errors import TableRefused

_COLUMNS: Final = ("id", "aggregatetype", "aggregateid", "type", "payload")
TOPICS: Final = "outbox.event."
EVENT_TABLE: Final = ".headwater_events"  # of an event store, behind the name of its schema
_TOPIC: Final = re.compile(r"outbox\.event\.[a-zA-Z0-9._-]{1,236}")  # 249 characters in all

logger = logging.getLogger(__name__)


class Outbox:
    def __init__(self, table: Table) -> None:
        """Raises TableRefused if the table lacks a column that an outbox has."""
        columns = {column.name: column for column in table.columns}
        missing = [name for name in _COLUMNS if name not in columns]
        if missing and not table.documents:
            raise TableRefused(
                f"{table.id} is no outbox: it has no column {missing[0]}",
                detail="its columns are " + ", ".join(columns),
                hint="an outbox has the columns " + ", ".join(_COLUMNS),
            )
        self._table = table
        self._binary = {name for name, c in columns.items() if c.connect.get("type") == "bytes"}
        self._extra = [name for name in columns if name not in _COLUMNS and not table.documents]
        self._has_warned = False

    def shape(self, op: str, row: Row | None) -> list[Shaped]:
        """The event of an inserted (or found) row; nothing for all other changes. Raises
        TableRefused for a row that can be no event.
        """
        if op == "u" and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: a row was updated; an outbox's rows are events, updates are ignored",
                self._table.id,
            )
        if op not in {"c", "r"} or row is None:
            return []
        extra = self._extra
        if self._table.documents:
            row = _columns_of(row)
            extra = [name for name in row if name not in _COLUMNS]
        topic = TOPICS + self._text(row, "aggregatetype")
        if _TOPIC.fullmatch(topic) is None:
            raise self._malformed(row, "aggregatetype", "is no name for a topic")
        headers: Headers = (
            ("id", self._text(row, "id").encode()),
            ("eventType", self._bytes(row, "type")),
            *((name, self._bytes(row, name)) for name in extra),
        )
        key = self._text(row, "aggregateid").encode()
        return [(topic, key, self._bytes(row, "payload"), headers)]

    def _text(self, row: Row, column: str) -> str:
        value = row[column]
        if value is None:
            raise self._malformed(row, column, "is null")
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    def _bytes(self, row: Row, column: str) -> bytes | None:
        value: Any = row[column]
        if value is None:
            return None
        if not isinstance(value, str):
            return orjson.dumps(value)
        return b64decode(value) if column in self._binary else value.encode()

    def _malformed(self, row: Row, column: str, why: str) -> TableRefused:
        return TableRefused(
            f"a row of the outbox {self._table.id} is no event: {column} {why}",
            detail=f"id {row['id']}, {column} {row[column]!r}",
            hint="fix or delete the row, then take the table up again: "
            f"headwater capture snapshot NAME --table {self._table.id}",
        )


def _columns_of(document: Row) -> Row:
    """Fields that a document lacks are null."""
    from headwater.capture.mongo.documents import relaxed

    fields = {
        "id" if name == "_id" else name: value["$oid"]
        if isinstance(value, dict) and value.keys() == {"$oid"}
        else relaxed(value)
        for name, value in document.items()
    }
    return dict.fromkeys(_COLUMNS) | fields
