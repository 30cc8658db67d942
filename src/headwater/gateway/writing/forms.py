"""From the body of a request to records, by its content type.

    application/json                          one record, whose value is the body
    text/plain, application/octet-stream      one record, whose value is the body, whatever it is
    application/vnd.headwater.records+json    {"records": [{"key", "value", "headers", …}, …]}
    application/x-ndjson                      one record for each line, whose value is the line
    application/vnd.headwater.records+ndjson  one record for each line: {"key", "value", …}
    text/csv                                  one record for each row, a JSON object of texts

A record with key, headers, partition and timestamp is what `headwater produce --json` reads. Where
the body has values only, the query has the rest: `key` (of one record), `key_field` (the field of
each value that is its key), `header`, `partition`, `timestamp`. JSON values are checked and stored
as they were sent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headwater.errors import HeadwaterError, RequestRefused
from headwater.gateway.answers import Refusal
from headwater.gateway.writing.csv_rows import BadRow, CsvRows
from headwater.inspect.record_json import Record, part_of, record_of

JSON: Final = "application/json"
RECORDS: Final = "application/vnd.headwater.records+json"
NDJSON: Final = ("application/x-ndjson", "application/jsonl", "application/ndjson")
RECORD_LINES: Final = "application/vnd.headwater.records+ndjson"
CSV: Final = "text/csv"
BYTES: Final = ("text/plain", "application/octet-stream")
WHOLE: Final = (JSON, RECORDS, *BYTES)
LINES: Final = (*NDJSON, RECORD_LINES, CSV)
_MAX_RECORDS: Final = 100_000


class BadRecord(HeadwaterError):
    """One line, or one record of a batch, that is none. `line` counts from 1."""

    def __init__(self, line: int, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint=hint)
        self.line = line


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the query says of all records."""

    key: bytes | None = None
    key_field: str | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None

    def of_value(self, value: bytes, document: Any) -> Record:
        """Raises RequestRefused if the value lacks its key."""
        key = self.key
        if self.key_field is not None:
            found = document.get(self.key_field) if isinstance(document, dict) else None
            if found is None:
                raise RequestRefused(f"it has no field {self.key_field}, which is the key")
            key = part_of("key", found)
        return Record(key, value, self.headers, self.partition, self.timestamp_ms)

    def completed(self, record: Record) -> Record:
        """A record that may have some of it itself."""
        return Record(
            self.key if record.key is None else record.key,
            record.value,
            (*self.headers, *record.headers),
            self.partition if record.partition is None else record.partition,
            self.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
        )


def content_type_of(header: str) -> str:
    """Raises Refusal if it is none that is taken."""
    found = header.partition(";")[0].strip().lower()
    if found not in (*WHOLE, *LINES):
        raise Refusal(
            415,
            f"the content type {found or '(none)'} is not taken"[:200],
            detail=f"taken are {', '.join((*WHOLE, *LINES))}",
            hint="`curl --json '{…}'`, or `curl -H 'Content-Type: application/x-ndjson' -T FILE`",
        )
    return found


def records_of_body(content_type: str, body: bytes, defaults: Defaults) -> list[Record]:
    """Of a body that was read as a whole. Raises BadRecord."""
    if content_type in BYTES:
        return [_taken(1, lambda: defaults.of_value(body, None))]
    if content_type == JSON:
        return [_taken(1, lambda: defaults.of_value(body, _loaded(body)))]
    document = _taken(1, lambda: _loaded(body))
    listed = document.get("records") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(document) != 1:
        raise BadRecord(1, 'it is not of the form {"records": [{"value": …}, …]}')
    if len(listed) > _MAX_RECORDS:
        raise BadRecord(_MAX_RECORDS + 1, f"a batch has at most {_MAX_RECORDS:,} records")
    return [
        _taken(number, lambda fields=fields: defaults.completed(record_of(fields)))  # type: ignore[misc]
        for number, fields in enumerate(listed, 1)
    ]


class LineForm:
    """Records of a body that comes line by line; line numbers count from 1."""

    def __init__(self, content_type: str, defaults: Defaults, max_line_bytes: int) -> None:
        self._defaults = defaults
        self._line = 0
        self._csv = CsvRows(max_line_bytes) if content_type == CSV else None
        self._read = {
            CSV: self._of_row, RECORD_LINES: self._of_record,
        }.get(content_type, self._of_value)  # fmt: skip

    @property
    def line(self) -> int:
        """The number of the line that the last record came from."""
        return self._line

    def records(self, lines: list[bytes]) -> Iterator[Record | BadRecord]:
        """In order; lines without anything are passed over."""
        for line in lines:
            self._line += 1
            try:
                record = self._read(line)
            except HeadwaterError as error:
                yield BadRecord(self._line, str(error), error.hint)
            except BadRow as error:
                yield BadRecord(self._line, str(error))
            else:
                if record is not None:
                    yield record

    def end(self) -> BadRecord | None:
        """What is wrong with the body as a whole."""
        if self._csv is not None and self._csv.is_open:
            return BadRecord(self._line, "the last row has a quote that is not closed")
        return None

    def _of_value(self, line: bytes) -> Record | None:
        line = line.removesuffix(b"\r")
        return self._defaults.of_value(line, _loaded(line)) if line.strip() else None

    def _of_record(self, line: bytes) -> Record | None:
        if not line.strip():
            return None
        return self._defaults.completed(record_of(_loaded(line)))

    def _of_row(self, line: bytes) -> Record | None:
        assert self._csv is not None
        row = self._csv.row(line)
        return None if row is None else self._defaults.of_value(orjson.dumps(row), row)


def _taken(number: int, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RequestRefused as error:
        raise BadRecord(number, str(error), error.hint) from None


def _loaded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestRefused(f"it is not JSON: {error.msg} at column {error.colno}") from None
