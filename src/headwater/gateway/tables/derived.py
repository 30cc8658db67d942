"""Tables that pipelines and views maintain in SQL stores.

Which there are is in the status files that the processes of pipelines leave beside their
checkpoints. Columns, types and the position come from the store itself, with the rows, in one
consistent read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.config import Config
from headwater.errors import NotReady
from headwater.gateway.answers import Refusal
from headwater.gateway.tables.queries import Condition, Query
from headwater.inspect.pipelines import reported_writes
from headwater.inspect.store_lookup import store_of_write
from headwater.pipelines.running import status

if TYPE_CHECKING:
    from headwater.sinks.contract import Position
    from headwater.sinks.selection import SelectableStore, Selection

KINDS: Final = ("sqlite", "postgres", "mysql")


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A table, as the status of its pipeline describes it."""

    config: Config
    pipeline: str
    sink: str
    name: str
    key: tuple[str, ...]
    topics: tuple[str, ...]  # that it is derived from
    write: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Some rows, and the position of the store that they were read at."""

    rows: list[dict[str, Any]]
    position: "Position | None"


def find(config: Config, name: str, sink: str | None) -> DerivedTable | None:
    """None if there is none. Raises Refusal if there are several. Reads files: blocks."""
    found = [
        DerivedTable(
            config,
            pipeline,
            write["sink"],
            write["table"],
            tuple(write["key"]),
            tuple(write["topics"]),
            dict(write),
        )
        for pipeline in config.pipelines
        for write in reported_writes(status.read(config.state_dir(), pipeline)).values()
        if write["table"] == name and sink in (None, write["sink"])
        if write["sink"] in config.sinks and config.sinks[write["sink"]].kind in KINDS
    ]
    if len(found) > 1:
        raise Refusal(
            409,
            f"there are several tables {name}",
            detail=f"in {', '.join(sorted({table.sink for table in found}))}",
            hint="?sink=NAME chooses one",
        )
    return found[0] if found else None


def select(table: DerivedTable, query: Query) -> Found:
    """Blocks. Raises UsageError for a column that there is none of, SinkError, NotReady."""
    from headwater.gateway.tables.rows import as_json
    from headwater.sinks.selection import field_of

    def read(store: "SelectableStore", version: int, selection: "Selection") -> Found:
        with store.select(version, selection) as contents:
            batches = list(contents.rows)
            for column in query.columns:
                if batches:
                    field_of(column, batches[0].schema)
            return Found(as_json(batches, query.columns), contents.position)

    return _with_store(table, query, read)


def position_of(table: DerivedTable) -> "Position | None":
    """How far the store is. Blocks."""
    store = store_of_write(table.config, table.pipeline, table.write)
    try:
        return next((found.position for found in store.versions() if found.is_live), None)
    finally:
        store.close()


def _with_store(
    table: DerivedTable,
    query: Query,
    read: "Callable[[SelectableStore, int, Selection], Found]",
) -> Found:
    from headwater.sinks import selection as selections

    store = store_of_write(table.config, table.pipeline, table.write)
    try:
        assert isinstance(store, selections.SelectableStore)
        live = next((found.number for found in store.versions() if found.is_live), None)
        if live is None:
            raise NotReady(
                f"table {table.name} has never been written",
                hint=f"`headwater pipeline status {table.pipeline}` shows why",
            )
        conditions = tuple(
            selections.Condition(one.column, one.operator, one.value) for one in query.conditions
        )
        return read(store, live, selections.Selection(conditions, query.order, query.limit))
    finally:
        store.close()


def by_key(table: DerivedTable, parts: Sequence[str]) -> Query:
    """Raises Refusal if the table has another key."""
    if len(parts) != len(table.key):
        raise Refusal(
            400,
            f"the key of table {table.name} has {len(table.key)} columns",
            detail=", ".join(table.key),
            hint=f"/tables/{table.name}/{'/'.join(name.upper() for name in table.key)}",
        )
    conditions = tuple(
        Condition(column, "=", value) for column, value in zip(table.key, parts, strict=True)
    )
    return Query(conditions, limit=1)
