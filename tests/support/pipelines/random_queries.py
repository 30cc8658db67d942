"""Random tables, changes of them, and random queries that Spark and DuckDB define alike.

What the two define differently is left out: averages and quotients of decimals (their types),
division by a column (an error or null), infinities, upper() of ß, the total of ROLLUP over no rows
(HAVING count(*) > 0 leaves it out), and every order that ORDER BY leaves open: windows and LIMIT
are ordered by all columns, where it matters. Doubles are multiples of 1/4, so that no sum of them
is rounded.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import nan
from random import Random
from typing import NamedTuple

from support.pipelines.view_driver import Table

_VALUES = {
    "int": [-1, 0, 1, 2, 3, 7],
    "decimal": [Decimal(text) for text in ("0.00", "1.10", "-3.33", "2.50", "99999.99")],
    "double": [0.0, -0.0, 0.25, 1.5, -2.75, nan],
    "string": ["", "a", "b", "ab", "B", "ß"],
    "date": [date(2024, 1, 31), date(2024, 2, 29), date(2025, 1, 1)],
    "boolean": [True, False],
    "timestamp": [datetime(2024, 1, 31, hour, minute, tzinfo=UTC)
                  for hour, minute in ((0, 0), (9, 59), (10, 0), (23, 30))],
}  # fmt: skip
_LITERALS = {
    "int": ["0", "1", "2", "5"],
    "decimal": ["1.10", "0.5", "-3.33"],
    "double": ["CAST(0.25 AS double)", "CAST(1.5 AS double)"],
    "string": ["''", "'a'", "'b'"],
    "date": ["date '2024-02-29'", "date '2024-12-31'"],
    "boolean": ["true", "false"],
    "timestamp": ["timestamp '2024-01-31 10:00:00'"],
}
_SQL_TYPES = {"int": ("int", "bigint"), "decimal": ("decimal(8,2)",)}
_KINDS = tuple(_VALUES)
_NUMBERS = ("int", "decimal", "double")


class Column(NamedTuple):
    name: str
    kind: str


@dataclass(frozen=True)
class Relation:
    """A SELECT, in brackets where it is part of another one."""

    text: str
    columns: tuple[Column, ...]
    is_distinct: bool = False  # by what the query says


class RandomTables:
    """A schema; `changes` are those of the next batch."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.tables: dict[str, Table] = {}
        self.columns: dict[str, tuple[Column, ...]] = {}
        for number in range(chance.randint(2, 3)):
            name = f"t{number}"
            key = chance.choice([("id",), ("id",), ("id", "part"), ()])
            columns = [Column(column, "int") for column in key]
            kinds = [chance.choice(_KINDS) for _ in range(chance.randint(1, 3))] + ["int"]
            columns += [Column(f"{kind[:3]}{at}", kind) for at, kind in enumerate(kinds)]
            self.columns[name] = tuple(columns)
            self.tables[name] = Table(", ".join(map(self._declared, columns)), key)

    def _declared(self, column: Column) -> str:
        return f"{column.name} {self._chance.choice(_SQL_TYPES.get(column.kind, (column.kind,)))}"

    def changes(self) -> dict[str, list[dict]]:
        chance = self._chance
        changes: dict[str, list[dict]] = {}
        for name, table in self.tables.items():
            changes[name] = [self._change(name, table) for _ in range(chance.randrange(6))]
            if changes[name] and chance.random() < 0.3:  # a row gets another key
                moved = changes[name][-1]
                if table.key and "_op" not in moved:
                    changes[name] += [
                        {column: moved[column] for column in table.key} | {"_op": "d"},
                        moved | {"id": chance.randrange(6)},
                    ]
            if table.key and chance.random() < 0.03:
                changes[name].insert(chance.randint(0, len(changes[name])), {"_op": "t"})
        return changes

    def _change(self, name: str, table: Table) -> dict:
        chance = self._chance
        key = {column: chance.randrange(6 if column == "id" else 2) for column in table.key}
        if table.key and chance.random() < 0.3:
            return key | {"_op": "d"}
        return {
            column: None if chance.random() < 0.2 else chance.choice(_VALUES[kind])
            for column, kind in self.columns[name]
        } | key


