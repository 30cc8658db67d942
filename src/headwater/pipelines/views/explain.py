"""The incremental plan of a view as a tree: what each step does, what it stores, what grows."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running.loaded_pipeline import Pipeline, described
from headwater.pipelines.views.composition import ComposedQuery, composed
from headwater.pipelines.views.nodes.aggregate import Aggregate, Call
from headwater.pipelines.views.nodes.join import Join
from headwater.pipelines.views.nodes.result import ResultChanges
from headwater.pipelines.views.nodes.upserts import Upserts
from headwater.pipelines.views.plan_steps import Step
from headwater.pipelines.views.plans.catalyst import children, items, kind_of, parts_of
from headwater.pipelines.views.plans.outline import OutlineStep
from headwater.pipelines.views.plans.sessions import is_session
from headwater.pipelines.views.query import Result, table_name
from headwater.pipelines.views.view_file import write_view

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.pipelines.flow import Flow, Write
    from headwater.pipelines.settings import ViewSettings

_AS_ABOVE: Final = ", as above"
_LONGEST: Final = 160  # characters of an expression
_KINDS: Final = {"Expand": "sets", "Generate": "explode", "LocalRelation": "values"}
_LIMITS: Final = ("GlobalLimit", "LocalLimit", "Offset")
_PASSED: Final = ("Project", "Sort", "ResolvedHint", "Repartition", "RepartitionByExpression")
_JOINS: Final = {
    "Inner": "join", "Cross": "cross join", "LeftOuter": "left join", "RightOuter": "right join",
    "FullOuter": "full join", "LeftSemi": "rows that have a match", "LeftAnti": "rows without a"
    " match", "ExistenceJoin": "whether there is a match", "LeftSingle": "left join",
}  # fmt: skip


def explained(
    pipeline: Pipeline, settings: "ViewSettings", base: "Path", reader: LiveReader
) -> Step:
    """Builds the view's plan, and reads no record. Raises what `view check` shows."""
    query = composed(settings, base)
    results: list[Result] = []
    flow = described(
        _flow(pipeline, reader), lambda flow: results.append(write_view(settings, query, flow))
    )
    (write,) = flow.writes
    return steps_of(query, write, results[0])


def steps_of(query: ComposedQuery, write: "Write", result: Result) -> Step:
    """Of a view that was translated."""
    return _Explanation(query, write, result).result()


def _flow(pipeline: Pipeline, reader: LiveReader) -> "Flow":
    from headwater.pipelines.flow import Flow

    return Flow(pipeline.spark, pipeline.name, reader, pipeline.environment.sinks)


class _Explanation:
    def __init__(self, query: ComposedQuery, write: "Write", result: Result) -> None:
        self._query = query
        self._write = write
        self._result = result
        self._operators = {built.name: built.operator for built in write.operators}

    def result(self) -> Step:
        top = self._result.outline.result
        is_unique = all(
            operator.is_unique
            for operator in map(self._operators.get, top.operators)
            if isinstance(operator, ResultChanges)
        )
        key = ", ".join(self._write.key)
        inputs = self._inputs(top)
        if is_unique:
            names = tuple(top.operators)
            return Step("write", f"write to {self._write.name}", key, "", "", names, inputs=inputs)
        stores = "its rows, because the query does not imply that the key is unique"
        grows = "the rows of the result"
        return Step(
            "write",
            f"write to {self._write.name}",
            key,
            stores,
            grows,
            tuple(top.operators),
            inputs=inputs,
        )

    def _inputs(self, step: OutlineStep) -> tuple[Step, ...]:
        return tuple(self._step(one) for one in step.inputs)

    def _step(self, step: OutlineStep) -> Step:
        if step.is_shared:
            return self._again(step)
        plan, kind = step.plan, kind_of(step.plan)
        inputs = self._inputs(step)
        names = tuple(step.operators)
        if kind == "LogicalRDD":
            return self._table(step)
        if kind == "Join":
            operators = [self._operators.get(name) for name in names]
            is_product = any(isinstance(one, Join) and one.is_product for one in operators)
            return _join(plan, names, inputs, is_product=is_product)
        if kind == "Aggregate":
            calls = [
                call
                for operator in map(self._operators.get, names)
                if isinstance(operator, Aggregate)
                for call in operator.calls
            ]
            return _aggregate(plan, calls, names, inputs)
        if kind == "Window":
            return _window(plan, names, inputs)
        if kind == "WindowGroupLimit":
            return _top(plan, names, inputs)
        if kind in _LIMITS:
            return _limit(plan, names, inputs)
        words: Mapping[str, Callable[[], str]] = {
            "Filter": lambda: f"filter {_sql(plan.condition())}",
            "Union": lambda: "union of all rows",
            "Expand": lambda: "rows for each grouping set, or each DISTINCT",
            "Generate": lambda: f"rows of {_sql(plan.generator())}",
            "LocalRelation": lambda: "rows that the query has itself",
        }
        if names:
            grows = "the rows of its input"
            if not items(plan.subqueries()):
                does = words.get(kind, kind.lower)()
                return Step(
                    kind.lower(), does, "", "rows of its input", grows, names, inputs=inputs
                )
            does = words["Filter"]() if kind == "Filter" else "scalar subqueries"
            stores = "all rows of its input, and those of subqueries"
            does += ", joined with their rows"
            return Step("subqueries", does, "", stores, grows, names, inputs=inputs)
        if kind not in words and len(inputs) == 1:  # a projection
            return inputs[0]
        does = words[kind]() if kind in words else kind
        return Step(_KINDS.get(kind, kind.lower()), does, inputs=inputs)

    def _again(self, step: OutlineStep) -> Step:
        """An equal step has its inputs and its state."""
        plan = step.plan
        while kind_of(plan) in _PASSED:
            (plan,) = children(plan)
        made = self._step(OutlineStep(plan))
        does = made.does.removesuffix(_AS_ABOVE) + _AS_ABOVE
        return Step(made.kind, does, topic=made.topic)

    def _table(self, step: OutlineStep) -> Step:
        name = table_name(step.plan)
        topic = self._query.tables[name].topic
        if self._query.tables[name].is_changes:
            view = self._query.tables[name].view
            read = (view.table or view.name) if view is not None else topic
            return Step("changes", f"changes of {topic}: each is a row", topic=read)
        found = {
            operator_name: operator
            for operator_name, operator in self._operators.items()
            if isinstance(operator, Upserts) and operator.table == name
        }
        for operator_name in step.operators:
            if operator_name in found:
                operator = found[operator_name]
                stores = f"its rows: {', '.join(operator.columns.names)}"
                key, grows = ", ".join(operator.key), "the rows of the table"
                names = tuple(step.operators)
                return Step("table", f"table {topic}", key, stores, grows, names, topic)
        if found:  # another step has read it
            return Step("table", f"table {topic}{_AS_ABOVE}", topic=topic)
        return Step("topic", f"topic {topic}: each record is a row", topic=topic)


