"""The events of a live query, as they are sent.

reset      the client forgets what it has; a snapshot follows. It has an empty id: a client that
           is interrupted before `ready` has nothing to go on from
snapshot   one row
ready      the client has the table as it was at this id
added, changed, removed    one row; `merged` if several changes of it became one
error      why the stream ends
"""

import orjson

from headwater.errors import HeadwaterError
from headwater.gateway.answers import error_fields
from headwater.inspect.record_json import text
from headwater.web import live

_MERGED = b',"merged":true'


def row_data(key: bytes, row: bytes | None, *, is_merged: bool = False) -> bytes:
    about = orjson.dumps({"key": text(key)})[:-1] + (_MERGED if is_merged else b"")
    return about + b"}" if row is None else about + b',"row":' + row + b"}"


def event(name: str, data: bytes, mark: str = "") -> bytes:
    return live.event(name, orjson.Fragment(data), identity=mark)


def reset(reason: str) -> bytes:
    return b"event: reset\nid:\ndata: " + orjson.dumps({"reason": reason}) + b"\n\n"


def ready(without_key: int, mark: str) -> bytes:
    """Records without a key are no rows; that there were some is said."""
    about = {"records_without_key": without_key} if without_key else {}
    return live.event("ready", about, identity=mark)


def heartbeat(mark: str) -> bytes:
    """So that proxies do not take silence for the end; and the id is never old."""
    return b": still here\nid: " + mark.encode() + b"\n\n"


def failure(error: HeadwaterError) -> bytes:
    return live.event("error", error_fields(error))
