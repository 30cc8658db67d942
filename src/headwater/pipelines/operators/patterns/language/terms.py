"""Terms of conditions that look at other rows: sqlglot's tree as tuples, of which some are leaves.

What a condition computes of single rows is columns of Spark's; terms are the operators between
leaves. They are settings of the operator, and go to Spark's workers (conditions.py).
"""

from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from headwater.pipelines.operators.patterns.language.expressions import Expression
from headwater.pipelines.operators.patterns.matching.conditions import Term
from headwater.pipelines.operators.patterns.matching.leaves import Navigation

_BINARY: Final[dict[type[exp.Expression], str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%",
    exp.And: "and", exp.Or: "or",
}  # fmt: skip
_UNITS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3_600, "DAY": 86_400, "WEEK": 604_800}


def term_of(expression: Expression) -> Term:
    """Raises PipelineError for what conditions with other rows do not have."""
    return _MatchTerms(expression).term(expression.tree)


class Terms:
    """The operators that all conditions in Python have; leaves, and what else there is, are left
    to those who derive from it.
    """

    def leaf(self, node: Any) -> Term | None:
        """What the node takes from rows; None: it is no leaf."""
        raise NotImplementedError

    def other(self, node: Any) -> Term:
        """Of a node that is no operator. Raises PipelineError."""
        raise NotImplementedError

    def term(self, node: Any) -> Term:
        if isinstance(node, exp.Paren):
            return self.term(node.this)
        found_leaf = self.leaf(node)
        if found_leaf is not None:
            return found_leaf
        if type(node) in _BINARY:
            return _BINARY[type(node)], self.term(node.this), self.term(node.expression)
        if isinstance(node, exp.Not):
            return "not", self.term(node.this)
        if isinstance(node, exp.Neg):
            return "negative", self.term(node.this)
        if isinstance(node, exp.Abs):
            return "abs", self.term(node.this)
        if isinstance(node, exp.Between):
            value, low, high = (self.term(node.args[part]) for part in ("this", "low", "high"))
            return "and", (">=", value, low), ("<=", value, high)
        if isinstance(node, exp.In) and node.expressions:
            value = self.term(node.this)
            found: Term = ("constant", False)
            for item in node.expressions:
                found = ("or", found, ("=", value, self.term(item)))
            return found
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null | exp.Boolean):
            is_null = isinstance(node.expression, exp.Null)
            wanted = None if is_null else bool(node.expression.this)
            return "is", self.term(node.this), ("constant", wanted)
        if isinstance(node, exp.Coalesce):
            return ("coalesce", *map(self.term, (node.this, *node.expressions)))
        if isinstance(node, exp.Case | exp.If):
            return self._case(node)
        return self.other(node)

    def _case(self, node: exp.Case | exp.If) -> Term:
        cases = [node] if isinstance(node, exp.If) else node.args["ifs"]
        otherwise = node.args.get("false" if isinstance(node, exp.If) else "default")
        found: Term = ("constant", None) if otherwise is None else self.term(otherwise)
        for case in reversed(cases):
            when = self.term(case.this)
            if isinstance(node, exp.Case) and node.this is not None:
                when = ("=", self.term(node.this), when)
            found = ("if", when, self.term(case.args["true"]), found)
        return found


class _MatchTerms(Terms):
    """Of rows of a match: what is computed of one row alone is a leaf."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression

    def leaf(self, node: Any) -> Term | None:
        expression = self._expression
        if expression.is_call(node):
            return "leaf", expression.leaf(node)
        constant = constant_of(node)
        if constant is not None:
            return constant
        if expression.is_row_level(node):
            return "leaf", Navigation(expression.row_column(node))
        return ("leaf", expression.column_leaf(node)) if isinstance(node, exp.Column) else None

    def other(self, node: Any) -> Term:
        raise self._expression.refusal(
            f"cannot use {node.sql(dialect='spark')} between rows",
            node,
            hint="of one row Spark computes anything, PREV(lower(name)); between rows there are"
            " and, or, not, =, <>, <, <=, >, >=, <=>, between, in, is null, + - * / %, abs,"
            " coalesce, case and if",
        )


def constant_of(node: Any) -> Term | None:
    if isinstance(node, exp.Null):
        return "constant", None
    if isinstance(node, exp.Boolean):
        return "constant", bool(node.this)
    if isinstance(node, exp.Literal):
        if node.is_string:
            return "constant", str(node.this)
        text = str(node.this)
        if text.isdigit():
            return "constant", int(text)
        return ("constant", float(text)) if "e" in text.lower() else ("constant", Decimal(text))
    if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal):
        scale = _UNITS.get(str(node.args.get("unit")).upper().removesuffix("S"))
        text = str(node.this.this)
        if scale is not None and text.lstrip("+-").isdigit():
            return "constant", timedelta(seconds=int(text) * scale)
    return None
