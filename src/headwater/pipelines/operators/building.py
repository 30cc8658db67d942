"""Names of operators: the same each time the pipeline is built, so that each finds its state."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headwater.pipelines.operators.stages import OperatorRun

_PASSING: Final = re.compile(r"#\d+L?|@[0-9a-f]+")  # numbers of a plan that are others each time
_IN_PLAN: Final = re.compile(r"^\W*MapInArrow ([\w-]+)\(.*$", re.MULTILINE)
# What lets rows of a partition be in several tasks, or in another order. Operators shuffle, too.
_MOVING: Final = re.compile(
    r"^\W*(Repartition|Rebalance|Join|Aggregate|Window|Deduplicate|Distinct|Sort|FlatMap|Transform)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Built:
    """An operator of a pipeline, as the driver has to know it."""

    name: str
    buckets: int
    keys: tuple[tuple[str, ...], ...]  # of each input
    run: "OperatorRun | None" = field(default=None, compare=False, repr=False)  # if it is bounded


@dataclass
class Building:
    """A pipeline while its function runs."""

    pipeline: str
    operators: list[str] = field(default_factory=list)
    built: dict[str, Built] = field(default_factory=dict)
    unrepeatable: list[str] = field(default_factory=list)  # why its result depends on when it runs


_current: ContextVar[Building | None] = ContextVar("building", default=None)


@contextmanager
def building(pipeline: str) -> Iterator[Building]:
    now = Building(pipeline)
    token = _current.set(now)
    try:
        yield now
    finally:
        _current.reset(token)


def current() -> Building | None:
    """None outside of a pipeline's function."""
    return _current.get()


def depends_on_when(what: str) -> None:
    """The pipeline's function has used `what`: deriving its result anew gives another one."""
    now = _current.get()
    if now is not None:
        now.unrepeatable.append(what)


def name_operator(kind: str, described: Sequence[str]) -> str:
    """By its kind and how many of that kind the function has made before: `tumbling-1`. Outside of
    a pipeline, where nobody counts, by what it does and to what (`described`, plans of Spark's).
    """
    now = _current.get()
    if now is None:
        text = _PASSING.sub("", "\n".join(described))
        return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    name = f"{kind}-{1 + sum(each.rpartition('-')[0] == kind for each in now.operators)}"
    now.operators.append(name)
    return name


def operators_in(plan: str) -> tuple[Built, ...]:
    """Those that a DataFrame goes through, by its plan (`Running` gives its name to Spark)."""
    names = dict.fromkeys(found[1] for found in _found(plan))
    now = _current.get()
    return tuple(now.built[name] for name in names) if now else ()


def moves_rows(plan: str) -> bool:
    """Whether rows may not come as the log has them: each partition's in one task, in order."""
    return _MOVING.search(plan) is not None


def above_operators(plan: str) -> str:
    """The plan down to the first operator's result: what is said below it is of its inputs."""
    first = next(_found(plan), None)
    return plan[: first.end()] if first else plan


def _found(plan: str) -> Iterator[re.Match[str]]:
    """Functions of users may be there, too."""
    now = _current.get()
    return (each for each in _IN_PLAN.finditer(plan) if now and each[1] in now.built)
