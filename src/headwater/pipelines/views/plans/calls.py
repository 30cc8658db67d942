"""Aggregate and window functions of Spark's plans, as calls of our nodes. Refuses the others."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat

from headwater.errors import QueryRefused
from headwater.pipelines.views.nodes.aggregate import Call
from headwater.pipelines.views.nodes.value_functions import ASCENDING, BY, DESCENDING
from headwater.pipelines.views.nodes.window_functions import (
    FUNCTIONS,
    MERGED_SESSION,
    Frame,
    SortKey,
    WindowCall,
)
from headwater.pipelines.views.plans.catalyst import (
    Catalyst,
    arrow_type,
    children,
    kind_of,
    offset_of,
)
from headwater.pipelines.views.plans.sessions import is_session

_AGGREGATES: Final = {
    "Count": "count",
    "Sum": "sum",
    "Average": "avg",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
    "AnyValue": "any_value",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
    "Percentile": "percentile",
    "ListAgg": "string_agg",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "HyperLogLogPlusPlus": "count",  # of distinct values, and exact
}
_WINDOWS: Final = {
    "RowNumber": "row_number",
    "Rank": "rank",
    "DenseRank": "dense_rank",
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
    "NTile": "ntile",
    "Lag": "lag",
    "Lead": "lead",
    "NthValue": "nth_value",
}
_INEXACT_INTERVALS: Final = ("YearMonthIntervalType", "CalendarIntervalType")
_WHOLE: Final = Frame(is_rows=True, lower=None, upper=None)
ROW_NUMBER: Final = WindowCall("row_number", None, pa.int32(), _WHOLE)

Column = Callable[[Any], str]  # the name of the column that has the expression


def aggregate_call(catalyst: Catalyst, expression: Any, name: str) -> tuple[Call, Any]:
    """The call, and the expression of its column, which is null where FILTER leaves a row out."""
    function = expression.aggregateFunction()
    found = _AGGREGATES.get(kind_of(function))
    if found is None or str(function.prettyName()).startswith("try_"):
        raise _refused(expression)
    arguments = children(function)
    parameters: tuple[float | str, ...] = ()
    if found == "percentile":
        _check_plain_percentile(function)
        parameters = (float(function.percentageExpression().eval(None)),)
        arguments = arguments[:1]
    elif found == "string_agg":
        parameters = _of_texts(expression, function)
        arguments = arguments[:1]
    elif found in BY:
        value, order = arguments
        _check_type(expression, found, arrow_type(value.dataType()))
        _check_type(expression, found, arrow_type(order.dataType()))
        arguments = [catalyst.when(catalyst.all_present([order]), catalyst.struct([order, value]))]
    elif found != "count":
        arguments = arguments[:1]
    is_distinct = bool(expression.isDistinct()) or kind_of(function) == "HyperLogLogPlusPlus"
    argument = _argument(catalyst, found, arguments, is_distinct=is_distinct)
    chosen = expression.filter()
    if chosen.isDefined():
        one = catalyst.literal(1) if argument is None else argument
        argument = catalyst.when(chosen.get(), one)
    result = arrow_type(expression.dataType())
    if argument is None:
        return Call(found, None, result), None
    if found not in BY:
        _check_type(expression, found, arrow_type(argument.dataType()))
    call = Call(found, name, result, is_distinct, parameters, sql=str(expression.sql()))
    return call, argument


def _argument(catalyst: Catalyst, found: str, arguments: list[Any], *, is_distinct: bool) -> Any:
    """None: the function counts rows."""
    if found != "count":
        return arguments[0]
    nullable = [one for one in arguments if one.nullable()]
    if is_distinct:
        if len(arguments) == 1:
            return arguments[0]
        value = catalyst.struct(arguments)
        return catalyst.when(catalyst.all_present(nullable), value) if nullable else value
    if not nullable:
        return None
    if len(nullable) == 1:
        return nullable[0]
    return catalyst.when(catalyst.all_present(nullable), catalyst.literal(1))


def ranking(function: Any) -> str:
    """The name of a function that a condition can limit: row_number, rank or dense_rank."""
    return _WINDOWS[kind_of(function)]


def sort_key(order: Any, column: Column) -> SortKey:
    child = children(order)[0]
    kind = arrow_type(child.dataType())
    if pat.is_nested(kind):
        raise QueryRefused(
            f"ORDER BY {order.sql()}: {kind} cannot be sorted by in a view", offset=offset_of(order)
        )
    return SortKey(
        column(child),
        is_descending=kind_of(order.direction()) == "Descending",
        nulls_first=kind_of(order.nullOrdering()) == "NullsFirst",
    )


def window_call(catalyst: Catalyst, alias: Any, column: Column) -> WindowCall:
    expression = children(alias)[0]
    if kind_of(expression) != "WindowExpression":
        raise _refused(expression)
    function = expression.windowFunction()
    result = arrow_type(expression.dataType())
    if is_session(alias):
        return WindowCall(
            MERGED_SESSION, column(children(children(function)[0])[0]), result, _WHOLE
        )
    frame = _frame(expression.windowSpec().frameSpecification(), expression)
    kind = kind_of(function)
    if kind == "AggregateExpression":
        return _over_frame(catalyst, function, column, result, frame)
    found = _WINDOWS.get(kind)
    if found is None:
        raise _refused(expression)
    if found in ("lag", "lead"):
        return _shifted(found, function, column, result)
    if found == "ntile":
        return WindowCall(found, None, result, _WHOLE, number=int(function.buckets().eval(None)))
    if found == "nth_value":
        number = int(function.offset().eval(None))
        return WindowCall(
            found,
            column(function.input()),
            result,
            frame,
            number=number,
            ignores_nulls=bool(function.ignoreNulls()),
        )
    return WindowCall(found, None, result, _WHOLE)


def _over_frame(
    catalyst: Catalyst, expression: Any, column: Column, result: pa.DataType, frame: Frame
) -> WindowCall:
    function = expression.aggregateFunction()
    found = _AGGREGATES.get(kind_of(function))
    is_try = str(function.prettyName()).startswith("try_")
    if found not in FUNCTIONS or expression.isDistinct() or is_try:
        raise _refused(expression)
    ignores_nulls = found in ("first", "last") and bool(function.ignoreNulls())
    argument = _argument(catalyst, found, children(function), is_distinct=False)
    chosen = expression.filter()
    if chosen.isDefined():
        one = catalyst.literal(1) if argument is None else argument
        argument = catalyst.when(chosen.get(), one)
    if argument is None:
        return WindowCall(found, None, result, frame)
    _check_type(expression, found, arrow_type(argument.dataType()))
    return WindowCall(found, column(argument), result, frame, ignores_nulls=ignores_nulls)


def _shifted(found: str, function: Any, column: Column, result: pa.DataType) -> WindowCall:
    number = int((function.inputOffset() if found == "lag" else function.offset()).eval(None))
    default = function.default()
    is_null = kind_of(default) == "Literal" and default.value() is None
    return WindowCall(
        found,
        column(function.input()),
        result,
        _WHOLE,
        number=number,
        default=None if is_null else column(default),
        ignores_nulls=bool(function.ignoreNulls()),
    )


def _frame(frame: Any, expression: Any) -> Frame:
    if kind_of(frame) != "SpecifiedWindowFrame":
        return _WHOLE
    bounds: list[float | None] = []
    for bound in (frame.lower(), frame.upper()):
        kind = kind_of(bound)
        if kind in ("UnboundedPreceding", "UnboundedFollowing"):
            bounds.append(None)
        elif kind == "CurrentRow":
            bounds.append(0)
        else:
            value = bound.eval(None)
            is_exact = kind_of(bound.dataType()) not in _INEXACT_INTERVALS
            if not isinstance(value, int | float) or not is_exact:
                raise QueryRefused(
                    "a RANGE of months, years or decimals cannot be maintained incrementally",
                    detail=str(expression.sql()),
                    hint="intervals of days, hours, minutes and seconds can, and other numbers",
                    offset=offset_of(expression),
                )
            bounds.append(value)
    return Frame(kind_of(frame.frameType()) == "RowFrame", bounds[0], bounds[1])


def _of_texts(expression: Any, function: Any) -> tuple[str, str]:
    """The delimiter, and the order: of the values themselves."""
    value, delimiter, *orders = children(function)
    by = [children(order)[0] for order in orders]
    is_text = pat.is_string(arrow_type(value.dataType()))
    if not is_text or any(not one.semanticEquals(value) for one in by):
        raise QueryRefused(
            f"{expression.sql()} cannot be maintained incrementally",
            hint="texts can be joined in their own order: string_agg(name, ', ')",
            offset=offset_of(expression),
        )
    text = delimiter.eval(None)
    is_descending = any(kind_of(order.direction()) == "Descending" for order in orders)
    return "" if text is None else str(text), DESCENDING if is_descending else ASCENDING


def _check_plain_percentile(function: Any) -> None:
    value = function.percentageExpression().eval(None)
    frequency = function.frequencyExpression()
    is_plain = kind_of(frequency) == "Literal" and str(frequency) == "1"
    if not isinstance(value, int | float) or not is_plain or function.discrete():
        raise QueryRefused(
            f"{function.sql()} cannot be maintained incrementally",
            hint="percentile(column, 0.5) and median(column) can",
            offset=offset_of(function),
        )


def _check_type(expression: Any, found: str, kind: pa.DataType) -> None:
    is_number = pat.is_integer(kind) or pat.is_decimal(kind) or pat.is_floating(kind)
    needs_number = found not in (
        "count", "min", "max", "first", "last", "any_value", "collect_list", "collect_set",
        "string_agg", *BY,
    )  # fmt: skip
    if (needs_number and not is_number) or (found != "count" and pat.is_nested(kind)):
        raise QueryRefused(
            f"{expression.sql()} cannot be maintained incrementally",
            detail=f"of {kind}",
            offset=offset_of(expression),
        )


def _refused(expression: Any) -> QueryRefused:
    return QueryRefused(
        f"{expression.sql()} cannot be maintained incrementally",
        hint="aggregate functions of views are " + ", ".join(sorted(set(_AGGREGATES.values()))),
        offset=offset_of(expression),
    )
