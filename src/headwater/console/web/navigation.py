"""An entry of the navigation bar."""

from typing import NamedTuple


class NavigationEntry(NamedTuple):
    title: str
    path: str
