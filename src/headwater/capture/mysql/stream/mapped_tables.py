"""Tables that the binlog has mapped: cached by table map, with decoders of their rows."""

from dataclasses import dataclass, field
from typing import Any, Final

from headwater.capture.contract import LogPosition, Row, Table
from headwater.capture.mysql.binlog import events as binlog
from headwater.capture.mysql.binlog import table_map
from headwater.capture.mysql.binlog.row_decoder import RowCode
from headwater.capture.mysql.binlog.table_map import TableMap
from headwater.capture.mysql.columns import ColumnDef
from headwater.capture.mysql.stream import failures
from headwater.capture.mysql.stream.schema_history import SchemaHistory
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, HeadwaterError, TableRefused

_CACHED_MAPS: Final = 2000
_CACHED_IMAGES: Final = 200  # bitmaps of a table with binlog_row_image=MINIMAL


@dataclass(slots=True)
class MappedTable:
    """A table map, and the captured table that it is about."""

    id: str
    map: TableMap | None  # None: of a layout that cannot even be counted
    table: Table | None = None  # None: its rows are only counted
    columns: tuple[ColumnDef, ...] | None = None
    failure: HeadwaterError | None = None
    decoders: dict[Any, Any] = field(default_factory=dict)


class MappedTables:
    """The table maps of the transaction in progress, by number; and a cache of them by content."""

    def __init__(self, settings: CaptureSettings, schemas: SchemaHistory) -> None:
        self._settings = settings
        self._schemas = schemas
        self._by_number: dict[int, MappedTable] = {}
        self._by_body: dict[bytes, MappedTable] = {}

    def add(self, number: int, body: bytes, position: LogPosition) -> MappedTable:
        """A table map in the transaction at `position`: rows refer to it by number."""
        mapped = self._by_body.get(body)
        if mapped is None:
            mapped = self._mapped(body, position)
            if len(self._by_body) >= _CACHED_MAPS:
                self._by_body.clear()
            self._by_body[body] = mapped
        self._by_number[number] = mapped
        return mapped

    def get(self, number: int) -> MappedTable | None:
        return self._by_number.get(number)

    def begin(self) -> None:
        """Numbers are valid within one transaction."""
        self._by_number.clear()

    def forget(self, table_id: str) -> None:
        """The next map of this table is resolved again."""
        for body in [body for body, mapped in self._by_body.items() if mapped.id == table_id]:
            del self._by_body[body]
        self._by_number = {
            n: mapped for n, mapped in self._by_number.items() if mapped.id != table_id
        }

    def decode(self, mapped: MappedTable, rows: binlog.Rows) -> list[Row]:
        """The rows of an event; of an update the old and the new row by turns."""
        key = (rows.op, rows.present, rows.present_after)
        decoder = mapped.decoders.get(key)
        if decoder is None:
            assert mapped.map is not None
            code = RowCode(mapped.map, mapped.columns, self._settings, self._schemas.charsets)
            if rows.op == "u":
                decoder = code.updates(rows.present, rows.present_after)
            else:
                decoder = code.created(rows.present) if rows.op == "c" else code.rows(rows.present)
            _cache(mapped, key, decoder)
        decoded: list[Row] = decoder(rows.data, rows.at)
        return decoded

    def count(self, mapped: MappedTable, rows: binlog.Rows) -> int:
        """How many changes an event has."""
        if mapped.map is None:  # each time the same number, which is all that is needed
            return 1
        key = (rows.op, rows.present, rows.present_after, "count")
        counter = mapped.decoders.get(key)
        if counter is None:
            code = RowCode(mapped.map, None, self._settings, None)
            images = (rows.present, rows.present_after) if rows.op == "u" else (rows.present,)
            counter = code.count(*images)
            _cache(mapped, key, counter)
        number: int = counter(rows.data, rows.at)
        return number

    def _mapped(self, body: bytes, position: LogPosition) -> MappedTable:
        try:
            found = table_map.parse(body, 0)
        except table_map.UnknownType as error:
            mapped = MappedTable(error.table_id, None)
            if self._schemas.is_chosen(error.table_id):
                mapped.failure = failures.unknown_type(error)
            return mapped
        mapped = MappedTable(found.id, found)
        if self._schemas.is_chosen(found.id):
            try:
                resolved = self._schemas.of_map(found, position)
                if resolved is not None:
                    mapped.table, mapped.columns = resolved
            except CaptureError as error:
                # Of other kinds (unreachable, refused) it is the whole capture that fails.
                if type(error) not in (CaptureError, TableRefused):
                    raise
                mapped.failure = error
        return mapped


def _cache(mapped: MappedTable, key: Any, decoder: Any) -> None:
    if len(mapped.decoders) >= _CACHED_IMAGES:
        mapped.decoders.clear()
    mapped.decoders[key] = decoder
