"""A place in the navigation."""

from typing import NamedTuple


class Place(NamedTuple):
    title: str
    path: str
