"""`hw.sql`: the result of a query over tables that change, as changes of a table.

Names of tables are those of the arguments. Spark itself parses, analyses and optimises the query,
in a session of its own, over empty tables of the same columns; then its plan is translated
(translation.py). So every function of a row works as in Spark, and errors are Spark's.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.errors import PipelineError, QueryRefused
from headwater.pipelines.flow import AT, has_events, read_of
from headwater.pipelines.operators.runtime.naming import CLOCK_CONDITION, current, depends_on_when
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.position import POSITION
from headwater.pipelines.spark_errors import first_line
from headwater.pipelines.views.nodes.deltas import WEIGHT
from headwater.pipelines.views.nodes.result import ResultChanges
from headwater.pipelines.views.nodes.upserts import Upserts
from headwater.pipelines.views.plans.catalyst import (
    Catalyst,
    children,
    id_of,
    items,
    kind_of,
    nodes_of,
    offset_of,
    parts_of,
)
from headwater.pipelines.views.plans.clock import reads_clock, with_marks
from headwater.pipelines.views.plans.delta_plans import schema_of
from headwater.pipelines.views.plans.keys import has_full_join, unique_keys
from headwater.pipelines.views.plans.outline import Outline
from headwater.pipelines.views.plans.sessions import with_sessions
from headwater.pipelines.views.plans.sharing import SharedSteps
from headwater.pipelines.views.plans.translation import Translation, needed_columns
from headwater.pipelines.views.query_errors import in_query, query_refused
from headwater.sinks.contract import OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KIND: Final = "sql"
_OURS: Final = (OP, AT, POSITION)
_TABLE: Final = "headwater.table"  # in the metadata of columns: the table that they are of
# Rules of Spark's optimiser that are of no use here: physical shapes of aggregates and limits, and
# filters that depend on the tables' sizes.
_EXCLUDED: Final = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{name}"
    for name in (
        "DecimalAggregates",
        "LimitPushDown",
        "LimitPushDownThroughWindow",
        "MergeSubplans",
        "InjectRuntimeFilter",
        "OptimizeCsvJsonExprs",
    )
)


@dataclass(frozen=True)
class SqlTable:
    """A table of a query: the changes of it, and the columns that identify a row (none: every row
    is an event, and stays).
    """

    name: str
    frame: "DataFrame"
    key: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return [name for name in self.frame.columns if name not in _OURS]


def sql(
    query: str,
    *,
    key: str | Sequence[str] = (),
    keys: Mapping[str, str | Sequence[str]] | None = None,
    name: str | None = None,
    **tables: "DataFrame",
) -> "DataFrame":
    """The result of the query, as changes: after each batch it is what the query gives over the
    tables as they are at that position in the log.

    `tables` are frames of changes by their names in the query; a captured table is identified by
    its own key, other tables by `keys={"name": […]}`, and without one each row is an event. `key`
    identifies the rows of the result; without it the query has to imply one (GROUP BY, the keys of
    its tables). `_op` is "c", "u" or "d". Two rows of one key are an error.
    """
    if not tables:
        raise PipelineError(f"{_KIND}: there are no tables", hint="hw.sql(query, orders=orders)")
    found = {table: table_of(table, frame, keys or {}) for table, frame in tables.items()}
    try:
        return translated(query, found, names(key), name or "").frame
    except QueryRefused as error:
        raise in_query(error, query) from None


@dataclass(frozen=True)
class Result:
    frame: "DataFrame"  # changes, with `_op`
    key: tuple[str, ...]
    outline: Outline


def translated(
    query: str, tables: Mapping[str, SqlTable], key: tuple[str, ...], name: str
) -> Result:
    spark = next(iter(tables.values())).frame.sparkSession
    plan = optimised(spark, query, tables)
    output = [one.name() for one in items(plan.output())]
    _check_output(output)
    catalyst = Catalyst(spark)

    def keys_of(node: Any) -> list[frozenset[int]]:
        return unique_keys(
            node, lambda leaf: _key_ids(leaf, tables), lambda join: catalyst.equi_keys(join)[:2]
        )

    _check_single(plan, catalyst, keys_of)
    derived = keys_of(plan)
    needed = needed_columns(plan)
    shared = SharedSteps(plan, needed)
    outline = Outline()
    described = _described(plan, needed, tables, shared)
    namer = outline.recording(_namer(query, described, key, name))
    records = [table.frame for table in tables.values()]
    relations = _relations(tables, _columns_read(plan, needed, tables), namer)
    translation = Translation(catalyst, namer, needed, relations, outline, records, shared)
    delta = translation.delta(plan)
    chosen, is_unique = _result_key(plan, key, derived)
    columns = list(zip(output, items(plan.output()), strict=True))
    _check_key_types(schema_of(columns), chosen)
    frame = translation.columns(delta, columns)
    operator = ResultChanges(schema_of(columns), chosen, is_unique)
    side = Side(frame, chosen, (*output, WEIGHT))
    changes = run_operator("result", operator, [side], name=namer("result"))
    return Result(changes, chosen, outline)


def optimised(spark: "SparkSession", query: str, tables: Mapping[str, SqlTable]) -> Any:
    """Spark's plan of the query. Raises PipelineError with Spark's reason."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    session = spark.newSession()
    session.conf.set("spark.sql.optimizer.excludedRules", _EXCLUDED)
    for table in tables.values():
        _stand_in(session, table)
    try:
        frame = session.sql(query)
        analysed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        if reads_clock(analysed):
            depends_on_when(CLOCK_CONDITION)
        catalyst = Catalyst(session)
        rewritten = with_sessions(catalyst, with_marks(catalyst, analysed))
        if rewritten is not analysed:
            frame = catalyst.frame(rewritten)
        plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    except PySparkException as error:
        raise query_refused(error, query, session, tables) from None
    except Py4JJavaError as error:
        raise PipelineError(
            f"{_KIND}: Spark cannot plan the query",
            detail=first_line(str(error.java_exception)),
            hint="write it in another way; a column that is selected twice can be the cause",
        ) from None
    finally:
        for name in tables:
            session.catalog.dropTempView(name)
        _make_active(spark)
    if not plan.deterministic():
        raise QueryRefused(
            f"{_KIND}: the query has another result whenever it is asked",
            hint="leave out rand(), uuid(), shuffle() and the like",
            offset=_random_part(analysed),
        )
    return plan


