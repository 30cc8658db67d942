"""The text of a view's file: its tables, and mistakes that need no Spark, by line and column.

sqlglot parses it only to find the names of tables, and to report a syntax error before Spark has
started. What the query means is up to Spark.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import sqlglot
from sqlglot import TokenType, exp

from headwater.errors import ConfigError, QueryRefused
from headwater.spelling import nearest

_UNCLOSED: Final = re.compile(r"Missing (\S+) from \d+:(\d+)")
_KEYWORDS: Final = (
    "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "UNION", "EXCEPT",
    "INTERSECT", "JOIN", "INNER", "OUTER", "CROSS", "LATERAL", "USING", "DISTINCT", "BETWEEN",
    "EXISTS", "PARTITION", "QUALIFY", "WITH", "CASE", "WHEN", "THEN", "ELSE", "FILTER", "OVER",
    "ROWS", "RANGE", "CAST", "NULL", "LIKE", "INTERVAL",
)  # fmt: skip
_NAMES: Final = (TokenType.VAR, TokenType.IDENTIFIER)
_WORD: Final = re.compile(r"[A-Za-z_]+")
_WORDS_BEFORE: Final = 3  # of a syntax error: one of them may be misspelled


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table in the text of a query, from `start` to (not including) `end`."""

    name: str  # with dots between its parts
    start: int
    end: int
    has_alias: bool
    is_changes: bool = False  # CHANGES OF name: its changes instead of its rows
    clause: slice | None = None  # behind MATCH_RECOGNIZE: the text between its brackets

    def __str__(self) -> str:
        return f"changes of {self.name}" if self.is_changes else self.name


