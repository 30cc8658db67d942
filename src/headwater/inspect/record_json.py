"""A record as one JSON object on a line: what `consume --json` writes and `produce --json` reads.

    {"topic": "orders", "partition": 0, "offset": 42, "timestamp": 1794736800000,
     "key": "7", "value": "...", "headers": [["source", "shop"]]}

Bytes that are not UTF-8 are written as {"base64": "…"}; null is null. So every record survives
the way through both. Reading is more liberal: headers may be an object, a value any JSON (an
object is written as its JSON text), and `topic` and `offset` say nothing about where it goes.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from headwater.errors import RequestRefused
from headwater.spelling import nearest

_FIELDS: Final = ("key", "value", "headers", "partition", "timestamp", "topic", "offset")


class Record(NamedTuple):
    """What a producer sends; None where the producer leaves the choice to librdkafka."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def parse_record(line: bytes, *, tombstone: bool = False) -> Record:
    """Raises RequestRefused that says what is wrong with the line."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(
            f"it is not JSON: {error.msg} at column {error.colno}",
            hint="without --json a line is a value",
        ) from error
    return record_of(fields, tombstone=tombstone)


def record_of(fields: Any, *, tombstone: bool = False) -> Record:
    """Of an object that was read from JSON. Raises RequestRefused."""
    if not isinstance(fields, dict):
        raise RequestRefused("it is no JSON object", hint='expected {"key": …, "value": …}')
    for name in fields:
        if name not in _FIELDS:
            meant = nearest(name, _FIELDS)
            raise RequestRefused(
                f"unknown field {name!r}",
                hint=f"did you mean {meant!r}?" if meant else f"fields: {', '.join(_FIELDS)}",
            )
    value = part_of("value", fields.get("value"))
    return Record(
        part_of("key", fields.get("key")),
        None if tombstone and not value else value,
        _headers(fields.get("headers")),
        _integer("partition", fields.get("partition")),
        _integer("timestamp", fields.get("timestamp")),
    )


def part_of(name: str, value: Any) -> bytes | None:
    """A key, value or header value out of JSON. Raises RequestRefused."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise RequestRefused(f"{name} is not base64: {error}") from error
    return orjson.dumps(value)


def _headers(headers: Any) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list):
        raise RequestRefused("headers are neither an object nor a list of pairs")
    read = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise RequestRefused(f"a header is no pair of name and value: {pair!r}")
        read.append((pair[0], part_of(f"header {pair[0]}", pair[1])))
    return read


def _integer(name: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise RequestRefused(f"{name} is no whole number from 0: {value!r}")
    return value


def text(data: bytes | None) -> Any:
    """A key, value or header value as it stands in JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def dump_record(message: Any) -> bytes:
    """One line, newline included."""
    kind, timestamp_ms = message.timestamp()
    return orjson.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": timestamp_ms if kind else None,
            "key": text(message.key()),
            "value": text(message.value()),
            "headers": [[name, text(value)] for name, value in message.headers() or ()],
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
