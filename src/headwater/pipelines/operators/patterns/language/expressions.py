"""Expressions of DEFINE and MEASURES: what Spark computes of each row, and the leaves of matches.

sqlglot reads them as Spark's SQL. Names that only a pattern gives a meaning (FIRST, LAST, PREV,
NEXT, CLASSIFIER, MATCH_NUMBER, the aggregates, RUNNING and FINAL before them) are changed in its
tokens: sqlglot would read FIRST(x, 2) as Spark's function, and drop the 2. Places in tokens stay
those of the text, so text is replaced in place, and what Spark gets is what the user has written.
"""

from collections.abc import Iterator
from typing import Any, Final

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.dialect import Dialect

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.names import Names
from headwater.pipelines.operators.patterns.language.pattern_text import place_in
from headwater.pipelines.operators.patterns.matching.leaves import (
    AGGREGATES,
    COUNT,
    Aggregate,
    Leaf,
    MatchNumber,
    Navigation,
    Variables,
)

_MARK: Final = "__HW_"
_PHYSICAL: Final = {"PREV": -1, "NEXT": 1}
_LOGICAL: Final = ("FIRST", "LAST")
_CLASSIFIER, _MATCH_NUMBER = "CLASSIFIER", "MATCH_NUMBER"
_CALLS: Final = {
    *_PHYSICAL, *_LOGICAL, _CLASSIFIER, _MATCH_NUMBER, *(kind.upper() for kind in AGGREGATES)
}  # fmt: skip
_MODES: Final = ("RUNNING", "FINAL")
_MOST_ROWS: Final = 10_000  # that an offset reaches


