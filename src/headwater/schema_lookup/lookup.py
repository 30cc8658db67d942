"""Schemas by the id before a value, remembered; and such values as JSON.

What does not exist, and a registry that does not answer, are remembered for some seconds, too, so
that a page of records that are no such values is not slow.
"""

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from headwater.errors import HeadwaterError, SchemaRefused
from headwater.schemas.schema import AVRO, PROTOBUF, Parsed, parse
from headwater.schemas.wire_format import MAGIC_AND_ID_BYTES, unframed

if TYPE_CHECKING:
    from headwater.schema_lookup.sources import SchemaSource

_MAX_TEXT_BYTES: Final = 8 << 20  # of schemas; what is parsed takes some ten times as much
_MAX_MISSING: Final = 1000
_MISSING_S: Final = 5.0
_MAX_ID: Final = (1 << 31) - 1


class Decoded(NamedTuple):
    schema_id: int
    type: str
    value: Any

    def json(self, option: int = 0) -> bytes:
        """Raises ValueError for what is nested too deep."""
        try:
            return orjson.dumps(self.value, default=_plain, option=option)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"it cannot be shown: {error}") from None


class SchemaLookup:
    """May be used by several threads."""

    def __init__(self, source: "SchemaSource") -> None:
        self.source = source
        self._lock = threading.Lock()
        self._parsed: OrderedDict[int, Parsed] = OrderedDict()
        self._text_bytes = 0
        self._missing: OrderedDict[int, tuple[float, HeadwaterError]] = OrderedDict()
        self._failed: tuple[float, HeadwaterError] | None = None

    def close(self) -> None:
        self.source.close()

    def parsed(self, schema_id: int) -> Parsed:
        """Raises HeadwaterError, soon."""
        with self._lock:
            found = self._parsed.get(schema_id)
            if found is not None:
                self._parsed.move_to_end(schema_id)
                return found
            for remembered in (self._missing.get(schema_id), self._failed):
                if remembered is not None and remembered[0] > time.monotonic():
                    raise remembered[1]
            try:
                found = parse(self.source.of_id(schema_id), self.source.referenced)
            except SchemaRefused as error:
                self._missing[schema_id] = (time.monotonic() + _MISSING_S, error)
                while len(self._missing) > _MAX_MISSING:
                    self._missing.popitem(last=False)
                raise
            except HeadwaterError as error:
                self._failed = (time.monotonic() + _MISSING_S, error)
                raise
            self._parsed[schema_id] = found
            self._text_bytes += len(found.text)
            while self._text_bytes > _MAX_TEXT_BYTES and len(self._parsed) > 1:
                _, oldest = self._parsed.popitem(last=False)
                self._text_bytes -= len(oldest.text)
            return found

    def decode(self, data: bytes) -> Decoded:
        """A value in Confluent's wire format. Raises ValueError for what is none, HeadwaterError
        if its schema cannot be had.
        """
        schema_id, at = unframed(data)
        if not 0 < schema_id <= _MAX_ID:
            raise ValueError(f"{schema_id} is no id of a schema")
        parsed: Any = self.parsed(schema_id)
        return Decoded(schema_id, parsed.type, read_value(parsed, data, at))


def looks_framed(data: bytes | None) -> bool:
    """Whether it may be a value in Confluent's wire format: nothing is looked up."""
    return data is not None and len(data) > MAGIC_AND_ID_BYTES and data[0] == 0


def read_value(parsed: Any, data: bytes, at: int) -> Any:
    """The value behind the id, by its schema. Raises ValueError."""
    if parsed.type == AVRO:
        from headwater.schemas.avro.values import Unreadable, read_value_of

        try:
            return read_value_of(data, at, parsed.schema, parsed.named)
        except Unreadable as error:
            raise ValueError(f"no Avro of its schema: {error}") from None
    if parsed.type == PROTOBUF:
        from headwater.schemas.protobuf.messages import read_message

        return read_message(parsed, data, at)
    try:
        return orjson.loads(data[at:])
    except orjson.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return str(value)
