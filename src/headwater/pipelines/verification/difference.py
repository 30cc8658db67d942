"""What would change in the stores of a pipeline if its function, as it is now, derived them again.

The rows of a store are compared with those that the function derives from the log, up to the
position of the store, as `verify` does. Nothing is written; the pipeline may run meanwhile.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import NotReady, PipelineError
from headwater.pipelines.flow import AT, Write
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.operators.windows.results import MARK
from headwater.pipelines.plans import without_conditions
from headwater.pipelines.position import POSITION
from headwater.pipelines.reading import BoundedReader, as_table
from headwater.pipelines.running.environment import open_store
from headwater.pipelines.running.loaded_pipeline import Pipeline, write_named
from headwater.pipelines.verification.comparison import Difference, compare
from headwater.pipelines.verification.stores import (
    derive,
    is_net,
    net_of,
    refuse_two_rows,
    save_rows,
    seen_by_tasks,
    stored_frame,
    time_us,
)
from headwater.sinks.contract import AT_LEAST_ONCE, OP, Offsets

_EXAMPLES: Final = 5  # of each kind
_OURS: Final = (OP, AT, POSITION, MARK)

COMPARED, NEW, REKEYED, UNREADABLE = "compared", "new", "key changed", "cannot be read"


@dataclass(frozen=True)
class StoreDifference:
    """What would be different in the store of one write."""

    write: str
    state: str  # one of those above
    rows: int = 0  # that the store has
    derived: int | None = None  # how many it would have, where rows are not compared
    added: int = 0
    changed: int = 0
    removed: int = 0
    examples: list[Difference] = field(default_factory=list)
    columns_added: Mapping[str, str] = field(default_factory=dict)  # to their types
    columns_removed: tuple[str, ...] = ()
    columns_changed: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # types, was and is
    key: tuple[str, ...] = ()
    key_was: tuple[str, ...] = ()
    # With `last_s`: rows whose records of that time the function leaves out. They would be removed,
    # or be what an earlier record has made of them. None: not counted.
    left_out: int | None = None

    @property
    def is_same(self) -> bool:
        is_other = self.state in (NEW, REKEYED)
        columns = (self.columns_added, self.columns_removed, self.columns_changed)
        return not (is_other or self.added or self.changed or self.removed or any(columns))

    def as_json(self) -> dict[str, Any]:
        return {
            "write": self.write,
            "state": self.state,
            "is_same": self.is_same,
            "rows": self.rows,
            "derived": self.derived,
            "added": self.added,
            "changed": self.changed,
            "removed": self.removed,
            "examples": [
                {"key": one.key, "stored": one.stored, "derived": one.derived}
                for one in self.examples
            ],
            "columns_added": dict(self.columns_added),
            "columns_removed": list(self.columns_removed),
            "columns_changed": {
                name: {"was": was, "is": now} for name, (was, now) in self.columns_changed.items()
            },
            "key": list(self.key),
            "key_was": list(self.key_was),
            "left_out": self.left_out,
        }


def difference(
    pipeline: Pipeline,
    write: Write,
    *,
    last_s: float | None = None,
    key_was: Sequence[str] | None = None,
) -> StoreDifference:
    """Of one write that the function describes. With `last_s`, only rows are compared that records
    of the last so many seconds have written. A row whose records of that time are all left out by
    the function now may have been made by an earlier one: it is counted as `left_out`.
    `key_was` is the key that was reported when the store was written, for stores that do not record
    it. Raises PipelineError if the rows cannot be derived.
    """
    store = open_store(pipeline.environment, pipeline.name, write)
    log = pipeline.environment.log
    ends = ends_of(log, write.topics, write.patterns)
    try:
        if store.guarantee == AT_LEAST_ONCE:
            return StoreDifference(write.name, UNREADABLE, key=write.key)
        with seen_by_tasks(pipeline.spark, pipeline.environment.state_dir) as directory:
            try:
                version, fields, position = save_rows(store, write, None, directory)
            except NotReady:
                derived = derive(pipeline, write, ends)
                refuse_two_rows(pipeline.name, write, derived)
                return _new(write, derived)
            stored = stored_frame(pipeline.spark, directory / "stored.parquet", fields)
            # A topic that the function has not read before is read up to now.
            read = {name: at for name, at in position.offsets.items() if write.reads(name)}
            offsets = {**ends, **read}
            recorded = tuple(column.name for column in fields if not column.nullable)
            key_was = recorded or tuple(write.key if key_was is None else key_was)
            if set(key_was) != set(write.key):
                derived = derive(pipeline, write, offsets)
                refuse_two_rows(pipeline.name, write, derived)
                return StoreDifference(
                    write.name,
                    REKEYED,
                    stored.count(),
                    derived.count(),
                    key=write.key,
                    key_was=key_was,
                )
            left_out = None
            if last_s is None:
                now_us = time_us(pipeline, write, version, position)
                derived = derive(pipeline, write, offsets, now_us)
            else:
                changes = _changes_since(pipeline, write, offsets, last_s)
                derived = as_table(changes, write.key)
                left_out = _left_out(write, stored, changes)
                stored = stored.join(changes.select(*write.key).distinct(), [*write.key], "semi")
                stored = stored.select(*fields.names)
            if is_net(write, fields.names):
                stored, derived = net_of(write, stored), net_of(write, derived)
            types = _types_changed(from_arrow_schema(fields), derived.schema)
            names = [name for name in stored.columns if name in derived.columns]
            found = compare(
                write,
                version,
                position,
                _comparable(stored, names, types),
                _comparable(derived, names, types),
                shown_of_each=_EXAMPLES,
                check=lambda rows: refuse_two_rows(pipeline.name, write, rows),
            )
    finally:
        store.close()
    return StoreDifference(
        write.name,
        COMPARED,
        found.rows,
        added=found.missing,
        changed=found.count - found.missing - found.unexpected,
        removed=found.unexpected,
        examples=found.differences,
        columns_added=_types(derived.schema, besides=fields.names),
        columns_removed=tuple(
            name for name in fields.names if name not in (*derived.columns, MARK)
        ),
        columns_changed=types,
        key=write.key,
        key_was=write.key,
        left_out=left_out,
    )


def _left_out(write: Write, stored: DataFrame, changes: DataFrame) -> int | None:
    read = without_conditions(changes)
    if read is None:
        return None
    keys = [*write.key]
    of_records = read.select(*keys).distinct().join(changes.select(*keys), keys, "anti")
    return stored.join(of_records, keys, "semi").count()


def _new(write: Write, derived: DataFrame) -> StoreDifference:
    rows = derived.select(*_types(derived.schema, besides=()))
    first = [row.asDict(recursive=True) for row in rows.take(_EXAMPLES)]
    examples = [
        Difference({name: row[name] for name in write.key or row}, None, row) for row in first
    ]
    count = rows.count()
    types = _types(derived.schema, besides=())
    return StoreDifference(write.name, NEW, 0, count, count, 0, 0, examples, types, key=write.key)


def _changes_since(pipeline: Pipeline, write: Write, offsets: Offsets, last_s: float) -> DataFrame:
    since = datetime.now(UTC) - timedelta(seconds=last_s)
    reader = BoundedReader(
        pipeline.spark,
        pipeline.environment.log,
        pipeline.settings,
        offsets,
        start=f"@{since.isoformat()}",
    )
    bounded = write_named(pipeline.flow(reader), write.name)
    if not write.key or bounded.operators or POSITION not in bounded.frame.columns:
        raise PipelineError(
            f"{write.name}: its rows do not come from single records",
            detail="so those of the last records alone would be wrong",
            hint="leave out --last, so that the whole log is read",
        )
    return bounded.frame


def _types(schema: StructType, *, besides: tuple[str, ...] | list[str]) -> dict[str, str]:
    return {
        column.name: column.dataType.simpleString()
        for column in schema
        if column.name not in (*besides, *_OURS)
    }


def _types_changed(stored: StructType, derived: StructType) -> dict[str, tuple[str, str]]:
    now = {column.name: column.dataType.simpleString() for column in derived}
    was = {column.name: column.dataType.simpleString() for column in stored}
    return {
        name: (kind, now[name]) for name, kind in was.items() if name in now and now[name] != kind
    }


def _comparable(frame: DataFrame, names: list[str], types: Mapping[str, object]) -> DataFrame:
    """Columns whose types differ are compared as texts."""
    columns = [F.col(name).cast("string").alias(name) if name in types else name for name in names]
    return frame.select(*columns)
