"""Unique keys of a query's result, as far as its plan implies them."""

from collections.abc import Callable
from typing import Any, Final

from headwater.pipelines.views.plans.catalyst import children, id_of, items, kind_of
from headwater.pipelines.views.plans.sessions import is_session

EquiKeys = Callable[[Any], tuple[list[Any], list[Any]]]
Key = frozenset[int]  # ids of columns; the empty one: there is one row at most
_SAME: Final = frozenset(
    {
        "Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Window", "WindowGroupLimit",
        "Repartition",
    }
)  # fmt: skip
_OF_LEFT: Final = ("LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle")
_ONE_OF_RIGHT: Final = ("Inner", "Cross", "LeftOuter")
_ONE_OF_LEFT: Final = ("Inner", "Cross", "RightOuter")
TIME_WINDOW: Final = "spark.timeWindow"  # in the metadata of the column that window() makes
_MOST: Final = 16  # a join of many tables has more combinations than are worth looking at


def unique_keys(
    plan: Any, key_of_table: Callable[[Any], set[int] | None], on: EquiKeys
) -> list[Key]:
    """`key_of_table` gives the columns that identify the rows of a table, `on` the expressions by
    which a join finds partners. The keys of both sides identify the rows of a full join only if
    not both can be null: `has_full_join`.
    """
    most = plan.maxRows()
    if most.isDefined() and most.get() <= 1:
        return [frozenset()]
    kind = kind_of(plan)
    if kind == "LogicalRDD":
        found = key_of_table(plan)
        return [] if found is None else [frozenset(found)]
    if kind in _SAME:
        return unique_keys(children(plan)[0], key_of_table, on)
    if kind == "Project":
        of_child = unique_keys(children(plan)[0], key_of_table, on)
        return _renamed(of_child, items(plan.projectList()))
    if kind == "Aggregate":
        grouping = items(plan.groupingExpressions())
        results = items(plan.aggregateExpressions())
        return _grouped(grouping, results)
    if kind == "Join":
        return _joined(plan, key_of_table, on)
    return []


def has_full_join(plan: Any) -> bool:
    """Two rows that have no partner, and a null as their key, look the same in it."""
    if kind_of(plan) == "Join" and str(plan.joinType()) == "FullOuter":
        return True
    return kind_of(plan) != "Aggregate" and any(map(has_full_join, children(plan)))


def _renamed(keys: list[Key], projected: list[Any]) -> list[Key]:
    """Where each column of a key is among the projected ones, maybe under another name."""
    names: dict[int, int] = {}
    for expression in projected:
        source = children(expression)[0] if kind_of(expression) == "Alias" else expression
        if kind_of(source) == "AttributeReference":
            names.setdefault(id_of(source), id_of(expression))
    return [
        frozenset(names[one] for one in key) for key in keys if all(one in names for one in key)
    ]


def _grouped(grouping: list[Any], results: list[Any]) -> list[Key]:
    found = set()
    for group in grouping:
        if group.foldable():
            continue  # the same for all rows
        same = [
            id_of(result)
            for result in results
            if (children(result)[0] if kind_of(result) == "Alias" else result).semanticEquals(group)
        ]
        if not same:
            same = _parts_of_window(group, results)
        if not same:
            return []
        found.add(same[0])
    return [frozenset(found)]


def _parts_of_window(group: Any, results: list[Any]) -> list[int]:
    """Of window(time, '10 minutes') or a session, the beginning or the end, which imply each other:
    sessions of a group do not overlap.
    """
    is_column = kind_of(group) == "AttributeReference"
    if not is_column or not (group.metadata().contains(TIME_WINDOW) or is_session(group)):
        return []
    return [
        id_of(result)
        for result in results
        if kind_of(result) == "Alias"
        and kind_of(part := children(result)[0]) == "GetStructField"
        and children(part)[0].semanticEquals(group)
    ]


def _joined(plan: Any, key_of_table: Callable[[Any], set[int] | None], on: EquiKeys) -> list[Key]:
    left, right = (unique_keys(child, key_of_table, on) for child in children(plan))
    how = str(plan.joinType()).partition("(")[0]
    if how in _OF_LEFT:
        return left
    of_left, of_right = (
        {id_of(one) for one in expressions if kind_of(one) == "AttributeReference"}
        for expressions in on(plan)
    )
    found = [one | other for one in left for other in right]
    # A row with at most one partner is in the result once.
    if how in _ONE_OF_RIGHT and any(key <= of_right for key in right):
        found = left + found
    if how in _ONE_OF_LEFT and any(key <= of_left for key in left):
        found = right + found
    return found[:_MOST]
