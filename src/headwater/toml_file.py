"""A TOML file, and the line on which each of its keys stands."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class TomlFile(NamedTuple):
    contents: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]  # by path: ("broker", "listen")


class Unreadable(Exception):
    """The file is not TOML, or no text at all. `line` is None if it could not even be read."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def read(file: Path) -> TomlFile:
    """Raises Unreadable."""
    import tomllib

    try:
        text = file.read_text(encoding="utf-8")
        return TomlFile(tomllib.loads(text), _line_numbers(text))
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(None, str(error)) from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else len(text.splitlines())  # "at end of document"
        raise Unreadable(line, str(error)) from error


def leaves(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no table, with the path to it."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (((name, *path), leaf) for path, leaf in leaves(value))
        else:
            yield (name,), value


def _line_numbers(text: str) -> dict[tuple[str, ...], int]:
    """The parser keeps no positions, so the file is parsed statement by statement: a statement is
    as many lines as it takes to parse.
    """
    import tomllib

    lines = text.splitlines()
    numbers: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    first = 0
    while first < len(lines):
        for last in range(first, len(lines)):
            try:
                statement = tomllib.loads("\n".join(lines[first : last + 1]))
                break
            except tomllib.TOMLDecodeError:
                continue
        else:  # unreachable for a file that parses as a whole
            break
        if lines[first].lstrip().startswith("["):
            table = _innermost(statement)
            for depth in range(1, len(table) + 1):
                numbers.setdefault(table[:depth], first + 1)
        else:
            for path in _paths(statement):
                numbers.setdefault(table + path, first + 1)
        first = last + 1
    return numbers


def _innermost(statement: Any) -> tuple[str, ...]:
    path: tuple[str, ...] = ()
    while statement:
        if isinstance(statement, list):
            statement = statement[0]
            continue
        ((name, statement),) = statement.items()
        path += (name,)
    return path


def _paths(statement: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in statement.items():
        yield (name,)
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))
