r"""Regular expressions over topic names, matched in linear time.

Kafka hands the pattern of a subscription to RE2, which no pattern can make slow. Python's `re`
backtracks: `(a+)+b` from one client would stop the whole broker. So a pattern is only parsed by
`re`; what matches it is an automaton over the characters that a topic name can have.

    pattern ──re's parser──▶ tree ──Thompson──▶ states ──subset construction, on demand──▶ match

Like RE2 it refuses back references, look-around and repetitions of more than 1,000; unlike RE2 also
word boundaries (\b).

All of it runs on the event loop, so each stage has a limit that does not depend on the client: the
length of the pattern, the steps that build the states, and the states that are visited to build the
sets. Nothing else takes longer than a name is long.
"""

import re
import string
import warnings
from collections.abc import Callable, Iterable, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from headwater.protocol.error_codes import ApiError, ErrorCode

_ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
_MAX_PATTERN_CHARS: Final = 4_096
_MAX_REPEATS: Final = 1_000  # as RE2
_MAX_STATES: Final = 2_000
_MAX_BUILD_STEPS: Final = 10_000  # an empty body takes steps, but adds no state
_MAX_VISITS: Final = 200_000  # of states, in an automaton's lifetime: about 20 ms

_CATEGORIES: Final[dict[Any, frozenset[str]]] = {
    op.CATEGORY_DIGIT: frozenset(string.digits),
    op.CATEGORY_NOT_DIGIT: _ALPHABET - set(string.digits),
    op.CATEGORY_SPACE: frozenset(),
    op.CATEGORY_NOT_SPACE: _ALPHABET,
    op.CATEGORY_WORD: _ALPHABET - set(".-"),
    op.CATEGORY_NOT_WORD: frozenset(".-"),
}
_ACCEPT: Final = 0


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"invalid regular expression: {why}")


