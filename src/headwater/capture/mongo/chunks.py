"""Chunks of collections for snapshots, read in the order of their _id.

**Which transactions a chunk shows.** From MongoDB 5.0 a chunk is one read with read concern
"snapshot": the server answers with the cluster time T at which it was made, and it shows exactly
what was committed up to T. Older servers have only reads of what a majority has, which may see
more while they run. There the time is asked for before (low) and with the answer (high). What was
committed up to `low` is in the rows; what came up to `high` may or may not be, so it counts as
not contained, and the chunk is not passed before the stream has come to `high`: all keys that were
touched between are then tracked, and left out.

**Mixed _ids.** MongoDB compares values of one type only: {$gt: 5} finds no text. Where no value of
the same type is left, the read goes on with the types that sort behind it.
"""

from base64 import b64decode, b64encode
from math import isnan
from typing import Any, Final

import bson
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pymongo.database import Database

from headwater.capture.contract import Begin, Chunk, LogPosition, Row, Table
from headwater.capture.mongo.documents import CODEC, extended

# As MongoDB sorts them; a document's _id is neither an array nor a regular expression.
_TYPES: Final = (
    "minKey", "null", "number", "string", "object", "binData", "objectId", "bool", "date",
    "timestamp", "javascript", "javascriptWithScope", "maxKey",
)  # fmt: skip
_TYPE_OF: Final[dict[type, str]] = {
    MinKey: "minKey", type(None): "null", int: "number", Int64: "number", float: "number",
    Decimal128: "number", str: "string", dict: "object", DBRef: "object", bytes: "binData",
    Binary: "binData", ObjectId: "objectId", bool: "bool", DatetimeMS: "date",
    Timestamp: "timestamp", Code: "javascript", MaxKey: "maxKey",
}  # fmt: skip

Time = tuple[int, int]  # a cluster time: seconds, ordinal within the second


class MongoChunk(Chunk):
    def __init__(
        self, table: Table, rows: list[Row], after: str | None, low: Time, high: Time
    ) -> None:
        self.table = table
        self.rows = rows
        self.after = after
        self._low = low
        self._high = high

    def contains(self, transaction: Begin) -> bool:
        return time_of(transaction.at) <= self._low

    def is_passed(self, position: LogPosition) -> bool:
        return time_of(position) >= self._high


def time_of(position: LogPosition) -> Time:
    seconds, ordinal = position["ts"]
    return seconds, ordinal


def read_chunk(
    database: Database[dict[str, Any]],
    table: Table,
    after: str | None,
    limit_rows: int,
    *,
    has_snapshots: bool,
) -> MongoChunk:
    """One answer of the server, so at most 16 MB; no cursor stays open."""
    find = {
        "find": table.name,
        "sort": {"_id": 1},
        "limit": limit_rows,
        "batchSize": limit_rows,
        "singleBatch": True,
    }
    filters = _behind(after)
    if has_snapshots:
        concern: dict[str, Any] = {"level": "snapshot"}
        low = None
    else:
        concern = {"level": "majority"}
        low = _time(_run(database, find | {"limit": 1, "projection": {"_id": 1}}, concern))
    for condition in filters:
        answer = _run(database, find | {"filter": condition}, concern)
        documents = answer["cursor"]["firstBatch"]
        if has_snapshots:
            concern["atClusterTime"] = answer["cursor"]["atClusterTime"]
        if documents:
            break
    high = _time(answer) if low is not None else _seconds_and_ordinal(concern["atClusterTime"])
    rows = [extended(document) for document in documents]
    # The limit in bytes may have cut an answer short, so only an empty one marks the end.
    last = _pack(documents[-1]["_id"]) if documents else None
    return MongoChunk(table, rows, last, high if low is None else low, high)


def _run(
    database: Database[dict[str, Any]], command: dict[str, Any], concern: dict[str, Any]
) -> dict[str, Any]:
    return database.command(
        command | {"readConcern": concern},
        codec_options=CODEC,
        read_preference=database.read_preference,
    )


def _behind(after: str | None) -> list[dict[str, Any]]:
    """Filters that, one after the other, find all documents behind this one."""
    if after is None:
        return [{}]
    value = bson.decode(b64decode(after), codec_options=CODEC)["_id"]
    behind: dict[str, Any] = {"$gt": value}
    if isinstance(value, float | Decimal128) and _is_nan(value):  # the first of all numbers
        behind = {"$gte": float("-inf")}
    kind = _TYPE_OF[type(value)]
    if isinstance(value, Code) and value.scope is not None:
        kind = "javascriptWithScope"
    later = list(_TYPES[_TYPES.index(kind) + 1 :])
    return [{"_id": behind}, {"_id": {"$type": later}}] if later else [{"_id": behind}]


def _is_nan(value: float | Decimal128) -> bool:
    return isnan(value) if isinstance(value, float) else value.to_decimal().is_nan()


def _pack(value: Any) -> str:
    """With its BSON type, which decides what is behind it."""
    return b64encode(bson.encode({"_id": value})).decode()


def _time(answer: dict[str, Any]) -> Time:
    return _seconds_and_ordinal(answer["operationTime"])


def _seconds_and_ordinal(timestamp: Timestamp) -> Time:
    return timestamp.time, timestamp.inc
