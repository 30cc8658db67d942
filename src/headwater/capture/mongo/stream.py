"""The change stream: from its events to transactions.

A multi-document transaction comes as consecutive events with one cluster time and the same lsid
and txnNumber; every other change is a transaction of its own. Nothing in an event shows that it is
the last of its transaction. That follows from what comes behind it: another event, a token with a
later time, or twice nothing at all: a replica set's member has then read its log to the end. (Once
is not enough: the driver answers so too when it has just taken up a broken connection again. And
mongos answers so while it waits for a shard, which shows nothing; there a later time has to come.)
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from bson import json_util
from bson.timestamp import Timestamp

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    LogPosition,
    PositionAdvanced,
    Row,
    SchemaChange,
    SourcePosition,
    Table,
)
from headwater.capture.mongo.documents import extended, extended_value
from headwater.capture.mongo.shape import text
from headwater.errors import PositionLost

OPERATIONS: Final = {"insert": "c", "update": "u", "replace": "u", "delete": "d"}
SKIPPED_EVENTS: Final = 1000  # so many of other collections, and the position is reported
_NO_SOURCE: Final[dict[str, Any]] = {}
# How a token begins: the type, and eight bytes of cluster time.
_TIMESTAMP: Final = re.compile("82[0-9A-Fa-f]{16}")


class Transactions:
    """Brings the events of one stream into the contract's order.

    `table_of` gives the table of a database's collection, or None if the capture does not name it;
    `looked_up` a document as it is now, for updates without a post-image (None: the server has
    looked already); `after` is where the stream goes on; `is_sharded` whether mongos answers.
    """

    def __init__(
        self,
        table_of: Callable[[str, str], Table | None],
        looked_up: Callable[[Table, Any], Mapping[str, Any] | None] | None,
        after: SourcePosition,
        *,
        is_sharded: bool = False,
    ) -> None:
        self._table_of = table_of
        self._is_sharded = is_sharded
        self._looked_up = looked_up
        self._fragments: dict[str, Any] | None = None
        self._skipped = 0
        self._idle = 0
        self._reported: Any = None  # the last token that a PositionAdvanced reported
        at = after.at
        # Which transaction the stream is in: its position, its Begin once that was sent, the
        # ordinal of its next change, and the first one that is to be sent (None: it is in the
        # topics).
        self._position: LogPosition | None = (
            at if at.get("txn") or after.changes is not None else None
        )
        self._begin: Begin | None = None
        self._ordinal = 1  # the token in a position is that of the change with ordinal 0
        self._sent_from = after.changes
        # With no change in the topics the stream begins at the time, so in front of the token.
        self._awaited: LogPosition | None = None
        if after.changes == 0:
            self._awaited, self._position = at, None

    @property
    def position(self) -> LogPosition | None:
        """Of the transaction that may have further events."""
        return self._position

    def take(self, event: dict[str, Any]) -> Iterator[Event]:
        """What an event adds."""
        if "splitEvent" in event or self._fragments is not None:
            whole = self._merged(event)
            if whole is None:
                return
            event = whole
        self._idle = 0
        token = json_token(event["_id"])
        time: Timestamp = event["clusterTime"]
        if self._awaited is not None:
            if [time.time, time.inc] > self._awaited["ts"]:
                raise PositionLost("the change at which the capture stands is not in the oplog")
            if token != self._awaited["token"]:
                return
            self._awaited = None
        transaction = transaction_id(event)
        position = self._position
        if position is not None and (
            position["ts"] != [time.time, time.inc] or position.get("txn") != transaction
        ):
            yield from self.end()
            position = None
        at = position or _position(token, time, transaction)
        operation = OPERATIONS.get(event["operationType"])
        if operation is None:
            yield from self._structure(event, at)
            return
        namespace = event["ns"]
        table = self._table_of(namespace["db"], namespace["coll"])
        if table is None:
            self._skipped += 1
            if position is None and self._skipped >= SKIPPED_EVENTS:
                self._skipped = 0
                yield PositionAdvanced(at if transaction is None else _position(token, time, None))
            return
        if position is None:
            self._position, self._begin, self._ordinal, self._sent_from = at, None, 0, 0
        if self._sent_from is not None:
            if self._begin is None:
                self._begin = _begin(at, event)
                yield self._begin
            if self._ordinal >= self._sent_from:
                yield self._change(event, operation, table)
        self._ordinal += 1
        if transaction is None:
            yield from self.end()

    def end(self) -> Iterator[Event]:
        """Nothing more belongs to the transaction that the stream is in."""
        position, self._position = self._position, None
        if position is None or self._sent_from is None:
            return
        if self._begin is None:  # all its changes are in the topics, but not that these are all
            yield _begin(position, {"clusterTime": Timestamp(*position["ts"])})
        yield Commit(self._ordinal)

    def idle(self, token: Mapping[str, Any] | None) -> Iterator[Event]:
        """The server had no event; everything in front of `token` was sent."""
        self._idle += 1
        time = time_of_token(token)
        position = self._position
        if position is not None:
            is_later = time is not None and list(time) > position["ts"]
            if not is_later and (self._idle < 2 or self._is_sharded):
                yield None
                return
            yield from self.end()
        if token is None or time is None or token == self._reported:
            yield None
            return
        self._reported = token
        yield PositionAdvanced({"token": json_token(token), "ts": list(time)})

    def _change(self, event: dict[str, Any], operation: str, table: Table) -> Change:
        key: Row = {"_id": extended_value(event["documentKey"]["_id"])}
        image = event.get("fullDocumentBeforeChange")
        before = None if operation == "c" else key if image is None else extended(image)
        after = extra = None
        if operation != "d":
            document = event.get("fullDocument")
            if event["operationType"] == "update":
                extra = {"updateDescription": extended(event["updateDescription"])}
                if document is None and self._looked_up is not None:
                    document = self._looked_up(table, event["documentKey"]["_id"])
            after = None if document is None else extended(document)
        return Change(table, operation, before, after, self._ordinal, _NO_SOURCE, extra)

    def _structure(self, event: dict[str, Any], at: LogPosition) -> Iterator[Event]:
        """Collections that were dropped or renamed. Of the others (indexes, sharding) there is
        no event; `invalidate` ends a stream, and the next begins behind it.
        """
        changes: list[Event] = []
        if event["operationType"] in {"drop", "rename"}:
            changes = list(self._schema_changes(event))
        if not changes:
            yield PositionAdvanced(at)
            return
        # In a transaction of their own, so that their records and the position are one.
        yield _begin(at, event)
        yield from changes
        yield Commit(0)

    def _schema_changes(self, event: dict[str, Any]) -> Iterator[SchemaChange]:
        namespace, target = event["ns"], event.get("to")
        ddl = f"{event['operationType']} {namespace['db']}.{namespace['coll']}"
        if target is not None:
            ddl += f" to {target['db']}.{target['coll']}"
        table = self._table_of(namespace["db"], namespace["coll"])
        if table is not None:
            yield SchemaChange(table.id, None, ddl)
        renamed = self._table_of(target["db"], target["coll"]) if target is not None else None
        if renamed is not None:  # what it held before is deleted, what it holds now is to be copied
            yield SchemaChange(renamed.id, None, ddl)
            yield SchemaChange(renamed.id, renamed, ddl)

    def _merged(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """An event of more than 16 MB comes in fragments, each with some of its fields."""
        split = event.pop("splitEvent", None)
        fields = self._fragments or {}
        self._fragments = fields | event  # the token is that of the last fragment
        if split is not None and split["fragment"] < split["of"]:
            return None
        whole, self._fragments = self._fragments, None
        return whole


def transaction_id(event: Mapping[str, Any]) -> str | None:
    """As Debezium writes it, for events of multi-document transactions."""
    lsid, number = event.get("lsid"), event.get("txnNumber")
    return None if lsid is None or number is None else f"{text(extended(lsid))}:{number}"


def json_token(token: Mapping[str, Any]) -> dict[str, Any]:
    """A resume token as JSON can hold it: mostly {"_data": "82…"} as it is."""
    if all(isinstance(value, str) for value in token.values()):
        return dict(token)
    options = json_util.CANONICAL_JSON_OPTIONS
    return {name: json_util.default(value, options) for name, value in token.items()}


def bson_token(token: Mapping[str, Any]) -> dict[str, Any]:
    options = json_util.CANONICAL_JSON_OPTIONS
    return {
        name: json_util.object_hook(value, options) if isinstance(value, dict) else value
        for name, value in token.items()
    }


def time_of_token(token: Mapping[str, Any] | None) -> tuple[int, int] | None:
    data = None if token is None else token.get("_data")
    if not isinstance(data, str) or _TIMESTAMP.match(data) is None:
        return None
    return int(data[2:10], 16), int(data[10:18], 16)


def _position(token: dict[str, Any], time: Timestamp, transaction: str | None) -> LogPosition:
    position: dict[str, Any] = {"token": token, "ts": [time.time, time.inc]}
    if transaction is not None:
        position["txn"] = transaction
    return position


def _begin(at: LogPosition, event: Mapping[str, Any]) -> Begin:
    seconds, ordinal = at["ts"]
    wall = event.get("wallTime")
    source: dict[str, Any] = {"ord": ordinal}
    if "txn" in at and event.get("lsid") is not None:
        source["lsid"] = text(extended(event["lsid"]))
        source["txnNumber"] = int(event["txnNumber"])
    if wall is not None:
        source["wallTime"] = int(wall)
    ts_ms = seconds * 1000 if wall is None else int(wall)
    return Begin(at, at.get("txn") or f"{seconds}:{ordinal}", ts_ms, source)
