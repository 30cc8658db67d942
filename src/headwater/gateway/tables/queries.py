"""What a client asks of a table: `where=total>=100`, `order=-total,id`, `limit`, `columns`."""

import re
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import QueryParams

from headwater.gateway.answers import Refusal
from headwater.gateway.parameters import whole_number

_CONDITION: Final = re.compile(r"([^<>=!]+?)\s*(>=|<=|!=|==|=|<|>)\s*(.*)", re.DOTALL)
_MAX_CONDITIONS: Final = 20
_MAX_COLUMNS: Final = 1000
_DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 10_000
_NULL: Final = "null"


@dataclass(frozen=True, slots=True)
class Condition:
    """`value` None: null. A text null is written "null", in quotes."""

    column: str
    operator: str
    value: str | None
    is_quoted: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    conditions: tuple[Condition, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()  # column, and whether it is descending
    limit: int = _DEFAULT_LIMIT
    columns: tuple[str, ...] = ()  # none: all


def parse(query: QueryParams) -> Query:
    """Raises Refusal."""
    wheres = query.getlist("where")
    if len(wheres) > _MAX_CONDITIONS:
        raise Refusal(400, f"there are at most {_MAX_CONDITIONS} conditions")
    limit = whole_number(query, "limit", 1, MAX_LIMIT)
    return Query(
        tuple(map(_condition, wheres)),
        tuple(
            (name.removeprefix("-"), name.startswith("-")) for name in _names(query.get("order"))
        ),
        _DEFAULT_LIMIT if limit is None else limit,
        _names(query.get("columns")),
    )


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise Refusal(
            400,
            "this is no condition",
            detail=text[:200],
            hint="it is of the form total>=100; the operators are = != < <= > >=",
        )
    column, sign, value = match.groups()
    sign = "=" if sign == "==" else sign
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return Condition(column, sign, value[1:-1], is_quoted=True)
    return Condition(column, sign, None if value == _NULL else value)


def _names(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if len(names) > _MAX_COLUMNS:
        raise Refusal(400, f"there are at most {_MAX_COLUMNS} columns")
    return names