class Expression:
    """One expression as it was written. Raises PipelineError, with its place, if it is wrong."""

    def __init__(self, what: str, text: str, names: Names, own: str | None = None) -> None:
        """`own`: the variable that it is the condition of."""
        self._what = what
        self._text = text
        self._names = names
        self._own = names.variables_of(own) if own is not None else None
        if not isinstance(text, str) or not text.strip():
            raise PipelineError(f"{what} is empty")
        self._tokens, self._modes = self._marked()
        try:
            trees = Dialect.get_or_raise("spark").parser().parse(self._tokens, text)
        except (sqlglot.errors.SqlglotError, RecursionError) as error:
            raise self._syntax_error(error) from None
        if len(trees) != 1 or trees[0] is None:
            raise self.refusal("is no expression")
        self.tree: Any = trees[0]
        for node in self.tree.find_all(exp.AggFunc, exp.Window, exp.Subquery, exp.Select):
            raise self.refusal(
                f"uses what a pattern does not have: {node.sql(dialect='spark')}",
                hint="aggregates are " + ", ".join(AGGREGATES) + ", without DISTINCT and OVER",
            )
        if isinstance(self.tree, exp.Alias | exp.Star):
            raise self.refusal("is no expression", hint="without AS: its name is given beside it")

    # ── the columns of Spark ──────────────────────────────────────────────────────────────────

    @property
    def is_of_row(self) -> bool:
        """Whether it looks at nothing but the row itself."""
        return self.is_row_level(self.tree)

    def is_row_level(self, node: Any) -> bool:
        return not any(
            self.is_call(part) or (isinstance(part, exp.Column) and self.is_foreign(part))
            for part in node.walk()
        )

    def row_column(self, node: Any = None) -> int:
        """The column for the expression, or for a part of it, which is_row_level."""
        if node is None:
            return self._names.column(self._source(0, len(self._text)), self._what)
        if any(token.token_type == TokenType.DCOLON for token in self._tokens):
            raise self.refusal(
                "uses ::", hint="write CAST(x AS type)"
            )  # which sqlglot reads otherwise
        bare = node.copy()
        for column in [bare] if isinstance(bare, exp.Column) else [*bare.find_all(exp.Column)]:
            if self._qualifier(column) is not None:
                _drop_first(column)
        return self._names.column(bare.sql(dialect="spark"), self._what)

    def measure(self, names_of_leaves: dict[Leaf, str], *, is_final: bool) -> str:
        """The text for Spark, in which leaves are columns. `is_final`: unless RUNNING is there."""
        parts, at = [], 0
        for node in self._outermost():
            if self.is_call(node):
                begin, end = self._span(node)
                leaf = self.leaf(node, is_final=is_final)
            else:
                begin, end = _span_of_column(node)
                leaf = self.column_leaf(node, is_final=is_final)
            name = names_of_leaves.setdefault(leaf, f"__m{len(names_of_leaves)}")
            parts += [self._text[at:begin], name]
            at = end
        return "".join([*parts, self._text[at:]])

    # ── leaves ────────────────────────────────────────────────────────────────────────────────

    def is_call(self, node: Any) -> bool:
        return isinstance(node, exp.Anonymous) and str(node.this).startswith(_MARK)

    def is_foreign(self, column: exp.Column) -> bool:
        """Whether it is of a row of another variable than that of the condition."""
        qualifier = self._qualifier(column)
        return qualifier is not None and qualifier != self._own

    def column_leaf(self, node: exp.Column, *, is_final: bool = False) -> Navigation:
        """A column outside of navigation: LAST is meant."""
        variables = self._qualifier(node)
        begin, end = _span_of_column(node)
        return Navigation(
            self._names.column(self._source(begin, end), self._what), variables, is_final=is_final
        )

    def leaf(self, node: exp.Anonymous, *, is_final: bool = False) -> Leaf:
        name = self._name(node)
        mode = self._modes.get(node.meta.get("start", -1))
        is_final = is_final if mode is None else mode == "FINAL"
        if self._own is not None and (is_final or name == _MATCH_NUMBER):
            raise self.refusal(
                f"{'FINAL' if is_final else 'MATCH_NUMBER'} is for measures: a condition is"
                " evaluated before there is a match",
                node,
            )
        if name == _MATCH_NUMBER:
            if node.expressions:
                raise self.refusal("MATCH_NUMBER() takes no argument", node)
            return MatchNumber()
        if name.lower() in AGGREGATES:
            return self._aggregate(node, name.lower(), is_final)
        if name not in _PHYSICAL:
            return self._logical(node, is_final)
        shift = _PHYSICAL[name] * self._offset(node, 1)
        inner = node.expressions[0]
        if self.is_call(inner) and self._name(inner) in (*_LOGICAL, _CLASSIFIER):
            inner_mode = self._modes.get(inner.meta.get("start", -1))
            found = self._logical(inner, is_final if inner_mode is None else inner_mode == "FINAL")
        else:
            found = self._operand(node, is_final)
        is_current = found.variables == self._own and not found.is_first and not found.offset
        variables = None if is_current else found.variables
        return Navigation(
            found.column, variables, found.is_first, found.offset, shift, found.is_final
        )

    def _logical(self, node: exp.Anonymous, is_final: bool) -> Navigation:
        name = self._name(node)
        if name == _CLASSIFIER:
            return self._classifier(node, is_final)
        offset = self._offset(node, 0)
        inner = node.expressions[0]
        if self.is_call(inner) and self._name(inner) == _CLASSIFIER:
            found = self._classifier(inner, is_final)
        else:
            found = self._operand(node, is_final)
        return Navigation(found.column, found.variables, name == "FIRST", offset, 0, is_final)

    def _classifier(self, node: exp.Anonymous, is_final: bool) -> Navigation:
        if not node.expressions:
            return Navigation(None, None, is_final=is_final)
        (named,) = node.expressions if len(node.expressions) == 1 else (None,)
        variables = self._names.variables_of(named.name) if isinstance(named, exp.Column) else None
        if variables is None:
            raise self.refusal("CLASSIFIER takes a variable, or nothing", node)
        return Navigation(None, variables, is_final=is_final)

    def _aggregate(self, node: exp.Anonymous, kind: str, is_final: bool) -> Aggregate:
        if len(node.expressions) != 1:
            raise self.refusal(f"{kind} takes one argument", node)
        argument = node.expressions[0]
        star = argument.this if isinstance(argument, exp.Column) else argument
        if isinstance(star, exp.Star):
            if kind != COUNT:
                raise self.refusal(f"{kind} takes a column", node)
            variables = None
            if isinstance(argument, exp.Column):
                variables = self._names.variables_of(argument.table)
                if variables is None:
                    raise self.refusal(f"{argument.table} is no variable of the pattern", node)
            return Aggregate(kind, None, variables, is_final)
        found = self._operand(node, is_final)
        return Aggregate(kind, found.column, found.variables, is_final)

    def _operand(self, node: exp.Anonymous, is_final: bool) -> Navigation:
        """The first argument of a call: an expression over the columns of one variable."""
        argument = node.expressions[0]
        if isinstance(argument, exp.Distinct):
            raise self.refusal(f"{self._name(node)} has no DISTINCT in a pattern", node)
        for part in argument.walk():
            if self.is_call(part):
                raise self.refusal(
                    f"{self._name(part)} cannot be inside of {self._name(node)} here",
                    part,
                    hint="PREV(LAST(A.x, 1), 2) can be nested; others are computed side by side:"
                    " FIRST(A.x) - PREV(A.y)",
                )
        columns = [part for part in argument.walk() if isinstance(part, exp.Column)]
        if not columns:
            raise self.refusal(f"{self._name(node)} takes an expression over columns", node)
        found = {self._qualifier(column) for column in columns}
        if len(found) > 1:
            raise self.refusal(
                f"{self._name(node)} has columns of several variables",
                node,
                hint="all of A, all of B, or without a variable; SUBSET unites some",
            )
        begin, end = self._arguments(node)[0]
        return Navigation(
            self._names.column(self._source(begin, end), self._what), found.pop(), is_final=is_final
        )

    def _offset(self, node: exp.Anonymous, default: int) -> int:
        given = node.expressions
        if len(given) == 1:
            return default
        is_number = len(given) == 2 and isinstance(given[1], exp.Literal) and given[1].is_int
        if not is_number or int(given[1].this) > _MOST_ROWS:
            raise self.refusal(
                f"{self._name(node)} takes an expression and a number of rows",
                node,
                hint=f"a whole number up to {_MOST_ROWS}, no expression",
            )
        return int(given[1].this)

    def _qualifier(self, column: exp.Column) -> Variables:
        """The variables of `A.price`; None: it is a column alone."""
        parts = column.parts
        if len(parts) == 1:
            return None
        name = parts[0].name
        variables = self._names.variables_of(name)
        is_column = self._names.is_column(name)
        if variables is not None and is_column:
            raise self.refusal(
                f"{name} is ambiguous: a variable of the pattern, and a column",
                column,
                hint="call the variable otherwise",
            )
        if variables is None and not is_column:
            raise self.refusal(
                f"{name} is neither a variable of the pattern nor a column",
                column,
                hint="variables are " + ", ".join([*self._names.variables, *self._names.subsets]),
            )
        return variables

    # ── places in the text ────────────────────────────────────────────────────────────────────

    def _marked(self) -> tuple[list[Any], dict[int, str]]:
        """Tokens with the names of calls changed; and RUNNING or FINAL, by the start of a call."""
        try:
            tokens = sqlglot.tokenize(self._text, read="spark")
        except sqlglot.errors.SqlglotError as error:
            raise self._syntax_error(error) from None
        found: list[Any] = []
        modes: dict[int, str] = {}
        for at, token in enumerate(tokens):
            following = tokens[at + 1] if at + 1 < len(tokens) else None
            if following is not None and following.token_type == TokenType.L_PAREN:
                is_method = at > 0 and tokens[at - 1].token_type == TokenType.DOT
                if token.text.upper() in _CALLS and not is_method:
                    before = tokens[at - 1].text.upper() if at else ""
                    if before in _MODES:
                        found.pop()
                        modes[token.start] = before
                    token = _renamed(token, _MARK + token.text.upper())  # noqa: PLW2901
            found.append(token)
        return found, modes

    def _outermost(self) -> list[Any]:
        """Calls and columns that are in no other call, in the order of the text."""
        found = [*_outermost_in(self.tree, self.is_call)]
        return sorted(found, key=self._begin)

    def _begin(self, node: Any) -> int:
        return self._span(node)[0] if self.is_call(node) else _span_of_column(node)[0]

    def _span(self, call: exp.Anonymous) -> tuple[int, int]:
        begin = call.meta["start"]
        end = self._arguments(call)[-1][1]
        end = self._text.index(")", end) + 1
        mode = self._modes.get(begin)
        if mode is not None:
            begin = self._text.upper().rindex(mode, 0, begin)
        return begin, end

    def _arguments(self, call: exp.Anonymous) -> list[tuple[int, int]]:
        """Where each of its arguments is."""
        at = next(
            number for number, one in enumerate(self._tokens) if one.start == call.meta["start"]
        )
        depth, found = 0, []
        begin = self._tokens[at + 1].end + 1
        for token in self._tokens[at + 1 :]:
            depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
            depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
            if depth == 0 or (depth == 1 and token.token_type == TokenType.COMMA):
                found.append((begin, token.start))
                begin = token.end + 1
            if depth == 0:
                return found
        raise AssertionError(call)

    def _source(self, begin: int, end: int) -> str:
        """The text without the names of variables before columns."""
        parts, at = [], begin
        columns = [one for one in self.tree.walk() if isinstance(one, exp.Column)]
        spans = [
            (one.parts[0].meta["start"], one.parts[1].meta["start"])
            for one in columns
            if len(one.parts) > 1
            and not isinstance(one.this, exp.Star)
            and self._qualifier(one) is not None
        ]
        for first, last in sorted(spans):
            if begin <= first < end:
                parts.append(self._text[at:first])
                at = last - (self._text[last - 1] == "`")
        return "".join([*parts, self._text[at:end]]).strip()

    def _name(self, call: exp.Anonymous) -> str:
        return str(call.this).removeprefix(_MARK)

    def _syntax_error(self, error: Exception) -> PipelineError:
        found = getattr(error, "errors", None)
        place = ""
        if found and found[0].get("line"):
            place = f"line {found[0]['line']}, column {found[0]['col']}: {found[0]['description']}"
        return PipelineError(
            f"{self._what} is no expression of Spark's SQL",
            detail=place or str(error).partition("\n")[0],
            hint=self._text,
        )

    def refusal(self, what: str, node: Any = None, *, hint: str = "") -> PipelineError:
        at = 0
        if node is not None:
            starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
            at = min(starts, default=0)
        return PipelineError(f"{self._what}: {what}", detail=place_in(self._text, at), hint=hint)


def _renamed(token: Any, text: str) -> Any:
    return type(token)(
        TokenType.VAR, text, line=token.line, col=token.col, start=token.start, end=token.end
    )


def _span_of_column(column: exp.Column) -> tuple[int, int]:
    starts = [part.meta["start"] for part in column.parts]
    ends = [part.meta["end"] for part in column.parts]
    return min(starts), max(ends) + 1


def _drop_first(column: exp.Column) -> None:
    for part in ("catalog", "db", "table"):
        if column.args.get(part) is not None:
            column.set(part, None)
            return


def _outermost_in(node: Any, is_call: Any) -> Iterator[Any]:
    if is_call(node) or isinstance(node, exp.Column):
        yield node
        return
    for part in node.iter_expressions():
        yield from _outermost_in(part, is_call)
