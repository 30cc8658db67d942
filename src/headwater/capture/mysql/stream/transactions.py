"""A transaction of the binlog, as far as it was read."""

from dataclasses import dataclass, field

from headwater.capture.contract import Begin, Change, Row, Table


@dataclass(slots=True)
class Transaction:
    begin: Begin
    gtid: str | None
    is_standalone: bool
    is_xa: bool
    skip: int = 0  # ordinals below are in the topics already
    is_whole: bool = False  # all of them are
    is_begun: bool = False  # by BEGIN: a statement in it is not all of it
    is_sent: bool = False
    ordinal: int = 0
    query: str | None = None
    touched: set[str] = field(default_factory=set)

    def changes(self, table: Table, op: str, decoded: list[Row], pos: int) -> list[Change]:
        """The changes of the rows of one event at `pos`, without those that are published."""
        first = self.ordinal
        if op == "c":
            changes = [
                Change(table, "c", None, row, first + number, {"pos": pos, "row": number})
                for number, row in enumerate(decoded)
            ]
        elif op == "d":
            changes = [
                Change(table, "d", row, None, first + number, {"pos": pos, "row": number})
                for number, row in enumerate(decoded)
            ]
        else:
            changes = [
                Change(table, "u", before, after, first + number, {"pos": pos, "row": number})
                for number, (before, after) in enumerate(
                    zip(decoded[::2], decoded[1::2], strict=True)
                )
            ]
        self.ordinal = first + len(changes)
        if self.query is not None:
            for change in changes:
                change.source["query"] = self.query
        return changes[self.skip - first :] if self.skip > first else changes