def _make_active(session: "SparkSession") -> None:
    """Again: `createDataFrame` has made the other session that of this thread, and Spark looks for
    sources in that one. It has none of ours.
    """
    from pyspark.sql import SparkSession

    SparkSession._activeSession = session  # noqa: SLF001 - as createDataFrame does
    sessions = SparkSession._get_j_spark_session_class(session._jvm)  # noqa: SLF001
    sessions.setActiveSession(session._jsparkSession)  # noqa: SLF001


def _random_part(plan: Any) -> int | None:
    """Where the text has it, if Spark knows."""
    places = [
        offset_of(part)
        for node in nodes_of(plan)
        for expression in items(node.expressions())
        for part in parts_of(expression)
        if not part.deterministic() and all(below.deterministic() for below in children(part))
    ]
    return next((place for place in places if place is not None), None)


def names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _stand_in(session: "SparkSession", table: SqlTable) -> None:
    from pyspark.sql.types import StructField, StructType

    fields = [
        StructField(field.name, field.dataType, True, {_TABLE: table.name})
        for field in table.frame.select(*table.columns).schema
    ]
    empty = session.sparkContext.emptyRDD()
    session.createDataFrame(empty, StructType(fields)).createTempView(table.name)


def _columns_read(
    plan: Any, needed: set[int], tables: Mapping[str, SqlTable]
) -> dict[str, tuple[str, ...]]:
    """Of each table, what any part of the query reads of it, and its key."""
    found = {table.name: set(table.key) for table in tables.values()}
    for node in nodes_of(plan):
        if kind_of(node) == "LogicalRDD":
            read = {one.name() for one in items(node.output()) if id_of(one) in needed}
            found[table_name(node)] |= read
    return {
        table.name: tuple(column for column in table.columns if column in found[table.name])
        for table in tables.values()
    }


def _relations(
    tables: Mapping[str, SqlTable],
    columns: Mapping[str, tuple[str, ...]],
    namer: Callable[[str], str],
) -> Callable[[Any], "DataFrame"]:
    """The delta of each table: one, however often the query reads it."""
    made: dict[str, DataFrame] = {}

    def relation(leaf: Any) -> "DataFrame":
        name = table_name(leaf)
        if name not in made:
            made[name] = _delta(tables[name], columns[name], namer)
        return made[name]

    return relation


