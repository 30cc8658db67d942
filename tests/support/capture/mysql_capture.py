"""A capture of one database, for tests: its statements, its source, and what the source sends."""

from itertools import islice
from typing import Any

from headwater.capture.contract import Change, Row, SourcePosition, Table
from headwater.capture.mysql import MySqlSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret
from support.capture.mariadb_server import MariaDbServer
from support.capture.source_contract import Reader, Transaction, flat


class ShopCapture:
    def __init__(self, server: MariaDbServer, database: str, **settings: Any) -> None:
        self.server = server
        self.database = database
        self.settings = CaptureSettings("shop", Secret(server.url(database)), **settings)
        self.source = MySqlSource(self.settings)
        self.reader: Reader | None = None

    def execute(self, *statements: str) -> Any:
        return self.server.execute(*statements, database=self.database)

    def begin(
        self, after: SourcePosition | None = None, stored: dict[str, Table] | None = None
    ) -> Reader:
        """Opens the source, now or where it was."""
        if self.reader is not None:
            self.reader.close()
        log_position = self.source.open(after, stored or {})
        self.reader = Reader(self.source, after or SourcePosition(log_position))
        return self.reader

    def changes(self, number: int) -> list[Change]:
        assert self.reader is not None
        return flat(self.reader.changes(number))

    def rows(self, number: int) -> list[Row | None]:
        return [change.after for change in self.changes(number)]

    def transactions(self, number: int) -> list[Transaction]:
        assert self.reader is not None
        return self.reader.until(lambda found: len(found) >= number)

    def table(self, name: str) -> Table:
        return next(table for table in self.source.tables() if table.name == name)

    def read_on(self, position: SourcePosition) -> None:
        """For errors that the server sends in the place of events."""
        for _ in islice(self.source.changes(position), 50):
            pass

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.source.close()
