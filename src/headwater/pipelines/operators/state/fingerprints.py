"""What an operator is: its kind, its settings, and what its inputs are made of. State that was
written by one operator is found by the same one, wherever in the pipeline's function it stands.

Which columns inputs have is no part of it: captured tables get new ones, and operators that keep
rows go on with them (column_evolution.py).
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headwater.pipelines.plans import Node

NO_SETTING: Final = {"headwater": "follows from the columns of inputs"}  # of a dataclass' field
_ID: Final = r"#\d+L?(-T\d+ms)?"  # of a column; the rest if it has a watermark of Spark's
_PLAIN: Final = re.compile(rf"\S+{_ID}")  # a column as it is
_RANDOM: Final = "randn?|random|randstr|uniform|uuid|shuffle"
_PASSING: Final = (  # numbers that are others each time, and the mark of a stream
    (re.compile(rf"^~|{_ID}|@[0-9a-f]+"), ""),
    (re.compile(r"lambda (\w+)_\d+"), r"lambda \1"),
    (re.compile(rf"\b({_RANDOM})\([^()]*(\(-?\d+\))?\)"), r"\1()"),
)
# What is told by its name alone: it changes no row, or its text is columns, numbers of tasks, or a
# seed.
_NAME_ONLY: Final = (
    "Repartition", "Rebalance", "SubqueryAlias", "View", "MapIn", "FlatMap", "Transform", "Sample",
)  # fmt: skip
# What leaves rows as they are, and has another number each time it is built. A bounded frame has
# no watermark of Spark's.
_LEFT_OUT: Final = ("EventTimeWatermark", "CollectMetrics")
_SHARED: Final = re.compile(r"~?CTERelation(Def|Ref) (\d+)")  # a part of the plan, by its number


def fingerprint(
    operator: object, inputs: Sequence[Node], is_operator: Callable[[Node], bool]
) -> str:
    """The same in every process. An operator among the inputs is told by its name."""
    lines = [str(settings_of(operator))]
    for number, plan in enumerate(inputs):
        lines += [f"input {number}", *_lines(plan, is_operator, {})]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def settings_of(value: Any) -> Any:
    if isinstance(value, pa.Schema | pa.Field):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each for each in dataclasses.fields(value) if each.metadata != NO_SETTING]
        found = {each.name: settings_of(getattr(value, each.name)) for each in fields}
        return type(value).__name__, found
    if isinstance(value, Mapping):
        return {str(name): settings_of(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [settings_of(each) for each in value]
    return _lasting(repr(value))


def _lines(
    plan: Node, is_operator: Callable[[Node], bool], shared: dict[str, int]
) -> Iterator[str]:
    """`shared`: the numbers of parts of the plan, in the order in which they come."""
    if is_operator(plan):
        yield f"operator {plan.function}"
        return
    if plan.topic or plan.pattern:
        yield f"topic {plan.topic} {plan.pattern}"
    elif plan.name.startswith(_NAME_ONLY):
        yield f"{plan.name} {plan.function}"
    elif plan.name == "Project":
        yield from _computed(plan.text)
    elif found := _SHARED.match(plan.text):
        yield f"{plan.name} {shared.setdefault(found[2], len(shared))}"
    elif plan.name not in _LEFT_OUT:
        yield f"{plan.name} {_lasting(plan.text)}"
    for each in plan.children:
        yield from _lines(each, is_operator, shared)


def _computed(text: str) -> list[str]:
    """Of `Project [id#1, (total#2 + 1) AS more#3]`, what is not only passed on."""
    listed = text[text.find("[") + 1 : text.rfind("]")]
    return [_lasting(each) for each in _split(listed) if not _PLAIN.fullmatch(each)]


def _split(listed: str) -> list[str]:
    """At commas that stand in no bracket."""
    parts, depth = [""], 0
    for character in listed:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [each.strip() for each in parts]


def _lasting(text: str) -> str:
    for pattern, replacement in _PASSING:
        text = pattern.sub(replacement, text)
    return text
