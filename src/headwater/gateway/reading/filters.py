"""Filters of records: `key`, `header` and `where`; a record passes if all of them are true.

    key=ada               the key is this text
    header=source:shop    a header of that name has this text; header=source: there is one
    where=$.total>=100    the value at a path compares so: = != < <= > >=
    where=$.after.city    there is a value at the path

A path is a small part of JSONPath (RFC 9535) that names at most one value: `$`, then names (`.city`
or `['a name']`) and places in lists (`[0]`; `[-1]` is the last one). It is compared with JSON
(`100`, `"x"`, `true`, `null`), or with a text without quotes. Numbers compare with numbers and
texts with texts, in any other case only = and != can be true. Without a value at the path nothing
is true.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.datastructures import QueryParams

from headwater.gateway.answers import Refusal
from headwater.gateway.reading.entries import Entry

NAMES: Final = ("key", "header", "where")
_MAX_FILTERS: Final = 20
_MAX_STEPS: Final = 50
_STEP: Final = re.compile(
    r"\.([A-Za-z_\u0080-\U0010ffff][\w\u0080-\U0010ffff-]*)|\[(-?[0-9]{1,9})\]"
    r"|\['((?:[^'\\]|\\['\\])*)'\]"
)
_COMPARISON: Final = re.compile(r"\s*(>=|<=|!=|==|=|<|>)\s*(.*)", re.DOTALL)
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_MISSING: Final = object()

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on the value at a path; without an operator: that there is one."""

    path: Path
    operator: str = ""
    operand: Any = None

    def passes(self, document: Any) -> bool:
        found = value_at(document, self.path)
        if found is _MISSING:
            return False
        if not self.operator:
            return True
        if self.operator in ("=", "!="):
            return _are_equal(found, self.operand) == (self.operator == "=")
        kinds = (_kind(found), _kind(self.operand))
        if kinds not in (("number", "number"), ("text", "text")):
            return False
        return _OPERATORS[self.operator](found, self.operand)


@dataclass(frozen=True, slots=True)
class Filter:
    """All conditions of a request. Equal ones are shared by the clients of a feed."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    wheres: tuple[Where, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether all records pass."""
        return self == _OPEN

    def passes(self, entry: Entry) -> bool:
        if self.key is not None and entry.key != self.key:
            return False
        for name, value in self.headers:
            if not any(
                name == other and (value is None or value == content)
                for other, content in entry.headers
            ):
                return False
        if not self.wheres:
            return True
        document = entry.document()
        return all(where.passes(document) for where in self.wheres)


_OPEN: Final = Filter()


def parse(query: QueryParams) -> Filter:
    """Raises Refusal."""
    headers, wheres = query.getlist("header"), query.getlist("where")
    if len(headers) + len(wheres) > _MAX_FILTERS:
        raise Refusal(400, f"there are at most {_MAX_FILTERS} filters")
    key = query.get("key")
    pairs = [text.partition(":") for text in headers]
    return Filter(
        None if key is None else key.encode(),
        tuple((name, value.encode() if colon else None) for name, colon, value in pairs),
        tuple(map(parse_where, wheres)),
    )


def parse_where(text: str) -> Where:
    """Raises Refusal."""
    path, rest = _split_path(text)
    if not rest.strip():
        return Where(path)
    match = _COMPARISON.fullmatch(rest)
    if match is None or not match[2]:
        raise Refusal(
            400,
            "this is no condition",
            detail=text[:200],
            hint="it is of the form $.total>=100; the operators are = != < <= > >=",
        )
    sign = "=" if match[1] == "==" else match[1]
    try:
        operand = orjson.loads(match[2])
    except orjson.JSONDecodeError:
        operand = match[2].strip()
    return Where(path, sign, _hashable(operand))


def parse_path(text: str) -> Path:
    """Raises Refusal."""
    path, rest = _split_path(text)
    if rest.strip():
        raise Refusal(400, "this is no path", detail=text[:200], hint="$.data.id")
    return path


def _split_path(text: str) -> tuple[Path, str]:
    if not text.startswith("$") or len(text) > 10_000:
        raise Refusal(400, "a path begins with $", detail=text[:200], hint="where=$.total>=100")
    steps: list[str | int] = []
    at = 1
    while (match := _STEP.match(text, at)) is not None:
        name, place, quoted = match.groups()
        if place is not None:
            steps.append(int(place))
        else:
            steps.append(name if name is not None else re.sub(r"\\(.)", r"\1", quoted))
        at = match.end()
        if len(steps) > _MAX_STEPS:
            raise Refusal(400, f"a path has at most {_MAX_STEPS} steps")
    return tuple(steps), text[at:]


def value_at(document: Any, path: Sequence[str | int]) -> Any:
    """_MISSING if there is none."""
    for step in path:
        if isinstance(step, str):
            if not isinstance(document, dict) or step not in document:
                return _MISSING
            document = document[step]
        else:
            if not isinstance(document, list) or not -len(document) <= step < len(document):
                return _MISSING
            document = document[step]
    return document


def _hashable(operand: Any) -> Any:
    if isinstance(operand, dict | list):
        raise Refusal(400, "a value is compared with a number, a text, true, false or null")
    return operand


def _are_equal(found: Any, operand: Any) -> bool:
    """As JSON has it: 1 is 1.0, and true is no number."""
    return _kind(found) == _kind(operand) and bool(found == operand)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__
