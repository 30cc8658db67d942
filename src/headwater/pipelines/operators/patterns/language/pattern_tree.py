"""The tree of a row pattern, and what follows from it alone: first variables, positions, length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Variable:
    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple["Tree", ...]  # none: the empty pattern


@dataclass(frozen=True, slots=True)
class Alternation:
    parts: tuple["Tree", ...]  # the first is preferred


@dataclass(frozen=True, slots=True)
class Repeated:
    part: "Tree"
    least: int
    most: int | None
    is_greedy: bool = True


@dataclass(frozen=True, slots=True)
class Excluded:
    """Its rows are left out of ALL ROWS PER MATCH."""

    part: "Tree"


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """The anchor `^`."""


@dataclass(frozen=True, slots=True)
class StepDeadline:
    """From here on, rows are at most so long after the one before; None: only WITHIN counts. It is
    part of no text; the builder makes it.
    """

    within_us: int | None


Tree: TypeAlias = (
    Variable | Sequence | Alternation | Repeated | Excluded | PartitionStart | StepDeadline
)
EMPTY = Sequence(())


def variables_of(tree: Tree) -> tuple[str, ...]:
    """Each once, in the order of appearance."""
    return tuple(dict.fromkeys(_variables(tree)))


def is_nullable(tree: Tree) -> bool:
    """Whether it can match no row."""
    return _least_length(tree) == 0


def is_unbounded(tree: Tree) -> bool:
    """Whether a match can be of any length, and no deadline of a step ends it."""
    if isinstance(tree, Repeated) and tree.most is None:
        return True
    is_bounded = False
    for part in _parts(tree):
        if isinstance(part, StepDeadline):
            is_bounded = part.within_us is not None
        elif not is_bounded and is_unbounded(part):
            return True
    return False


def has_deadline(tree: Tree) -> bool:
    return isinstance(tree, StepDeadline) or any(has_deadline(part) for part in _parts(tree))


def has_anchor(tree: Tree) -> bool:
    return isinstance(tree, PartitionStart) or any(has_anchor(part) for part in _parts(tree))


def has_exclusion(tree: Tree) -> bool:
    return isinstance(tree, Excluded) or any(has_exclusion(part) for part in _parts(tree))


def first_variables(tree: Tree) -> frozenset[str]:
    """That the first row of a match can be of."""
    if isinstance(tree, Variable):
        return frozenset([tree.name])
    if isinstance(tree, Sequence):
        found: frozenset[str] = frozenset()
        for part in tree.parts:
            found |= first_variables(part)
            if not is_nullable(part):
                break
        return found
    return frozenset().union(*(first_variables(part) for part in _parts(tree)))


def least_positions(tree: Tree) -> dict[str, int]:
    """Of each variable, how many rows of the match are before it at least."""
    found: dict[str, int] = {}
    _positions(tree, 0, found)
    return found


def _positions(tree: Tree, before: int, found: dict[str, int]) -> None:
    if isinstance(tree, Variable):
        found[tree.name] = min(before, found.get(tree.name, before))
    elif isinstance(tree, Sequence):
        for part in tree.parts:
            _positions(part, before, found)
            before += _least_length(part)
    else:
        for part in _parts(tree):
            _positions(part, before, found)


def _least_length(tree: Tree) -> int:
    if isinstance(tree, Variable):
        return 1
    if isinstance(tree, Sequence):
        return sum(map(_least_length, tree.parts))
    if isinstance(tree, Alternation):
        return min(map(_least_length, tree.parts))
    if isinstance(tree, Repeated):
        return tree.least * _least_length(tree.part)
    return _least_length(tree.part) if isinstance(tree, Excluded) else 0


def _variables(tree: Tree) -> Iterator[str]:
    if isinstance(tree, Variable):
        yield tree.name
    for part in _parts(tree):
        yield from _variables(part)


def _parts(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Sequence | Alternation):
        return tree.parts
    if isinstance(tree, Repeated | Excluded):
        return (tree.part,)
    return ()