def _join(plan: Any, names: tuple[str, ...], inputs: tuple[Step, ...], *, is_product: bool) -> Step:
    how = str(plan.joinType()).partition("(")[0]
    condition = plan.condition()
    on = f" on {_sql(condition.get())}" if condition.isDefined() else ""
    grows = "the rows of both sides"
    if is_product:  # no equality says which rows meet
        grows += ", and the work with their product"
    does = f"{_JOINS.get(how, how)}{on}"
    return Step("join", does, "", "the rows of both sides", grows, names, inputs=inputs)


def _window(plan: Any, names: tuple[str, ...], inputs: tuple[Step, ...]) -> Step:
    by = _list(plan.partitionSpec())
    expressions = items(plan.windowExpressions())
    kind, does = "window", ", ".join(_sql(children(one)[0]) for one in expressions)
    if all(is_session(one) for one in expressions):
        kind, does = "sessions", "the session of each row"
    stores, grows = "all rows of its input", "the rows of its input"
    return Step(kind, does, by, stores, grows, names, inputs=inputs)


def _top(plan: Any, names: tuple[str, ...], inputs: tuple[Step, ...]) -> Step:
    does = f"the first {plan.limit()} rows, order by {_list(plan.orderSpec())}"
    by = _list(plan.partitionSpec())
    stores, grows = "all rows of its input", "the rows of its input"
    return Step("limit", does, by, stores, grows, names, inputs=inputs)


def _aggregate(
    plan: Any, called: Sequence[Call], names: tuple[str, ...], inputs: tuple[Step, ...]
) -> Step:
    found = [
        _sql(part)
        for result in items(plan.aggregateExpressions())
        for part in parts_of(result)
        if kind_of(part) == "AggregateExpression"
    ]
    calls = ", ".join(dict.fromkeys(found))
    by = _list(plan.groupingExpressions())
    does = calls or "distinct rows"
    if any(not call.is_inverse for call in called):
        stores = "one row for each group, and the values of functions that cannot subtract"
        grows = "the groups and their different values"
        return Step("group", does, by, stores, grows, names, inputs=inputs)
    if not by:
        return Step("group", does, by, "one row", "", names, inputs=inputs)
    return Step("group", does, by, "one row for each group", "the groups", names, inputs=inputs)


def _limit(plan: Any, names: tuple[str, ...], inputs: tuple[Step, ...]) -> Step:
    numbers = []
    while kind_of(plan) in _LIMITS:
        word, count = (
            ("offset", plan.offsetExpr())
            if kind_of(plan) == "Offset"
            else ("limit", plan.limitExpr())
        )
        numbers.append(f"{word} {_sql(count)}")
        (plan,) = children(plan)
    if kind_of(plan) == "Project":
        (plan,) = children(plan)
    order = f"order by {_list(plan.order())}, " if kind_of(plan) == "Sort" else ""
    shown = ", ".join(dict.fromkeys(reversed(numbers)))
    stores, grows = "all rows of its input", "the rows of its input"
    return Step("limit", f"{order}{shown}", "", stores, grows, names, inputs=inputs)


def _list(expressions: Any) -> str:
    return ", ".join(_sql(one) for one in items(expressions))


def _sql(expression: Any) -> str:
    text = str(expression.sql()).replace("`", "")
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
