"""Checks of keys that users give as texts, as far as possible without Spark."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

from headwater.errors import PipelineError, UsageError

_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DATE: Final = re.compile(r"\s*[+-]?\d{4,7}(-\d{1,2}(-\d{1,2}([ T].*)?)?)?\s*")


def check_key(write: str, kinds: Mapping[str, str], key: Mapping[str, str]) -> None:
    """`kinds` are the types of the key's columns, as Spark writes them; "" if one is unknown.
    Raises PipelineError if there is no key, UsageError unless the texts in `key` are one.
    """
    if not kinds:
        raise PipelineError(f"{write} has no key: its rows cannot be identified")
    if set(key) != set(kinds):
        raise UsageError(
            f"the key of {write} is {', '.join(kinds)}",
            detail=f"given: {', '.join(key) or 'nothing'}",
            hint="--key " + " --key ".join(f"{column}=…" for column in kinds),
        )
    for column, text in key.items():
        if not _may_be(text, kinds[column]):
            raise not_of_type(column, text, kinds[column])


def not_of_type(column: str, text: str, kind: str) -> UsageError:
    return UsageError(f"{text!r} is no {kind}, as {column} is")


def _may_be(text: str, kind: str) -> bool:
    """Whether Spark may accept it; Spark decides in the end."""
    if kind in _BITS:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text):
            return False
        limit: int = 2 ** (_BITS[kind] - 1)
        return -limit <= int(text) < limit
    if kind.startswith("decimal"):
        try:
            Decimal(text.strip())
        except InvalidOperation:
            return False
    if kind == "date":
        return _DATE.fullmatch(text) is not None
    if kind.startswith("timestamp"):
        return any(character.isdigit() for character in text)
    return True
