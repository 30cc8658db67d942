"""The steps of a view's plan, as `view explain` and the console show them: what each does, what it
stores, and what the running process has measured of it. Needs no Spark.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

_COUNTERS: Final = ("rows", "groups", "left_rows", "right_rows")  # of the nodes' own counters
IN, OUT = "rows_in", "rows_out"  # counters of every node, since its state was begun

Reported = Mapping[str, Mapping[str, Any]]  # of operators, by name (`pipeline status`)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the plan. `stores` is empty for a step that stores nothing."""

    kind: str  # in a word
    does: str
    key: str = ""  # by which its rows meet
    stores: str = ""
    grows_with: str = ""
    operators: tuple[str, ...] = ()  # that have its state
    topic: str = ""  # that it reads
    inputs: tuple["Step", ...] = ()
    state_rows: int | None = None  # None: unknown, it is not running
    state_bytes: int | None = None
    rows_in_per_s: float | None = None  # changes of rows: an update is two, of the old and the new
    rows_out_per_s: float | None = None

    def __iter__(self) -> Iterator["Step"]:
        """Itself and all below it, in pre-order."""
        yield self
        for step in self.inputs:
            yield from step

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "does": self.does,
            "key": self.key,
            "stores": self.stores,
            "grows_with": self.grows_with,
            "operators": list(self.operators),
            "topic": self.topic,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "rows_in_per_s": self.rows_in_per_s,
            "rows_out_per_s": self.rows_out_per_s,
            "inputs": [step.as_json() for step in self.inputs],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Step":
        """Raises KeyError or TypeError if it is none, or one of another version."""
        inputs = tuple(cls.from_json(step) for step in stored["inputs"])
        operators = tuple(map(str, stored["operators"]))
        return cls(**{**stored, "inputs": inputs, "operators": operators})

    def with_state(self, reported: Reported) -> "Step":
        """With the rows and bytes that the operators' metrics have. Rows that were replaced are
        still in their files for a while: they count as bytes only.
        """
        inputs = tuple(step.with_state(reported) for step in self.inputs)
        found = [reported[name] for name in self.operators if name in reported]
        if not found or not self.stores:
            return replace(self, inputs=inputs)
        size_bytes = sum(int(one["state_bytes"]) for one in found)
        rows = sum(_live_rows(one) for one in found)
        return replace(self, inputs=inputs, state_rows=rows, state_bytes=size_bytes)

    def with_rates(self, before: Reported, after: Reported, seconds: float) -> "Step":
        """By two readings of the operators' metrics. A step of several operators takes in what the
        first does, and gives what the last does.
        """
        inputs = tuple(step.with_rates(before, after, seconds) for step in self.inputs)
        names = [name for name in self.operators if name in before and name in after]
        if not names or seconds <= 0:
            return replace(self, inputs=inputs)
        rates = [
            (int(after[name].get(counter, 0)) - int(before[name].get(counter, 0))) / seconds
            for name, counter in ((names[0], IN), (names[-1], OUT))
        ]
        if min(rates) < 0:  # its state was begun again
            return replace(self, inputs=inputs)
        return replace(self, inputs=inputs, rows_in_per_s=rates[0], rows_out_per_s=rates[1])


def _live_rows(metrics: Mapping[str, Any]) -> int:
    counted = [
        int(number)
        for name, number in metrics.items()
        if name in _COUNTERS or name.startswith("values")
    ]
    return sum(counted) if counted else int(metrics["state_rows"])
