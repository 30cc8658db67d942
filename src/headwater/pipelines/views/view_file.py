"""[view.NAME]: a SQL file as a pipeline that writes the result of its query.

Tables of the query are topics: `shop.public.orders` is the topic of a captured table; a name with
other characters stands in backquotes. The name of another view means that view (composition.py).
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.client.cluster import Cluster
from headwater.errors import BrokerUnreachable, HeadwaterError, PipelineError, QueryRefused
from headwater.pipelines.settings import ViewSettings
from headwater.pipelines.views.composition import CHANGE_COLUMNS, ComposedQuery, Table, composed
from headwater.spelling import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipelines.flow import Flow
    from headwater.pipelines.pipeline import Function
    from headwater.pipelines.views.query import Result, SqlTable
    from headwater.sinks.contract import Log


def view_function(settings: ViewSettings, directory: Path) -> "Function":
    """Raises ConfigError if a file cannot be read, PipelineError where a query is wrong."""
    query = composed(settings, directory)

    def view(flow: "Flow") -> None:
        write_view(settings, query, flow)

    return view


def write_view(settings: ViewSettings, query: ComposedQuery, flow: "Flow") -> "Result":
    from headwater.pipelines.views.explain import steps_of
    from headwater.pipelines.views.query import translated

    try:
        frames = {name: _frame(name, table, flow) for name, table in query.tables.items()}
        result = translated(query.text, frames, settings.key, settings.name)
    except PipelineError as error:
        raise query.located(error) from None
    flow.write(
        result.frame,
        to=settings.into,
        table=settings.table or settings.name,
        key=result.key,
        options=settings.options,
    )
    write = flow.writes[-1]
    flow.writes[-1] = replace(write, steps=lambda: steps_of(query, write, result).as_json())
    return result


def files_of(settings: ViewSettings, directory: Path) -> list[Path]:
    """The files of views that this one reads; none if that cannot be determined."""
    try:
        return list(composed(settings, directory).files)
    except HeadwaterError:
        return []


def _frame(name: str, table: Table, flow: "Flow") -> "SqlTable":
    from headwater.pipelines.views.query import SqlTable, changes_table, table_of

    try:
        if table.is_changes:
            return changes_table(name, _changes(table, flow), CHANGE_COLUMNS)
        if table.clause is not None:
            return SqlTable(name, _matches(table, flow), ())
        return table_of(name, flow.changes(table.topic, table.schema), {})
    except (PipelineError, BrokerUnreachable):
        raise
    except HeadwaterError as error:
        log = getattr(flow.reader, "log", None)
        raise _no_table(table, error, _topics(log)) from error


def _matches(table: Table, flow: "Flow") -> "DataFrame":
    """Raises QueryRefused."""
    from headwater.pipelines.flow import has_events
    from headwater.pipelines.operators.patterns.language.match_clause import parse_clause
    from headwater.pipelines.operators.patterns.match import match

    source, clause = table.source, table.clause
    assert clause is not None
    events = flow.changes(table.topic, table.schema)
    if not has_events(events):
        raise source.refused(
            f"MATCH_RECOGNIZE over {table.topic}, whose rows change",
            detail="matches are of events that stay; it is a captured table",
            hint="hw.match in a pipeline takes the rows that are inserted (docs/patterns.md)",
            offset=table.offset,
        )
    try:
        return match(events, **parse_clause(source.text[clause], clause.start))
    except PipelineError as error:
        offset = error.offset if isinstance(error, QueryRefused) else None
        raise source.refused(
            error.what,
            detail=error.detail,
            hint=error.hint,
            offset=table.offset if offset is None else offset,
        ) from None


def _changes(table: Table, flow: "Flow") -> "DataFrame":
    """Raises QueryRefused if they are not stored."""
    from headwater.pipelines.flow import TOPICS
    from headwater.pipelines.reading import HISTORY

    view = table.view
    if view is None:
        return flow.changes(table.topic, table.schema)
    sinks = flow.sinks or {}
    kind = sinks[view.into].kind if view.into in sinks else view.into
    if kind != TOPICS:
        raise table.source.refused(
            f"the changes of view {view.name} are not stored: it is a table of {view.into}",
            hint=f'into = "topic" and options = {HISTORY} of [view.{view.name}] store them;'
            f" FROM {view.name} reads its rows",
            offset=table.offset,
        )
    try:
        return flow.changes_of(view.name, topic=view.table or view.name)
    except PipelineError as error:
        raise table.source.refused(
            error.what, detail=error.detail, hint=error.hint, offset=table.offset
        ) from None


def _no_table(table: Table, error: HeadwaterError, topics: list[str]) -> QueryRefused:
    """A topic that is no captured table needs `schemas`; one that is not there is misspelled."""
    source = table.source
    if table.topic in topics:
        columns = f'schemas = {{ "{table.topic}" = "id bigint, …" }}'
        hint = f"[view.{source.view}] has to have its columns: {columns}"
        return source.refused(error.what, detail=error.detail, hint=hint, offset=table.offset)
    meant = nearest(table.topic, topics)
    return source.refused(
        f"there is no table {table.topic}",
        detail="no topic and no [view] has this name",
        hint=f"did you mean {meant}?" if meant else error.hint,
        offset=table.offset,
    )


def _topics(log: "Log | None") -> list[str]:
    """[] if they cannot be listed."""
    if log is None:
        return []
    cluster = Cluster(log.bootstrap, log.login)
    try:
        return [name for name in cluster.topics() if not name.startswith("__")]
    except HeadwaterError:
        return []
    finally:
        cluster.close()