def compile_topic_regex(pattern: str) -> Callable[[str], bool]:
    """A function that returns whether a whole topic name matches.

    Raises ApiError (INVALID_REGULAR_EXPRESSION) for what is no pattern, cannot be matched in
    linear time or exceeds a limit; so does the function for a name that takes too many states.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise _invalid(f"more than {_MAX_PATTERN_CHARS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "possible nested set" and the like: ambiguous
            tree = _parser.parse(pattern)
        states = _States()
        start = states.sequence(tree, _ACCEPT, ignore_case=bool(tree.state.flags & re.IGNORECASE))
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise _invalid(str(error)) from None
    return _Automaton(states, start).matches


class _States:
    """The automaton as a graph; a state is a number.

    `chars[s]` are the characters that lead on; None: it leads on without one, if its anchor
    ("^" or "$") holds. `targets[s]` is where to.
    """

    def __init__(self) -> None:
        self._steps = 0
        # By the node of the tree: a repetition must not go through a long class each time.
        self._sets: dict[tuple[Any, int, bool], frozenset[str]] = {}
        self.chars: list[frozenset[str] | None] = []
        self.anchors: list[str] = []
        self.targets: list[tuple[int, ...]] = []
        self._add(frozenset(), ())  # _ACCEPT

    def _add(self, chars: frozenset[str] | None, targets: tuple[int, ...], anchor: str = "") -> int:
        if len(self.targets) >= _MAX_STATES:
            raise _invalid(f"more than {_MAX_STATES} states")
        self.chars.append(chars)
        self.targets.append(targets)
        self.anchors.append(anchor)
        return len(self.targets) - 1

    def sequence(self, items: Sequence[Any], then: int, *, ignore_case: bool) -> int:
        """The state from which the items lead to `then`."""
        self._steps += 1
        if self._steps > _MAX_BUILD_STEPS:
            raise _invalid(f"more than {_MAX_BUILD_STEPS} steps")
        for code, argument in reversed(list(items)):
            then = self._item(code, argument, then, ignore_case=ignore_case)
        return then

    def _item(self, code: Any, argument: Any, then: int, *, ignore_case: bool) -> int:
        if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            node = (code, id(argument), ignore_case)
            if node not in self._sets:
                self._sets[node] = _characters(code, argument, ignore_case=ignore_case)
            return self._add(self._sets[node], (then,))
        if code is op.BRANCH:
            _, branches = argument
            return self._add(
                None,
                tuple(self.sequence(branch, then, ignore_case=ignore_case) for branch in branches),
            )
        if code is op.SUBPATTERN:
            _, add_flags, del_flags, items = argument
            ignore_case = bool(add_flags & re.IGNORECASE) or (
                ignore_case and not del_flags & re.IGNORECASE
            )
            return self.sequence(items, then, ignore_case=ignore_case)
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self._repeat(*argument, then=then, ignore_case=ignore_case)
        if code is op.AT and argument in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return self._add(None, (then,), "^")
        if code is op.AT and argument in (op.AT_END, op.AT_END_STRING):
            return self._add(None, (then,), "$")
        raise _invalid(f"{str(code).lower()} is not supported")

    def _repeat(
        self, least: int, most: Any, items: Sequence[Any], *, then: int, ignore_case: bool
    ) -> int:
        if least > _MAX_REPEATS or (most is not op.MAXREPEAT and most > _MAX_REPEATS):
            raise _invalid(f"more than {_MAX_REPEATS} repetitions")
        if most is op.MAXREPEAT:
            entry = self._add(None, ())
            self.targets[entry] = (
                self.sequence(items, entry, ignore_case=ignore_case),
                then,
            )
        else:
            entry = then
            for _ in range(most - least):
                body = self.sequence(items, entry, ignore_case=ignore_case)
                entry = self._add(None, (body, then))
        for _ in range(least):
            entry = self.sequence(items, entry, ignore_case=ignore_case)
        return entry


def _characters(code: Any, argument: Any, *, ignore_case: bool) -> frozenset[str]:
    if code is op.ANY:
        return _ALPHABET
    items = argument if code is op.IN else [(op.LITERAL, argument)]
    chosen: set[str] = set()
    negated = code is op.NOT_LITERAL
    for kind, value in items:
        if kind is op.NEGATE:
            negated = True
        elif kind is op.LITERAL:
            chosen.add(chr(value))
        elif kind is op.RANGE:
            chosen.update(
                character for character in _ALPHABET if value[0] <= ord(character) <= value[1]
            )
        else:
            chosen |= _CATEGORIES[value]
    if ignore_case:
        chosen |= {character.swapcase() for character in chosen}
    return _ALPHABET - chosen if negated else _ALPHABET & chosen


class _Automaton:
    """Runs over a name with a set of states at a time; sets and steps are remembered."""

    def __init__(self, states: _States, start: int) -> None:
        self._states = states
        self._visits = 0
        self._steps: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._accepts: dict[frozenset[int], bool] = {}
        self._start = self._closure([start], {"", "^"})
        self._accepts_nothing = _ACCEPT in self._closure([start], {"", "^", "$"})

    def matches(self, name: str) -> bool:
        if not name:
            return self._accepts_nothing
        current = self._start
        for character in name:
            steps = self._steps.get(current)
            if steps is None:
                steps = self._steps[current] = {}
            following = steps.get(character)
            if following is None:
                following = steps[character] = self._step(current, character)
            if not following:
                return False
            current = following
        accepts = self._accepts.get(current)
        if accepts is None:
            accepts = self._accepts[current] = _ACCEPT in self._closure(current, {"", "$"})
        return accepts

    def _step(self, current: frozenset[int], character: str) -> frozenset[int]:
        chars, targets = self._states.chars, self._states.targets
        reached = [t for s in current if character in (chars[s] or ()) for t in targets[s]]
        self._count(len(current))
        return self._closure(reached, {""})

    def _closure(self, reached: Iterable[int], anchors: set[str]) -> frozenset[int]:
        """Everything that can be reached from there without a character."""
        found: set[int] = set()
        open_ = list(reached)
        visits = 0
        while open_:
            state = open_.pop()
            visits += 1
            if state not in found:
                found.add(state)
                if self._states.chars[state] is None and self._states.anchors[state] in anchors:
                    open_ += self._states.targets[state]
        self._count(visits)
        return frozenset(found)

    def _count(self, visits: int) -> None:
        """Bounds the memory, too: no set is larger than the visits that found it."""
        self._visits += visits
        if self._visits > _MAX_VISITS:
            raise _invalid("it takes too many states to match")