def _delta(table: SqlTable, columns: tuple[str, ...], namer: Callable[[str], str]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import to_arrow_schema

    if not table.key:
        weight = F.lit(1).cast("bigint").alias(WEIGHT)
        return table.frame.select(*columns, weight, POSITION)
    schema = to_arrow_schema(table.frame.select(*columns).schema, timezone="UTC")
    operator = Upserts(table.name, schema, table.key)
    side = Side(table.frame, table.key, (*columns, OP), everywhere=f"{OP} = '{TRUNCATE}'")
    return run_operator("table", operator, [side], name=namer("table"))


def _described(
    plan: Any, needed: set[int], tables: Mapping[str, SqlTable], shared: SharedSteps
) -> list[str]:
    """The columns that the query reads, the keys of its tables, and how many of its steps are one:
    the state of another plan has other names.
    """
    described = {f"{table.name} {table.key}" for table in tables.values()}
    described.add(f"{len(shared)} shared")
    for node in nodes_of(plan):
        if kind_of(node) == "LogicalRDD":
            described |= {
                f"{table_name(node)}.{one.name()} {one.dataType().simpleString()}"
                for one in items(node.output())
                if id_of(one) in needed
            }
    return sorted(described)


def _namer(
    query: str, described: list[str], key: tuple[str, ...], name: str
) -> Callable[[str], str]:
    """Names of the nodes, which identify their state: another query, or other types of the columns
    that it reads, get other names, and so another state.
    """
    text = "\n".join([query, str(key), *described])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    now = current()
    base = f"{name or _KIND}-{digest}"
    number = 1
    while now is not None and any(one.startswith(f"{base}-{number}-") for one in now.operators):
        number += 1
    count = 0

    def next_name(kind: str) -> str:
        nonlocal count
        count += 1
        return f"{base}-{number}-{count}-{kind}"

    return next_name


def table_of(name: str, frame: "DataFrame", keys: Mapping[str, str | Sequence[str]]) -> SqlTable:
    """Raises PipelineError if it is unclear what identifies its rows."""
    return SqlTable(name, frame, _key_of(name, frame, keys))


def changes_table(name: str, frame: "DataFrame", columns: Mapping[str, str]) -> SqlTable:
    """Every record is a row that stays; the query can read these columns of it, too, under the
    names that `columns` has for them.
    """
    return SqlTable(name, frame.withColumns({new: frame[old] for new, old in columns.items()}), ())


def _key_of(
    table: str, frame: "DataFrame", keys: Mapping[str, str | Sequence[str]]
) -> tuple[str, ...]:
    if POSITION not in frame.columns:
        raise PipelineError(
            f"{_KIND}: table {table} has no column {POSITION}",
            detail="columns are " + ", ".join(frame.columns),
            hint=f'flow.changes has it; select "{POSITION}", too',
        )
    given = names(keys.get(table, ()))
    for column in given:
        if column not in frame.columns:
            raise PipelineError(
                f"{_KIND}: the key of table {table} has a column that is not there",
                detail=f"{column} (of {', '.join(frame.columns)})",
            )
    if given or OP not in frame.columns:
        return given
    read = read_of(frame)
    if read is not None and read.value == "debezium":
        return read.reader.key_of(read.topic, read.options)
    if has_events(frame):
        return ()
    raise PipelineError(
        f"{_KIND}: the key of table {table} is not known",
        detail="its rows are updated and deleted",
        hint=f'hw.sql(…, keys={{"{table}": ["id"]}})',
    )


def table_name(leaf: Any) -> str:
    metadata: Any = items(leaf.output())[0].metadata()
    return str(metadata.getString(_TABLE))


def _key_ids(leaf: Any, tables: Mapping[str, SqlTable]) -> set[int] | None:
    table = tables[table_name(leaf)]
    ids = {one.name(): id_of(one) for one in items(leaf.output())}
    return {ids[name] for name in table.key} if table.key else None


def _result_key(
    plan: Any, given: tuple[str, ...], derived: list[frozenset[int]]
) -> tuple[tuple[str, ...], bool]:
    """The columns, and whether the query implies that they are unique."""
    output = [(one.name(), id_of(one)) for one in items(plan.output())]
    is_proof = not has_full_join(plan)
    if given:
        for name in given:
            if name not in dict(output):
                raise PipelineError(
                    f"{_KIND}: the key has a column that the result does not have",
                    detail=f"{name} (of {', '.join(name for name, _ in output)})",
                )
        ids = {number for name, number in output if name in given}
        return given, is_proof and any(one <= ids for one in derived)
    usable = [one for one in derived if one <= {number for _, number in output}]
    if not usable:
        raise PipelineError(
            f"{_KIND}: the query implies no key of its result",
            hint='name the columns that identify a row: key=["…"]; or select its tables\' keys',
        )
    best = min(usable, key=len)
    if best:
        return tuple(name for name, number in output if number in best), is_proof
    return (output[0][0],), True  # one row at most


def _check_output(output: list[str]) -> None:
    for name in output:
        if output.count(name) > 1:
            raise PipelineError(
                f"{_KIND}: two columns of the result are called {name}",
                hint=f"rename one of them: … AS other_{name}",
            )
        if name in (*_OURS, WEIGHT):
            raise PipelineError(f"{_KIND}: {name} is a reserved name", hint="rename the column")


def _check_key_types(columns: pa.Schema, key: tuple[str, ...]) -> None:
    """No store can identify a row by a list, a map or a struct."""
    for name in key:
        if pa.types.is_nested(columns.field(name).type):
            raise PipelineError(
                f"{_KIND}: {name} cannot be part of the key",
                detail=f"it is {columns.field(name).type}",
                hint=f"its parts can, and its text: to_json({name}) AS {name}",
            )


def _check_single(
    plan: Any, catalyst: Catalyst, keys_of: Callable[[Any], list[frozenset[int]]]
) -> None:
    """A correlated scalar subquery has one row at most if it is found by a key."""
    for node in nodes_of(plan):
        if kind_of(node) == "Join" and str(node.joinType()) == "LeftSingle":
            _, by, _ = catalyst.equi_keys(node)
            ids = {id_of(one) for one in by if kind_of(one) == "AttributeReference"}
            rows = children(node)[1]
            if has_full_join(rows) or not any(key <= ids for key in keys_of(rows)):
                raise QueryRefused(
                    f"{_KIND}: a scalar subquery may have several rows",
                    hint="an aggregate has one: (SELECT max(…) FROM … WHERE …)",
                    offset=offset_of(node),
                )
