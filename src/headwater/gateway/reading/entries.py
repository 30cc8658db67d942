"""A record as it goes to clients: JSON on one line, encoded once for all of them."""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from headwater.gateway.reading.schemas import Schemas
from headwater.inspect.decoding.forms import decoded
from headwater.inspect.record_json import text
from headwater.protocol.records import Record

AUTO, NONE = "auto", "none"  # how values are decoded
_OVERHEAD_BYTES: Final = 300  # of the objects around the bytes


class Entry:
    """One record, and the position of a client that has got it."""

    __slots__ = (
        "_record", "_schemas", "_topic", "id", "json", "offset", "partition", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: int, record: Record, identity: bytes, schemas: Schemas
    ) -> None:
        self._topic = topic
        self._record = record
        self._schemas = schemas
        self.partition = partition
        self.offset = record.offset
        self.id = identity
        self.json = self._encoded(decoded(record.value, *schemas)[1])
        self.size_bytes = _size_bytes(record) + len(self.json) + len(identity) + _OVERHEAD_BYTES

    @property
    def record(self) -> Record:
        return self._record

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return self._record.headers

    def document(self) -> Any:
        """The value, decoded."""
        return decoded(self._record.value, *self._schemas)[0]

    def as_json(self, mode: str) -> bytes:
        """NONE: the value is a text or {"base64": …}, exactly as the record has it."""
        if mode == AUTO:
            return self.json
        return self._encoded(orjson.dumps(text(self._record.value)))

    def _encoded(self, value: bytes) -> bytes:
        record = self._record
        return orjson.dumps(
            {
                "topic": self._topic,
                "partition": self.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
                "key": text(record.key),
                "value": orjson.Fragment(value),
                "headers": [[name, text(content)] for name, content in record.headers],
            }
        )


def _size_bytes(record: Record) -> int:
    headers = sum(len(name) + len(content or b"") for name, content in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
