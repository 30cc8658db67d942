"""The table of positions of the SQL stores, and the errors that they share."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Fenced, RowRefused, StoreRefused
from headwater.sinks.contract import Position, Target, Version, fields_from_text, name_of
from headwater.sinks.rows.row_validation import shown

# One row for each version of a target: owner, target, version, is_live, epoch, position, fields.
POSITIONS: Final = "__headwater_positions"


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A row of the table of positions: one version of a target."""

    version: int
    is_live: bool
    epoch: int  # incremented by every new writer, which fences those before it
    position: Position | None
    fields: pa.Schema

    @classmethod
    def from_row(
        cls, version: int, is_live: int, epoch: int, position: str | None, fields: str
    ) -> "StoredVersion":
        return cls(
            version,
            bool(is_live),
            epoch,
            Position.from_json(position) if position else None,
            fields_from_text(fields),
        )

    def table(self, target: Target) -> str:
        return name_of(target, self.version, is_live=self.is_live)

    def described(self) -> Version:
        return Version(self.version, self.is_live, self.position, self.fields)


def first_epoch() -> int:
    """Of a new version. After a drop the same number may be created again: a writer of the dropped
    one must not find its own epoch there.
    """
    return time.time_ns() // 1000


def quoted(name: str, mark: str = '"') -> str:
    return mark + name.replace(mark, mark + mark) + mark


def names(columns: Iterable[str], mark: str = '"') -> str:
    return ", ".join(quoted(column, mark) for column in columns)


def without(
    rows: pa.Table,
    is_bad: pa.ChunkedArray,
    column: str,
    what: str,
    refused: list[RowRefused] | None,
) -> pa.Table:
    """The rows that are not bad; the others are added to `refused`, or the first one is raised."""
    is_bad = pc.fill_null(is_bad, fill_value=False)
    if not pc.any(is_bad).as_py():
        return rows
    errors = [refusal(row, column, what) for row in shown(rows.filter(is_bad))]
    if refused is None:
        raise errors[0]
    refused += errors
    return rows.filter(pc.invert(is_bad))


def refusal(row: dict[str, Any], column: str, what: str, detail: str = "") -> RowRefused:
    return RowRefused(
        f"{column}: {what}" if column else what, row=row, column=column, detail=detail
    )


def check_names(fields: pa.Schema) -> None:
    """For databases with column names that ignore case."""
    seen: dict[str, str] = {}
    for name in fields.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise StoreRefused(
                f"columns {other} and {name} differ in case only",
                detail="to this database they have the same name",
                hint="rename one of them in the pipeline",
            )


def check_key(table: str, found: Sequence[str], target: Target) -> None:
    if tuple(found) != target.key:
        raise StoreRefused(
            f"table {table} has another key",
            detail=f"it has {', '.join(found) or 'none'}, the pipeline"
            f" {', '.join(target.key) or 'none'}",
            hint="a rebuild into a new version gives it the new key",
        )


def fenced(target: Target, version: int) -> Fenced:
    return Fenced(
        f"another process has taken over version {version} of {target.name}",
        detail=f"pipeline {target.owner}",
        hint="if the pipeline runs twice, stop one of the two",
    )


def not_ours(table: str, target: Target) -> StoreRefused:
    return StoreRefused(
        f"there is a table {table}, and pipeline {target.owner} did not create it",
        hint="choose another name in the pipeline, or rename or drop that table",
    )


def table_missing(table: str) -> StoreRefused:
    return StoreRefused(
        f"table {table} is missing, but its position still exists",
        hint="rebuild into a new version; the old one can then be dropped",
    )


def unknown_version(target: Target, version: int) -> StoreRefused:
    return StoreRefused(
        f"there is no version {version} of {target.name}", detail=f"pipeline {target.owner}"
    )


def still_live(target: Target, version: int) -> StoreRefused:
    return StoreRefused(
        f"version {version} of {target.name} is live and cannot be dropped",
        hint="promote another version first",
    )
