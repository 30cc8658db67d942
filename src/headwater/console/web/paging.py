"""Pagination of a long list: filtered, sorted and cut on the server."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request

DEFAULT_ROWS: Final = 50
_MOST_ROWS: Final = 500

Key = Callable[[Any], Any]


class Page(NamedTuple):
    """Some rows of all that were found, and how to get to the others."""

    rows: list[Any]
    found: int
    total: int
    number: int  # from 1
    pages: int
    search: str
    sort: str
    is_descending: bool
    size: int
    query: Mapping[str, str]  # the other parameters of the address

    def address(self, **changes: Any) -> str:
        """The query of the same list, changed: ?search=…&sort=…"""
        values = {
            **self.query,
            "search": self.search,
            "sort": ("-" if self.is_descending else "") + self.sort,
            "page": self.number,
            "rows": self.size if self.size != DEFAULT_ROWS else "",
            **changes,
        }
        parameters = {
            name: value
            for name, value in values.items()
            if value not in ("", None) and not (name == "page" and value == 1)
        }
        return "?" + urlencode(parameters)

    def sorted_by(self, column: str, *, descending_first: bool = False) -> str:
        """The address that sorts by a column; a second time the other way round."""
        is_same = column == self.sort
        descending = not self.is_descending if is_same else descending_first
        return self.address(sort=("-" if descending else "") + column, page=1)

    def direction(self, column: str) -> str:
        """For aria-sort."""
        if column != self.sort:
            return "none"
        return "descending" if self.is_descending else "ascending"

    def as_json(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "total": self.total,
            "page": self.number,
            "pages": self.pages,
            "rows": self.size,
        }


def page_of(
    request: Request,
    rows: Iterable[Any],
    *,
    columns: Mapping[str, Key],
    default_sort: str,
    text: Callable[[Any], str],
    keep: Iterable[str] = (),
) -> Page:
    """What the query asks for: `search` (all its words in the row's text), `sort` (a column, with
    "-" from the largest), `page` and `rows`. Wrong values count as not given. Rows without a value
    in the column come last. `keep` names what else of the query belongs to the list.
    """
    query = request.query_params
    every = list(rows)
    search = query.get("search", "").strip()[:200]
    words = search.lower().split()
    found = [row for row in every if all(word in text(row).lower() for word in words)]
    wanted = query.get("sort", default_sort)
    column = wanted.removeprefix("-")
    if column not in columns:
        wanted, column = default_sort, default_sort.removeprefix("-")
    descending = wanted.startswith("-")
    key = columns[column]
    with_value = [row for row in found if key(row) is not None]
    with_value.sort(key=key, reverse=descending)
    found = with_value + [row for row in found if key(row) is None]
    size = min(max(whole(query.get("rows"), DEFAULT_ROWS), 1), _MOST_ROWS)
    pages = max(1, math.ceil(len(found) / size))
    number = min(max(whole(query.get("page"), 1), 1), pages)
    return Page(
        found[(number - 1) * size : number * size],
        len(found),
        len(every),
        number,
        pages,
        search,
        column,
        descending,
        size,
        {name: query[name] for name in keep if query.get(name)},
    )


def whole(text: str | None, otherwise: int) -> int:
    """A number of up to nine digits."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else otherwise
