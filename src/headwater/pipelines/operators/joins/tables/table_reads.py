"""The changes of a table that was selected from, filtered or renamed after `flow.table`.

`hw.enrich` reads a table by its changes. What was done to the frame of `flow.table` is done to the
changes, too, with two differences. A row that does not meet a condition is no row of the table, so
its change becomes a delete: it may have met the condition before. And columns are computed of rows
only: a delete has no values, and what a condition has left out may not be computable (a division by
zero).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT, TABLE_MARK, TopicRead, read_at, read_of
from headwater.pipelines.plans import Step, base_of
from headwater.pipelines.position import POSITION
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.sinks.contract import DELETE, OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OURS: Final = (OP, AT, POSITION)
_IS_ROW: Final = "__is_row"  # the change leaves a row in the table
_NO_ROWS: Final = (DELETE, TRUNCATE, READ_TO_END, READ_TO_HERE)


@dataclass(frozen=True)
class TableRead:
    """A topic that is read as a table, and what was done to the table."""

    topic: TopicRead
    steps: tuple[Step, ...]  # from the topic on
    frame: "DataFrame"  # the user's

    def key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """What the columns of the topic's key are called in the table. Raises PipelineError."""
        for step in self.steps:
            if step.columns is None:
                continue
            renamed = {source: name for name, source, _ in step.columns if source is not None}
            missing = [name for name in key if name not in renamed]
            if missing:
                raise PipelineError(
                    f"the table has lost {missing[0]}, a column of its key",
                    detail="columns are " + ", ".join(name for name, *_ in step.columns),
                    hint=f'select "{missing[0]}" too, as it is or renamed',
                )
            key = tuple(renamed[name] for name in key)
        return key

    def applied(self, changes: "DataFrame") -> "DataFrame":
        """The changes of the table, of those of the topic. Raises PipelineError."""
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions as F  # noqa: N812

        if not self.steps:
            return changes
        is_row = ~F.coalesce(F.col(OP), F.lit("")).isin(*_NO_ROWS)
        found = changes.withColumn(_IS_ROW, is_row)
        try:
            for step in self.steps:
                found = _applied(found, step)
            ours = [name for name in _OURS if name in found.columns]
            names = [name for name in self.frame.columns if name not in ours]
            op = F.when(is_row & ~F.col(_IS_ROW), DELETE).otherwise(F.col(OP)).alias(OP)
            found = found.select(*names, *[op if name == OP else name for name in ours])
        except (AnalysisException, ParseException) as error:
            raise _not_repeatable(str(error)) from error
        for column in self.frame.schema:
            if found.schema[column.name].dataType != column.dataType:
                raise _not_repeatable(f"{column.name} is not {column.dataType.simpleString()}")
        return found


def table_read(frame: "DataFrame") -> TableRead | None:
    """None if the frame is not one of the flow's with nothing but `select`, `where` and the like
    after it.
    """
    read = read_of(frame)
    if read is not None:
        return TableRead(read, (), frame)
    base = base_of(frame, TABLE_MARK)
    read = None if base is None else read_at(base.column_id)
    return None if read is None or base is None else TableRead(read, base.steps, frame)


def _applied(changes: "DataFrame", step: Step) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    if step.alias:
        return changes.alias(step.alias)
    is_row = F.col(_IS_ROW)
    if step.columns is None:
        meets = F.coalesce(F.expr(_unqualified(step.condition)), F.lit(False))
        return changes.withColumn(_IS_ROW, is_row & F.when(is_row, meets).otherwise(False))
    columns: list[Any] = [name for name in (*_OURS, _IS_ROW) if name in changes.columns]
    for name, source, text in step.columns:
        if name in _OURS:
            continue
        value = F.expr(_unqualified(text))
        if source == name:
            columns.append(value)  # as it is: an alias would take it away from its table
        else:
            columns.append((F.when(is_row, value) if source is None else value).alias(name))
    return changes.select(*columns)


def _unqualified(text: str) -> str:
    """Columns of `flow.table` have its mark in front of their names."""
    return text.replace(f"{TABLE_MARK}.", "")


def _not_repeatable(detail: str) -> PipelineError:
    return PipelineError(
        "what was done to the table cannot be done to its changes",
        detail=detail,
        hint="columns and conditions are Spark's own expressions, without functions in Python;"
        " else filter and compute in the result",
    )
