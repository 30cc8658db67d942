"""Spark's errors about a query: what is wrong, where in its text, and what could be written."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import QueryRefused
from headwater.pipelines.spark_errors import first_line, without_advice
from headwater.spelling import nearest

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

_PLACE: Final = re.compile(r"line (\d+),? pos (\d+)")
_CONDITION: Final = re.compile(r"^\[[A-Z_.]+\] ")
_CHANGES_OF: Final = re.compile(r"\bCHANGES\s+OF\b", re.IGNORECASE)
_MOST_NAMES: Final = 12


def query_refused(
    error: "PySparkException", query: str, session: "SparkSession", tables: Iterable[str]
) -> QueryRefused:
    """`query` is the text that Spark was given, `session` the one that refuses it, and `tables` are
    those that the query may name.
    """
    spark_says = without_advice(first_line(str(error)))
    condition = (error.getCondition() or "").partition(".")[0]
    given = error.getMessageParameters() or {}
    what = hint = ""
    if condition == "UNRESOLVED_COLUMN":
        name = _plain(given.get("objectName", ""))
        what = f"there is no column {name}"
        hint = _meant(name, _names(given.get("proposal", "")))
    elif condition == "AMBIGUOUS_REFERENCE":
        name = _plain(given.get("name", ""))
        what = f"column {name} is ambiguous"
        tables = _names(given.get("referenceNames", "").strip("[]"))
        hint = "write " + " or ".join(sorted(set(tables))) if len(set(tables)) > 1 else ""
        hint = hint or "give its tables names: FROM orders o JOIN orders p …, and write o.id"
    elif condition == "UNRESOLVED_ROUTINE":
        name = _plain(given.get("routineName", "")).rpartition(".")[2]
        what = f"there is no function {name}"
        meant = nearest(name.lower(), _functions(session))
        hint = f"did you mean {meant}?" if meant else "functions are those of Spark SQL"
    elif condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = _plain(given.get("relationName", ""))
        what = f"there is no table {name}"
        hint = _meant(name, list(tables))
    elif condition == "PARSE_SYNTAX_ERROR":
        what = f"syntax error at {_plain(given.get('error', ''))}"
        if _CHANGES_OF.search(query):  # of a view's file it was replaced
            hint = 'hw.sql has the changes of a view as a frame: x=flow.changes_of("view")'
    what, detail = (what, spark_says) if what else (_CONDITION.sub("", spark_says), "")
    return QueryRefused(f"sql: {what}", detail=detail, hint=hint, offset=_offset(error, query))


def in_query(error: QueryRefused, query: str) -> QueryRefused:
    """With the line and column of a query that is in no file of its own."""
    if error.offset is None:
        return error
    before = query[: error.offset]
    where = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
    what = error.what.removeprefix("sql: ")
    return QueryRefused(f"sql: {where}: {what}", detail=error.detail, hint=error.hint)


def _offset(error: "PySparkException", query: str) -> int | None:
    contexts: list[Any] = list(error.getQueryContext())
    if contexts and contexts[0].startIndex() >= 0:
        return int(contexts[0].startIndex())
    found = _PLACE.search(str(error))
    if found is None:
        return None
    before = query.split("\n")[: int(found[1]) - 1]
    return sum(len(line) + 1 for line in before) + int(found[2])


def _plain(quoted: str) -> str:
    return quoted.replace("`", "")


def _names(quoted: str) -> list[str]:
    return [_plain(name.strip()) for name in quoted.split(",") if name.strip()]


def _meant(name: str, names: list[str]) -> str:
    """By the last part, if the whole name is like none of them."""
    last = {one.rpartition(".")[2]: one for one in reversed(names)}
    meant = nearest(name, names) or last.get(nearest(name.rpartition(".")[2], list(last)), "")
    if meant:
        return f"did you mean {meant}?"
    return f"there are {', '.join(names[:_MOST_NAMES])}" if names else ""


def _functions(session: "SparkSession") -> list[str]:
    registry: Any = session._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
    found = registry.listFunction()
    return [str(found.apply(at).funcName()) for at in range(found.size())]