@dataclass(frozen=True, slots=True)
class SqlText:
    """The text of one view, for errors about it."""

    view: str
    file: str  # as messages name it
    text: str

    @classmethod
    def read(cls, view: str, file: Path) -> "SqlText":
        """Raises ConfigError."""
        try:
            return cls(view, file.name, file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"view {view}: {file} cannot be read", detail=str(error)) from None

    @property
    def end(self) -> int:
        """Where the query ends: in front of a semicolon at the end."""
        tokens = sqlglot.tokenize(self.text, read="spark")
        while tokens and tokens[-1].text == ";":
            tokens.pop()
        return tokens[-1].end + 1 if tokens else 0

    def place(self, offset: int) -> str:
        """revenue.sql:3:14"""
        before = self.text[:offset]
        return f"{self.file}:{before.count(chr(10)) + 1}:{offset - before.rfind(chr(10))}"

    def refused(
        self, what: str, *, detail: str = "", hint: str = "", offset: int | None = None
    ) -> QueryRefused:
        place = "" if offset is None else self.place(offset)
        where = f"{place}: " if place else ""
        return QueryRefused(
            f"view {self.view}: {where}{what}", detail=detail, hint=hint, place=place
        )

    def references(self) -> list[TableReference]:
        """Tables of all subqueries, in the order of the text, but not those that a WITH defines.
        Raises QueryRefused unless the text is one query.
        """
        found = []
        tokens = self._tokens()
        changes = _changes(tokens)
        clauses = self._clauses(tokens)
        hidden = [*changes.values(), *clauses]
        for table in self._parsed(_without(self.text, hidden)).find_all(exp.Table):
            parts = [part for part in table.parts if isinstance(part, exp.Identifier)]
            if not parts:
                continue
            start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
            of = changes.get(start)
            if of is None and _is_defined_by_with(table):
                continue
            name = ".".join(part.name for part in parts)
            from_ = start if of is None else of.start
            clause = next((one for one in clauses if not self.text[end : one.start].strip()), None)
            inner = None
            if clause is not None:
                clauses.remove(clause)
                inner = slice(self.text.index("(", clause.start) + 1, clause.stop - 1)
                end = clause.stop
            has_alias = bool(table.alias)
            found.append(TableReference(name, from_, end, has_alias, of is not None, inner))
        if clauses:
            raise self.refused(
                "MATCH_RECOGNIZE stands behind the name of a table",
                hint="FROM events MATCH_RECOGNIZE (…) AS m; a subquery can be a pipeline with"
                " hw.match",
                offset=clauses[0].start,
            )
        return sorted(found, key=lambda reference: reference.start)

    def _tokens(self) -> Sequence[Any]:
        try:
            return sqlglot.tokenize(self.text, read="spark")
        except sqlglot.errors.SqlglotError as error:
            raise self._not_closed(error) from None

    def _clauses(self, tokens: Sequence[Any]) -> list[slice]:
        """From where to where each MATCH_RECOGNIZE (…) is."""
        found = []
        for number, (token, following) in enumerate(pairwise(tokens)):
            is_keyword = token.text.upper() == "MATCH_RECOGNIZE" and following.text == "("
            if not is_keyword or token.token_type == TokenType.IDENTIFIER:
                continue
            depth = 0
            for inner in tokens[number + 1 :]:
                depth += inner.token_type == TokenType.L_PAREN
                depth -= inner.token_type == TokenType.R_PAREN
                if depth == 0:
                    found.append(slice(token.start, inner.end + 1))
                    break
            else:
                raise self.refused("( is not closed", offset=following.start)
        return found

    def _parsed(self, text: str) -> exp.Query:
        """Of the text as sqlglot can read it: every character is where it is in the file."""
        try:
            parsed = sqlglot.parse(text, read="spark")
        except sqlglot.errors.ParseError as error:
            raise self._syntax_error(error) from None
        except sqlglot.errors.SqlglotError as error:
            raise self._not_closed(error) from None
        except RecursionError:
            raise self.refused("the query is nested too deeply") from None
        trees = [
            tree for tree in parsed if tree is not None and not isinstance(tree, exp.Semicolon)
        ]
        if len(trees) != 1 or not isinstance(trees[0], exp.Query):
            statements = "no statement" if not trees else f"{len(trees)} statements"
            if len(trees) == 1:
                statement = trees[0].key.upper()
                statements = f"{'an' if statement[0] in 'AIU' else 'a'} {statement}"
            raise self.refused(
                "the file has to have one SELECT", detail=f"{self.file} has {statements}"
            )
        self._check_not_recursive(trees[0])
        return trees[0]

    def _check_not_recursive(self, query: exp.Query) -> None:
        for with_ in query.find_all(exp.With):
            for one in with_.expressions if with_.recursive else ():
                table = next((at for at in one.find_all(exp.Table) if at.name == one.alias), None)
                if table is not None:
                    raise self.refused(
                        f"{one.alias} reads itself: recursive queries cannot be maintained"
                        " incrementally",
                        hint="join the table with itself, as many levels as are needed",
                        offset=table.this.meta.get("start"),
                    )

    def _syntax_error(self, error: sqlglot.errors.ParseError) -> QueryRefused:
        first = (error.errors or [{}])[0]
        text = str(first.get("highlight") or "")
        offset = self._offset(first.get("line"), first.get("col"))
        if offset is None:
            return self.refused("syntax error", detail=str(error).splitlines()[0])
        offset = max(0, offset - len(text) + 1)  # sqlglot has the column of the last character
        described = str(first.get("description") or "").partition(" but got ")[0]
        what, detail = f"syntax error near {text!r}", described
        if described.startswith("Invalid expression"):
            what, detail = f"unexpected {text!r}", ""
        elif described.startswith("Required keyword"):
            what, detail = f"something is missing near {text!r}", ""
        elif described.startswith(("Expecting ", "Expected ")):
            what, detail = f"expected {described.partition(' ')[2]} near {text!r}", ""
        words = _WORD.findall(self.text[: offset + len(text)])[-_WORDS_BEFORE:]
        meant = next(filter(None, map(_misspelled, reversed(words))), "")
        return self.refused(
            what,
            detail=detail,
            hint=f"did you mean {meant}?" if meant else "",
            offset=offset,
        )

    def _not_closed(self, error: Exception) -> QueryRefused:
        found = _UNCLOSED.search(str(error.__cause__))
        if found:
            offset = int(found[2])
            return self.refused(f"{found[1]} is not closed", offset=offset)
        offset = self.text.rfind("/*")
        return self.refused("a comment is not closed", offset=None if offset < 0 else offset)

    def _offset(self, line: int | None, column: int | None) -> int | None:
        if not line or not column:
            return None
        lines = self.text.split("\n")[: line - 1]
        return sum(len(one) + 1 for one in lines) + column - 1


def _changes(tokens: Sequence[Any]) -> dict[int, slice]:
    """Where names behind CHANGES OF begin, and from where to where these words stand."""
    found = {}
    for one, other, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        words = (one.text.upper(), other.text.upper())
        is_bare = one.token_type == other.token_type == TokenType.VAR
        if is_bare and words == ("CHANGES", "OF") and name.token_type in _NAMES:
            found[name.start] = slice(one.start, other.end + 1)
    return found


def _without(text: str, words: Sequence[slice]) -> str:
    """With spaces instead of these words."""
    for word in words:
        text = text[: word.start] + " " * (word.stop - word.start) + text[word.stop :]
    return text


def _misspelled(word: str) -> str:
    """The keyword that is meant, or ""."""
    meant = nearest(word.upper(), _KEYWORDS) if len(word) > 2 else ""
    return meant if meant != word.upper() else ""


def _is_defined_by_with(table: exp.Table) -> bool:
    """Whether a WITH around it has a query of this name. A query of a WITH has those before it."""
    if len(table.parts) > 1:
        return False
    inside: Any = table
    while (node := inside.parent) is not None:
        if isinstance(node, exp.With):
            visible = node.expressions
            if not node.recursive:
                visible = visible[: visible.index(inside)]
        else:
            with_ = node.args.get("with_")
            visible = with_.expressions if with_ is not None and with_ is not inside else []
        if any(one.alias.lower() == table.name.lower() for one in visible):
            return True
        inside = node
    return False