class RandomQuery:
    def __init__(self, chance: Random, tables: RandomTables) -> None:
        self._chance = chance
        self._tables = tables
        self._names = 0

    def text(self, depth: int) -> tuple[str, tuple[str, ...]]:
        """And its columns, which identify rows: those that are there several times are counted."""
        found = self._relation(depth)
        names = tuple(column.name for column in found.columns)
        if found.is_distinct and self._chance.random() < 0.7:
            return found.text, names
        listed = ", ".join(names)
        text = f"SELECT {listed}, count(*) AS times FROM ({found.text}) AS q GROUP BY {listed}"
        return text, names

    # Relations

    def _relation(self, depth: int) -> Relation:
        if depth <= 0:
            return self._table()
        made = self._chance.choices(
            [self._filter, self._project, self._join, self._semi_join, self._group, self._grouping,
             self._window, self._top, self._distinct, self._set, self._common, self._scalar,
             self._lateral, self._qualify],
            [2, 2, 4, 3, 4, 1, 3, 1, 1, 2, 1, 2, 1, 1],
        )[0]  # fmt: skip
        return made(depth - 1)

    def _table(self) -> Relation:
        name = self._chance.choice(list(self._tables.columns))
        return Relation(f"SELECT * FROM {name}", self._tables.columns[name])

    def _name(self, kind: str = "c") -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _filter(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        condition = self._condition(_of(alias, given))
        columns = ", ".join(column.name for column in given.columns)
        return Relation(
            f"SELECT {columns} FROM ({given.text}) AS {alias} WHERE {condition}",
            given.columns,
            given.is_distinct,
        )

    def _project(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        kinds = [self._chance.choice(_KINDS) for _ in range(self._chance.randint(1, 3))]
        chosen = [(self._expression(kind, inside), kind) for kind in kinds]
        chosen.append(self._chance.choice(inside))
        return self._select(chosen, f"FROM ({given.text}) AS {alias}")

    def _select(self, chosen: list, rest: str, *, is_distinct: bool = False) -> Relation:
        columns = tuple(Column(self._name(), kind) for _, kind in chosen)
        listed = ", ".join(
            f"{text} AS {column.name}" for (text, _), column in zip(chosen, columns, strict=True)
        )
        return Relation(f"SELECT {listed} {rest}", columns, is_distinct)

    def _join(self, depth: int) -> Relation:
        given = [self._relation(depth), self._relation(self._chance.randint(0, depth))]
        if self._chance.random() < 0.2:
            given[1] = given[0]
        aliases = self._name("x"), self._name("x")
        left, right = (_of(alias, one) for alias, one in zip(aliases, given, strict=True))
        how = self._chance.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
        on = "" if how == "CROSS JOIN" else f" ON {self._on(left, right)}"
        chosen = self._some(left, 3) + self._some(right, 3)
        return self._select(
            chosen, f"FROM ({given[0].text}) AS {aliases[0]} {how} ({given[1].text})"
            f" AS {aliases[1]}{on}",
        )  # fmt: skip

    def _on(self, left: list, right: list) -> str:
        """Equality nearly always; comparisons of both sides and conditions of one besides."""
        chance = self._chance
        pairs = [(one, other) for one in left for other in right if one[1] == other[1]]
        parts = []
        for _ in range(chance.choice([1, 1, 1, 2, 0])):
            if pairs:
                (one, _), (other, _) = chance.choice(pairs)
                parts.append(f"{one} {chance.choice(['=', '=', '=', _SAME])} {other}")
        if not parts or chance.random() < 0.3:
            if pairs and chance.random() < 0.7:
                (one, _), (other, _) = chance.choice(pairs)
                parts.append(f"{one} {chance.choice(['<', '<=', '<>'])} {other}")
            else:
                parts.append(self._comparison(chance.choice([left, right])))
        return " AND ".join(parts)

    def _some(self, columns: list, most: int) -> list:
        return self._chance.sample(columns, min(len(columns), self._chance.randint(1, most)))

    def _semi_join(self, depth: int) -> Relation:
        given, other = self._relation(depth), self._relation(self._chance.randint(0, depth))
        alias, another = self._name("x"), self._name("x")
        outside, inside = _of(alias, given), _of(another, other)
        no = self._chance.choice(["", "NOT "])
        pairs = [(one, two) for one in outside for two in inside if one[1] == two[1]]
        columns = ", ".join(column.name for column in given.columns)
        if self._chance.random() < 0.2:
            how = self._chance.choice(["SEMI", "ANTI"])
            text = f"SELECT {columns} FROM ({given.text}) AS {alias} {how} JOIN ({other.text})"
            text += f" AS {another} ON {self._on(outside, inside)}"
            return Relation(text, given.columns, given.is_distinct)
        if len(pairs) > 1 and self._chance.random() < 0.2:
            chosen = self._chance.sample(pairs, 2)
            ours, theirs = (", ".join(pair[at][0] for pair in chosen) for at in (0, 1))
            condition = f"({ours}) IN (SELECT {theirs} FROM ({other.text}) AS {another})"
        elif pairs and self._chance.random() < 0.5:
            (one, _), (two, _) = self._chance.choice(pairs)
            condition = f"{one} {no}IN (SELECT {two} FROM ({other.text}) AS {another})"
        else:
            condition = (
                f"{no}EXISTS (SELECT 1 FROM ({other.text}) AS {another}"
                f" WHERE {self._on(outside, inside)})"
            )
        if self._chance.random() < 0.3:
            condition = f"({condition} OR {self._comparison(outside)})"
        return Relation(
            f"SELECT {columns} FROM ({given.text}) AS {alias} WHERE {condition}",
            given.columns,
            given.is_distinct,
        )

    def _group(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        by = self._some(inside, 2) if self._chance.random() < 0.85 else []
        if by and self._chance.random() < 0.3:
            kind = self._chance.choice(_KINDS)
            by = [(self._expression(kind, inside), kind)]
        calls = [self._aggregate(inside) for _ in range(self._chance.randint(1, 3))]
        rest = f"FROM ({given.text}) AS {alias}"
        if by:
            numbers = ", ".join(str(at + 1) for at in range(len(by)))
            rest += f" GROUP BY {numbers}"
        if self._chance.random() < 0.3:
            call, kind = self._aggregate(inside)
            rest += f" HAVING {call} {self._chance.choice(['>', '<=', '<>'])} "
            if self._chance.random() < 0.3:
                other, another = self._relation(0), self._name("x")
                call = self._call_of(kind, _of(another, other))
                rest += f"(SELECT {call} FROM ({other.text}) AS {another})"
            else:
                rest += self._chance.choice(_LITERALS[kind])
        return self._select(by + calls, rest, is_distinct=True)

    def _grouping(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        by = [text for text, _ in self._chance.sample(inside, min(2, len(inside)))]
        if len(by) < 2:
            return self._group(depth)
        one, two = by
        grouped = self._chance.choice(
            [f"ROLLUP ({one}, {two})", f"CUBE ({one}, {two})",
             f"GROUPING SETS (({one}, {two}), ({two}))", f"GROUPING SETS (({one}), ({two}))"]
        )  # fmt: skip
        kinds = dict(inside)
        chosen = [(one, kinds[one]), (two, kinds[two])]
        chosen += [(f"grouping({text})", "int") for text in by]
        chosen += [self._aggregate(inside) for _ in range(self._chance.randint(1, 2))]
        return self._select(
            chosen, f"FROM ({given.text}) AS {alias} GROUP BY {grouped} HAVING count(*) > 0"
        )

    def _aggregate(self, columns: list) -> tuple[str, str]:
        chance = self._chance
        kind = chance.choice(_KINDS)
        argument = self._expression(kind, columns)
        distinct = chance.choice(["", "", "DISTINCT "])
        options = [("count(*)", "int"), (f"count({distinct}{argument})", "int"),
                   (f"min({argument})", kind), (f"max({argument})", kind)]  # fmt: skip
        if kind in _NUMBERS:
            options += [(f"sum({distinct}{argument})", kind)] * 2
        if kind in ("int", "double"):
            options.append((f"avg({argument})", "double"))
        if kind == "int":
            functions = ("median", "stddev_samp", "stddev_pop", "var_samp", "var_pop")
            options.append((f"{chance.choice(functions)}({argument})", "double"))
        if kind == "boolean":
            options += [(f"bool_and({argument})", kind), (f"bool_or({argument})", kind)]
        text, result = chance.choice(options)
        if chance.random() < 0.25:
            text += f" FILTER (WHERE {self._condition(columns)})"
        return text, result

    def _call_of(self, kind: str, columns: list) -> str:
        return f"{self._chance.choice(['min', 'max'])}({self._expression(kind, columns)})"

    def _lateral(self, depth: int) -> Relation:
        given, other = self._relation(depth), self._relation(self._chance.randint(0, depth))
        alias, another, side = (self._name("x") for _ in range(3))
        outside, inside = _of(alias, given), _of(another, other)
        call, kind = self._aggregate(inside)
        name = self._name()
        pairs = [(one, two) for one in outside for two in inside if one[1] == two[1]]
        where = ""
        if pairs:
            (one, _), (two, _) = self._chance.choice(pairs)
            where = f" WHERE {one} = {two}"
        subquery = f"(SELECT {call} AS {name} FROM ({other.text}) AS {another}{where}) AS {side}"
        how = self._chance.choice(["CROSS JOIN LATERAL {}", "LEFT JOIN LATERAL {} ON true"])
        chosen = [*self._some(outside, 3), (f"{side}.{name}", kind)]
        return self._select(chosen, f"FROM ({given.text}) AS {alias} {how.format(subquery)}")

    def _window(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        total = self._all_of(inside)  # two orders would have equal rows in two places
        chosen = [*inside, *(self._over(inside, total) for _ in range(self._chance.randint(1, 2)))]
        return self._select(chosen, f"FROM ({given.text}) AS {alias}")

    def _qualify(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        function = self._chance.choice(["row_number()", "rank()", "dense_rank()"])
        over = f"({self._partition(inside)} ORDER BY {self._all_of(inside)})"
        rest = f"FROM ({given.text}) AS {alias} QUALIFY {function} OVER {over} <= 2"
        return self._select(list(inside), rest)

    def _over(self, columns: list, total: str) -> tuple[str, str]:
        chance = self._chance
        partition = self._partition(columns)
        total = f"{partition} ORDER BY {total}"
        column, kind = chance.choice(columns)
        some = ", ".join(f"{one}{self._direction()}" for one, _ in self._some(columns, 2))
        peers = f"{partition} ORDER BY {some}"
        frame = chance.choice(
            ["", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING",
             " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
             " ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING"]
        )  # fmt: skip
        options = [
            (f"row_number() OVER ({total})", "int"),
            (f"rank() OVER ({peers})", "int"),
            (f"dense_rank() OVER ({peers})", "int"),
            (f"cume_dist() OVER ({peers})", "double"),
            (f"percent_rank() OVER ({peers})", "double"),
            (f"ntile(3) OVER ({total})", "int"),
            (f"lag({column}) OVER ({total})", kind),
            (f"lead({column}, 2, {chance.choice(_LITERALS[kind])}) OVER ({total})", kind),
            (f"first_value({column}) OVER ({total}{frame})", kind),
            (f"last_value({column}) OVER ({total}{frame})", kind),
            (f"nth_value({column}, 2) OVER ({total}{frame})", kind),
            (f"count({column}) OVER ({total}{frame})", "int"),
            (f"count(*) OVER ({peers})", "int"),
            (f"min({column}) OVER ({total}{frame})", kind),
            (f"max({column}) OVER ({partition})", kind),
        ]
        if kind in _NUMBERS:
            options += [(f"sum({column}) OVER ({total}{frame})", kind),
                        (f"sum({column}) OVER ({peers})", kind)]  # fmt: skip
        if kind in ("int", "double"):
            options.append((f"avg({column}) OVER ({total}{frame})", "double"))
        if kind == "timestamp":
            ordered = f"{partition} ORDER BY {column}{self._direction()}"
            bounds = "INTERVAL '10' HOUR PRECEDING AND INTERVAL '1' HOUR FOLLOWING"
            options.append((f"count({column}) OVER ({ordered} RANGE BETWEEN {bounds})", "int"))
        if kind == "int":
            ordered = f"{partition} ORDER BY {column}{self._direction()}"
            options.append(
                (f"sum({column}) OVER ({ordered} RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", kind)
            )
        return chance.choice(options)

    def _partition(self, columns: list) -> str:
        if self._chance.random() < 0.2:
            return ""
        return "PARTITION BY " + ", ".join(text for text, _ in self._some(columns, 2))

    def _all_of(self, columns: list) -> str:
        mixed = self._chance.sample(columns, len(columns))
        return ", ".join(f"{text}{self._direction()}" for text, _ in mixed)

    def _direction(self) -> str:
        return self._chance.choice(["", " DESC"]) + self._chance.choice(
            [" NULLS FIRST", " NULLS LAST"]
        )

    def _top(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        inside = _of(alias, given)
        columns = ", ".join(column.name for column in given.columns)
        text = f"SELECT {columns} FROM ({given.text}) AS {alias} ORDER BY {self._all_of(inside)}"
        text += f" LIMIT {self._chance.randint(1, 4)}"
        if self._chance.random() < 0.4:
            text += f" OFFSET {self._chance.randint(1, 2)}"
        return Relation(text, given.columns, given.is_distinct)

    def _distinct(self, depth: int) -> Relation:
        given = self._relation(depth)
        alias = self._name("x")
        made = self._select(self._some(_of(alias, given), 3), f"FROM ({given.text}) AS {alias}")
        return Relation(made.text.replace("SELECT", "SELECT DISTINCT", 1), made.columns, True)

    def _set(self, depth: int) -> Relation:
        chance = self._chance
        given, other = self._relation(depth), self._relation(chance.randint(0, depth))
        alias, another = self._name("x"), self._name("x")
        left, right = _of(alias, given), _of(another, other)
        pairs = [(one, two) for one in left for two in right if one[1] == two[1]]
        if not pairs:
            other, right = given, _of(another, given)
            pairs = list(zip(left, right, strict=True))
        chosen = chance.sample(pairs, min(len(pairs), chance.randint(1, 2)))
        if len({two for _, two in chosen}) < len(chosen):
            chosen = chosen[:1]  # Spark cannot plan EXCEPT ALL of a column that is there twice
        made = self._select([one for one, _ in chosen], f"FROM ({given.text}) AS {alias}")
        second = ", ".join(two[0] for _, two in chosen)
        word = chance.choice(["UNION", "EXCEPT", "INTERSECT"])
        is_all = chance.random() < 0.4
        word += " ALL" if is_all else ""
        text = f"{made.text} {word} SELECT {second} FROM ({other.text}) AS {another}"
        return Relation(text, made.columns, not is_all)

    def _common(self, depth: int) -> Relation:
        """A common table expression that is used twice."""
        given = self._relation(depth)
        name, alias, another = self._name("w"), self._name("x"), self._name("x")
        left, right = _of(alias, given), _of(another, given)
        chosen = self._some(left, 3) + self._some(right, 2)
        rest = f"FROM {name} AS {alias} JOIN {name} AS {another} ON {self._on(left, right)}"
        made = self._select(chosen, rest)
        return Relation(f"WITH {name} AS ({given.text}) {made.text}", made.columns)

    def _scalar(self, depth: int) -> Relation:
        given, other = self._relation(depth), self._relation(self._chance.randint(0, depth))
        alias, another = self._name("x"), self._name("x")
        outside, inside = _of(alias, given), _of(another, other)
        call, kind = self._aggregate(inside)
        pairs = [(one, two) for one in outside for two in inside if one[1] == two[1]]
        where = ""
        if pairs and self._chance.random() < 0.6:
            (one, _), (two, _) = self._chance.choice(pairs)
            where = f" WHERE {one} = {two}"
        subquery = f"(SELECT {call} FROM ({other.text}) AS {another}{where})"
        rest = f"FROM ({given.text}) AS {alias}"
        same = [text for text, of in outside if of == kind]
        if same and self._chance.random() < 0.5:
            compared = self._chance.choice(["<", "=", ">="])
            rest += f" WHERE {self._chance.choice(same)} {compared} {subquery}"
            return self._select(list(outside), rest)
        return self._select([*self._some(outside, 3), (subquery, kind)], rest)

    # Expressions

    def _condition(self, columns: list, depth: int = 2) -> str:
        if depth and self._chance.random() < 0.4:
            word = self._chance.choice([" AND ", " OR "])
            parts = [self._condition(columns, depth - 1) for _ in range(2)]
            return f"({word.join(parts)})"
        if self._chance.random() < 0.15:
            return f"NOT {self._comparison(columns)}"
        return self._comparison(columns)

    def _comparison(self, columns: list) -> str:
        chance = self._chance
        column, kind = chance.choice(columns)
        other = self._expression(kind, columns, 0)
        literals = ", ".join(chance.sample(_LITERALS[kind], min(2, len(_LITERALS[kind]))))
        options = [f"{column} {chance.choice(['<', '<=', '=', '<>', '>', '>='])} {other}"] * 3
        options += [
            f"{column} IS NULL", f"{column} IS NOT NULL", f"{column} IN ({literals})",
            f"{column} NOT IN ({literals})", f"{column} IS DISTINCT FROM {other}",
            f"{column} BETWEEN {other} AND {chance.choice(_LITERALS[kind])}",
        ]  # fmt: skip
        if kind == "string":
            options.append(f"{column} LIKE 'a%'")
        return f"({chance.choice(options)})"

    def _expression(self, kind: str, columns: list, depth: int = 2) -> str:
        chance = self._chance
        same = [text for text, of in columns if of == kind]
        if depth <= 0 or chance.random() < 0.4:
            return chance.choice(same) if same else chance.choice(_LITERALS[kind])
        one, two = (self._expression(kind, columns, depth - 1) for _ in range(2))
        options = [
            f"coalesce({one}, {two})",
            f"CASE WHEN {self._comparison(columns)} THEN {one} ELSE {two} END",
            f"CASE WHEN {self._comparison(columns)} THEN {one} END",
            f"greatest({one}, {two})",
            f"nullif({one}, {two})",
        ]
        if kind in _NUMBERS:
            options += [f"({one} + {two})", f"({one} - {two})", f"(- {one})", f"abs({one})"]
        match kind:
            case "int":
                text = self._expression("string", columns, depth - 1)
                day = self._expression("date", columns, depth - 1)
                options += [f"({one} * 2)", f"({one} % 3)", f"length({text})",
                            f"extract(YEAR FROM {day})"]  # fmt: skip
            case "double":
                number = self._expression("int", columns, depth - 1)
                options += [f"({number} / 4)", f"({one} * {chance.choice(_LITERALS[kind])})"]
            case "string":
                options += [f"({one} || {two})", f"substring({one}, 1, 1)", f"trim({one})"]
            case "boolean":
                options += [self._comparison(columns), f"(NOT {one})"]
            case "timestamp":
                options.append(f"date_trunc('hour', {one})")
            case "date":
                options.append(f"CAST(date_trunc('month', {one}) AS date)")
        return chance.choice(options)


_SAME = "IS NOT DISTINCT FROM"


def _of(alias: str, relation: Relation) -> list[tuple[str, str]]:
    return [(f"{alias}.{column.name}", column.kind) for column in relation.columns]
