"""Parameters of a query. Nothing is ignored: an unknown name is a mistake, and is said so."""

import re
from collections.abc import Sequence

from starlette.datastructures import QueryParams

from headwater.gateway.answers import Refusal
from headwater.spelling import nearest


def check_names(query: QueryParams, names: Sequence[str]) -> None:
    """Raises Refusal for a name that is none of these."""
    for name in query:
        if name not in names:
            meant = nearest(name, list(names))
            raise Refusal(
                400,
                f"unknown parameter {name[:100]!r}",
                hint=f"did you mean {meant}?"
                if meant
                else f"there are {', '.join(names) or 'none here'}",
            )


def one_of(query: QueryParams, name: str, choices: Sequence[str]) -> str:
    """The first of the choices is the default. Raises Refusal."""
    value = query.get(name, choices[0])
    if value not in choices:
        raise Refusal(400, f"{name} is {' or '.join(choices)}", detail=value[:100])
    return value


def whole_number(query: QueryParams, name: str, least: int, most: int) -> int | None:
    """None if it is not given. Raises Refusal."""
    text = query.get(name)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,19}", text) is None or not least <= int(text) <= most:
        raise Refusal(400, f"{name} is a whole number from {least} to {most}", detail=text[:100])
    return int(text)


def seconds(query: QueryParams, name: str, default_s: float, most_s: float) -> float:
    """Raises Refusal."""
    text = query.get(name)
    if text is None:
        return default_s
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) is None or float(text) > most_s:
        raise Refusal(400, f"{name} is a number of seconds, at most {most_s:g}", detail=text[:100])
    return float(text)
