"""The outline of a translated query: which step of it has which operators, and so which state.

It is recorded while the query is translated, and holds steps of Spark's plan; explain.py describes
them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OutlineStep:
    plan: Any  # of Spark's; None for the result
    operators: list[str] = field(default_factory=list)  # names
    inputs: list["OutlineStep"] = field(default_factory=list)
    is_shared: bool = False  # an equal step before it has its operators and inputs


class Outline:
    def __init__(self) -> None:
        self.result = OutlineStep(None)
        self._current = [self.result]

    @contextmanager
    def step(self, plan: Any) -> Iterator[None]:
        """Steps and operators in this block are those of its inputs, and its own."""
        made = OutlineStep(plan)
        self._current[-1].inputs.append(made)
        self._current.append(made)
        try:
            yield
        finally:
            self._current.pop()

    def share(self) -> None:
        """The current step gives the rows of an equal one."""
        self._current[-1].is_shared = True

    def recording(self, namer: Callable[[str], str]) -> Callable[[str], str]:
        """Names of operators, each of which belongs to the current step."""

        def name(kind: str) -> str:
            made = namer(kind)
            self._current[-1].operators.append(made)
            return made

        return name
