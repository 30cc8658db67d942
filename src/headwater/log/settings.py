"""What a setting of a topic or a group is: its name, its type, and how its text is read.

The readers (`number`, `one_of`, `boolean`) raise ValueError and say what is wrong with the text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

INT32_MAX: Final = 2**31 - 1
BOOLEAN, STRING, INT, _SHORT, LONG, DOUBLE, LIST = range(1, 8)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `kind` is Kafka's ConfigType number, as DescribeConfigs reports it."""

    name: str
    kind: int
    default: str
    parse: Callable[[str], Any]
    doc: str
    effect: bool = True


def number(low: float, high: float, kind: type = int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError("not a number") from None
        if not low <= value <= high:
            raise ValueError(f"not between {low} and {high}")
        return value

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def boolean(text: str) -> bool:
    return one_of("true", "false")(text.lower()) == "true"
