"""Names of operators: the same whenever the pipeline is built, so that each finds its state."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headwater.errors import PipelineError
from headwater.pipelines.plans import Node

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.pipelines.operators.runtime.contract import Operator
    from headwater.pipelines.operators.runtime.packing import Packing
    from headwater.pipelines.operators.runtime.planning import OperatorRun

CLOCK_CONDITION: Final = "now()"  # in a condition of a query: it has the time of the batch
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")  # a directory, and part of transactional ids


@dataclass(frozen=True, slots=True)
class Built:
    """An operator of a pipeline, as the driver sees it."""

    name: str
    buckets: int
    keys: tuple[tuple[str, ...], ...]  # of each input
    passes: tuple[Node, ...] = ()  # the plans of inputs whose rows it gives, with their `_op`
    run: "OperatorRun | None" = field(default=None, compare=False, repr=False)  # if it is bounded
    operator: "Operator | None" = field(default=None, compare=False, repr=False)
    packings: tuple["Packing", ...] = field(default=(), compare=False, repr=False)  # of its inputs
    schemas: tuple["pa.Schema", ...] = field(default=(), compare=False, repr=False)  # packed rows


@dataclass
class Building:
    """A pipeline while its function runs."""

    pipeline: str
    operators: list[str] = field(default_factory=list)
    built: dict[str, Built] = field(default_factory=dict)
    unrepeatable: list[str] = field(default_factory=list)  # what depends on when it runs
    now_us: int | None = None  # the time of a bounded run, instead of the clock's


_current: ContextVar[Building | None] = ContextVar("building", default=None)


@contextmanager
def building(pipeline: str, now_us: int | None = None) -> Iterator[Building]:
    now = Building(pipeline, now_us=now_us)
    token = _current.set(now)
    try:
        yield now
    finally:
        _current.reset(token)


def current() -> Building | None:
    """None outside of a pipeline's function."""
    return _current.get()


def depends_on_when(what: str) -> None:
    """The pipeline's function has used `what`: deriving its result again gives another one."""
    now = _current.get()
    if now is not None:
        now.unrepeatable.append(what)


def name_operator(kind: str, fingerprint: str, name: str | None = None) -> str:
    """The user's name, else the kind and the fingerprint (fingerprints.py), so that no other
    operator finds its state. Operators with equal fingerprints are numbered.
    """
    now = _current.get()
    if name is None:
        name = f"{kind}-{fingerprint}"
        alike = 0 if now is None else now.operators.count(name)
        if now is not None:
            now.operators.append(name)
        return f"{name}-{1 + alike}" if alike else name
    if not _NAME.fullmatch(name):
        raise PipelineError(
            f"{kind}: name={name!r}", hint="a name is made of letters, digits, _ and -"
        )
    if now is not None:
        if name in now.operators:
            raise PipelineError(f"pipeline {now.pipeline}: two operators are called {name}")
        now.operators.append(name)
    return name


def operators_in(plan: Node) -> tuple[Built, ...]:
    """Operators of a DataFrame, found in its plan by name (`OperatorTask` shows it there)."""
    now = _current.get()
    names = dict.fromkeys(node.function for node in plan if is_operator(node))
    return tuple(now.built[name] for name in names) if now else ()


def inputs_with_rows(node: Node) -> tuple[Node, ...]:
    """The inputs whose rows a node of the plan passes on; an operator may make its own rows."""
    now = _current.get()
    if now is None or node.function not in now.built:
        return node.children
    return now.built[node.function].passes


def is_operator(node: Node) -> bool:
    """Whether the node is an operator; users' functions may be in a plan, too."""
    now = _current.get()
    return now is not None and node.function in now.built
