"""Regular expressions of JSON Schemas, which are others' and may be made to take for ever."""

from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

_MAX_STEPS: Final = 100_000
_MAX_COMPILED_BYTES: Final = 10 << 20
PATTERN_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=_MAX_STEPS, size_limit=_MAX_COMPILED_BYTES
)


def matches(pattern: str, text: str) -> bool:
    """Whether it is found in the text. One that takes too many steps is not, nor one that is no
    regular expression.
    """
    compiled = _compiled(pattern)
    return compiled is not None and bool(compiled.is_valid(text))


@lru_cache(256)
def _compiled(pattern: str) -> Any:
    try:
        return jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=PATTERN_OPTIONS)
    except ValueError:
        return None
