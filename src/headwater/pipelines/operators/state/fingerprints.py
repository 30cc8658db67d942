"""Fingerprints of operators, by which they find their state: settings and plans of their inputs.

An operator finds its state wherever in the pipeline's function it is created. Class names, field
names and values of its settings are part of the fingerprint. The columns of its inputs are not:
captured tables get new ones, and operators that store rows go on with them (column_evolution.py).
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
_PASSED_ON: Final = re.compile(rf"\S+{_ID}")  # a column as it is
_RANDOM: Final = "randn?|random|randstr|uniform|uuid|shuffle"
_UNSTABLE: Final = (  # ids that differ in each run, and the mark of a stream
    (re.compile(rf"^~|{_ID}|@[0-9a-f]+"), ""),
    (re.compile(r"lambda (\w+)_\d+"), r"lambda \1"),
    (re.compile(rf"\b({_RANDOM})\([^()]*(\(-?\d+\))?\)"), r"\1()"),
)
# Nodes of which only the name counts: they change no row, or their text is columns, numbers of
# tasks, or a seed.
_NAME_ONLY: Final = (
    "Repartition", "Rebalance", "SubqueryAlias", "View", "MapIn", "FlatMap", "Transform", "Sample",
)  # fmt: skip
# Nodes that leave rows as they are, and have another id each time they are built. A bounded frame
# has no watermark of Spark's.
_IGNORED: Final = ("EventTimeWatermark", "CollectMetrics")
_SHARED: Final = re.compile(r"~?CTERelation(Def|Ref) (\d+)")  # a part of the plan, by its number


def fingerprint(
    operator: object, inputs: Sequence[Node], is_operator: Callable[[Node], bool]
) -> str:
    """The same in every process. An operator among the inputs counts by its name."""
    lines = [str(settings_of(operator))]
    for number, plan in enumerate(inputs):
        lines += [f"input {number}", *_lines(plan, is_operator, {})]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def settings_of(value: Any) -> Any:
    if isinstance(value, pa.Schema | pa.Field):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if field.metadata != NO_SETTING]
        found = {field.name: settings_of(getattr(value, field.name)) for field in fields}
        return type(value).__name__, found
    if isinstance(value, Mapping):
        return {str(name): settings_of(setting) for name, setting in value.items()}
    if isinstance(value, tuple | list):
        return [settings_of(item) for item in value]
    return _stable(repr(value))


def _lines(
    plan: Node, is_operator: Callable[[Node], bool], shared: dict[str, int]
) -> Iterator[str]:
    """`shared`: ids of common table expressions, numbered in order of appearance."""
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
    elif plan.name not in _IGNORED:
        yield f"{plan.name} {_stable(plan.text)}"
    for child in plan.children:
        yield from _lines(child, is_operator, shared)


def _computed(text: str) -> list[str]:
    """The computed columns of `Project [id#1, (total#2 + 1) AS more#3]`."""
    listed = text[text.find("[") + 1 : text.rfind("]")]
    return [_stable(item) for item in _split(listed) if not _PASSED_ON.fullmatch(item)]


def _split(listed: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth = [""], 0
    for character in listed:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _stable(text: str) -> str:
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return text
