"""Reads that a store and a transaction have in common."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from headwater.errors import EventRefused
from headwater.events import appending
from headwater.events.contract import Appended, Query, RecordedEvent, Selection
from headwater.events.databases.session import PageStatement, Row
from headwater.events.event_types import EventTypes
from headwater.events.history import position_at
from headwater.events.input_checks import check_stream, query_of
from headwater.events.selecting import read_pages


class Reads:
    """Of a store each page sees what is committed; of a transaction also what it has written."""

    types: EventTypes | None

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """A statement of ours, with `?` for values in either database."""
        raise NotImplementedError

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        """As that of a session."""
        raise NotImplementedError

    def read(
        self,
        *,
        stream: str | None = None,
        category: str | None = None,
        types: Sequence[str] = (),
        tags: Sequence[str] = (),
        query: Query | None = None,
        from_position: int = 1,
        until_position: int | None = None,
        from_version: int = 1,
        until_version: int | None = None,
        until: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> Iterator[RecordedEvent]:
        """The events of a stream, of a category, or all; of these `types` that have all of these
        `tags` (or that match `query`). Bounds are inclusive; `backwards` begins at the upper one.
        """
        query = query_of(query, types, tags)
        if stream is not None:
            check_stream(stream)
        elif from_version != 1 or until_version is not None:
            raise EventRefused("versions are of a stream; a read of several has positions")
        if until is not None:
            last = position_at(self.run, until)
            until_position = last if until_position is None else min(last, until_position)
        selection = Selection(
            stream, category, query, from_position, until_position, from_version, until_version,
            backwards, limit,
        )  # fmt: skip
        return read_pages(self.run_page, selection, self.read_types)

    @property
    def read_types(self) -> EventTypes | None:
        """What events that were read are decoded by."""
        return self.decoding(self.types)

    def decoding(self, types: EventTypes | None) -> EventTypes | None:
        """The types as this store decodes by them: with personal fields decrypted, if it may."""
        return types

    def head(self) -> int:
        """The position of the last event; 0 if there is none."""
        return self.run("SELECT max(position) FROM headwater_events")[0][0] or 0

    def version(self, stream: str) -> int:
        """Of a stream; 0 if there is none."""
        rows = self.run(
            "SELECT max(version) FROM headwater_events WHERE aggregateid = ?",
            (check_stream(stream),),
        )
        return rows[0][0] or 0

    def result_of(self, command_id: str) -> Appended | None:
        """What the command with this id has appended; None if it was not handled."""
        return appending.result_of_command(self.run, command_id)

    def position_at(self, at: datetime) -> int:
        """The position of the last event that was appended at or before this time; 0: none."""
        return position_at(self.run, at)
