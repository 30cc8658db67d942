"""Names in the expressions of a pattern: its variables, subsets, and the columns of the input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.pipelines.operators.patterns.matching.leaves import Variables


@dataclass(slots=True)
class Names:
    """What names in expressions mean, and the columns that Spark computes for all of them."""

    variables: Sequence[str]  # of the pattern, in the order of their numbers
    subsets: Mapping[str, Sequence[str]]
    columns: Sequence[str] | None  # of the input; None: any name may be one
    computed: list[Any] = field(default_factory=list)  # of Spark's, as texts or Columns
    owners: list[str] = field(default_factory=list)  # of each of them, for errors

    def column(self, text: str, owner: str) -> int:
        for number, known in enumerate(self.computed):
            if isinstance(known, str) and known == text:
                return number
        return self.add(text, owner)

    def add(self, computed: Any, owner: str) -> int:
        self.computed.append(computed)
        self.owners.append(owner)
        return len(self.computed) - 1

    def is_column(self, name: str) -> bool:
        if self.columns is None:
            return self.variables_of(name) is None
        return any(name.lower() == one.lower() for one in self.columns)

    def variables_of(self, name: str) -> Variables:
        """None if it is no variable and no union of some."""
        for union, members in self.subsets.items():
            if union.upper() == name.upper():
                return frozenset(self._number(member) for member in members)
        number = self._number(name)
        return None if number < 0 else frozenset([number])

    def _number(self, name: str) -> int:
        same = [number for number, one in enumerate(self.variables) if one.upper() == name.upper()]
        return same[0] if same else -1
