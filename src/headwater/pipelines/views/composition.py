"""The text that Spark reads for a view: tables under names of Spark's, other views as subqueries.

    views/top.sql    SELECT * FROM revenue WHERE total > 100
    for Spark        SELECT * FROM (SELECT … FROM t0 o …
                     ) AS `revenue` WHERE total > 100

    CHANGES OF v     the records of its topic, as rows that have _op, _at and _position, too

A view that another one reads is a part of its query: both are of the same position in the log,
and one pass of Spark computes them. Everything else is the text of the files, and each character
of it is mapped back to its file, so that errors are about what the user has written.
"""

import bisect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headwater.errors import PipelineError, QueryRefused
from headwater.pipelines.settings import ViewSettings
from headwater.pipelines.views.sql_text import SqlText, TableReference

# Columns of every change, by their names in Spark's table: under their own ones, they are those of
# the steps of the query.
CHANGE_COLUMNS: Final = {f"_{name}": name for name in ("_op", "_at", "_position")}
_CHANGES: Final = f"* EXCEPT ({', '.join(CHANGE_COLUMNS)}), " + ", ".join(
    f"{inside} AS {name}" for inside, name in CHANGE_COLUMNS.items()
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Of the text for Spark, from `start` to the next piece."""

    start: int
    source: SqlText
    source_start: int
    is_copied: bool  # otherwise it replaces what stands at `source_start`


@dataclass(frozen=True, slots=True)
class Table:
    """A topic of a query, under the name that Spark has for it."""

    topic: str
    schema: str | None  # as [view.NAME] gives it
    source: SqlText  # that names it first
    offset: int
    is_changes: bool = False  # CHANGES OF: each record is a row
    view: ViewSettings | None = None  # whose changes they are
    clause: slice | None = None  # of MATCH_RECOGNIZE behind it, in the source's text


@dataclass
class ComposedQuery:
    view: str
    text: str = ""
    tables: dict[str, Table] = field(default_factory=dict)  # by their names in the text
    files: dict[Path, None] = field(default_factory=dict)  # that the text comes from
    reads: dict[str, None] = field(default_factory=dict)  # topics and views that the view names
    _pieces: list[_Piece] = field(default_factory=list)

    def located(self, error: PipelineError) -> QueryRefused:
        """The error, with the name of the view, and the place in the user's file if it has one."""
        if isinstance(error, QueryRefused) and error.place:
            return error
        what = error.what.removeprefix("sql: ")
        offset = error.offset if isinstance(error, QueryRefused) else None
        if offset is None:
            return QueryRefused(f"view {self.view}: {what}", detail=error.detail, hint=error.hint)
        found = bisect.bisect_right(self._pieces, offset, key=lambda piece: piece.start)
        piece = self._pieces[max(0, found - 1)]
        at = piece.source_start + (offset - piece.start if piece.is_copied else 0)
        refused = piece.source.refused(what, detail=error.detail, hint=error.hint, offset=at)
        if piece.source.view == self.view:
            return refused
        return QueryRefused(
            f"view {self.view}: {refused.what.partition(': ')[2]}",
            detail=refused.detail,
            hint=refused.hint,
            place=refused.place,
        )

    def add(self, text: str, source: SqlText, at: int, *, is_copied: bool) -> None:
        self._pieces.append(_Piece(len(self.text), source, at, is_copied))
        self.text += text


def composed(settings: ViewSettings, directory: Path) -> ComposedQuery:
    """Raises ConfigError for a file that cannot be read, QueryRefused where a query is wrong, and
    where views depend on each other in a circle.
    """
    composer = _Composer(settings, directory)
    query = composer.query
    composer.add_view(settings, ())
    if not query.tables:
        raise PipelineError(
            f"view {settings.name} reads no table",
            hint="SELECT … FROM shop.public.orders, which is the topic of a captured table",
        )
    return query


class _Composer:
    def __init__(self, settings: ViewSettings, directory: Path) -> None:
        self.query = ComposedQuery(settings.name)
        self._views = {**settings.views, settings.name: settings}
        self._directory = directory
        self._sources: dict[str, tuple[SqlText, list[TableReference]]] = {}
        self._names: dict[tuple[str, str | None, bool, str | None], str] = {}
        self._prefix = ""

    def add_view(self, settings: ViewSettings, path: tuple[str, ...]) -> None:
        source, references = self._read(settings.name, path)
        if not path:
            self.query.reads.update(dict.fromkeys(map(str, references)))
            self._prefix = self._free_prefix()
        at = 0
        for reference in references:
            self.query.add(source.text[at : reference.start], source, at, is_copied=True)
            if reference.clause is not None:
                replacement = self._matched(settings, source, reference)
            elif reference.is_changes:
                table = self._table(settings, source, reference)
                replacement = f"(SELECT {_CHANGES} FROM {table})"  # noqa: S608 (both are ours)
            elif reference.name in self._views:
                self.query.add("(", source, reference.start, is_copied=False)
                self.add_view(self._views[reference.name], (*path, settings.name))
                # A comment at the end of its text must not hide the bracket.
                replacement = "\n)"
            else:
                replacement = self._table(settings, source, reference)
            if not reference.has_alias:  # its columns may be qualified by the last part
                replacement += f" AS `{reference.name.rpartition('.')[2]}`"
            self.query.add(replacement, source, reference.start, is_copied=False)
            at = reference.end
        self.query.add(source.text[at : source.end], source, at, is_copied=True)

    def _read(self, view: str, path: tuple[str, ...]) -> tuple[SqlText, list[TableReference]]:
        """And all views that it reads, those whose changes it reads included: no view may wait for
        its own changes.
        """
        if view not in self._sources:
            file = self._directory / self._views[view].file
            source = SqlText.read(view, file)
            self.query.files[file] = None
            self._sources[view] = source, source.references()
        source, references = self._sources[view]
        for reference in references:
            if reference.name in (*path, view):
                raise _circle(source, reference, (*path, view))
            if reference.name in self._views:
                self._read(reference.name, (*path, view))
        return source, references

    def _matched(self, settings: ViewSettings, source: SqlText, reference: TableReference) -> str:
        """A table of the matches."""
        if reference.is_changes or reference.name in self._views:
            raise source.refused(
                f"MATCH_RECOGNIZE over {reference}",
                detail="matches are of events that stay, and rows of a view change",
                hint="a topic of events; hw.match in a pipeline takes any stream"
                " (docs/patterns.md)",
                offset=reference.start,
            )
        return self._table(settings, source, reference)

    def _table(self, settings: ViewSettings, source: SqlText, reference: TableReference) -> str:
        schema = settings.schemas.get(reference.name)
        clause = reference.clause
        text = None if clause is None else source.text[clause]
        key = (reference.name, schema, reference.is_changes, text)
        if key not in self._names:
            self._names[key] = f"{self._prefix}{len(self._names)}"
            is_changes, view = reference.is_changes, self._views.get(reference.name)
            start = reference.start
            table = Table(reference.name, schema, source, start, is_changes, view, clause)
            self.query.tables[self._names[key]] = table
        return self._names[key]

    def _free_prefix(self) -> str:
        """Of names that no text has: a WITH may define t0."""
        prefix = "t"
        while any(re.search(rf"\b{prefix}\d", one.text) for one, _ in self._sources.values()):
            prefix += "_"
        return prefix


def _circle(source: SqlText, reference: TableReference, path: tuple[str, ...]) -> QueryRefused:
    circle = (*path[path.index(reference.name) :], reference.name)
    if len(circle) == 2:
        return source.refused(
            f"view {reference.name} reads itself",
            hint="a table that is called like a view means the view: if the topic is meant, the"
            " view needs another name",
            offset=reference.start,
        )
    return source.refused(
        "views depend on each other in a circle",
        detail=" → ".join(circle),
        hint="one of them has to read tables only",
        offset=reference.start,
    )
