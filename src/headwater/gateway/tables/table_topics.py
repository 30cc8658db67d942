"""Which topics are tables: those that have the last record of every key.

A topic from which records disappear by age has no rows of which we could say that they are all.
"""

from collections.abc import Mapping
from typing import Final

from headwater.gateway.answers import Refusal

COMPACT: Final = "compact"
_DELETE: Final = "delete"


def policies_of(configs: Mapping[str, str]) -> set[str]:
    return {part.strip() for part in configs.get("cleanup.policy", _DELETE).split(",")}


def require_complete(topic: str, configs: Mapping[str, str]) -> None:
    """Raises Refusal if it is not compacted, and records are deleted from it by age or size."""
    policies = policies_of(configs)
    limits = [configs.get(name, "-1") for name in ("retention.ms", "retention.bytes")]
    if not policies <= {_DELETE} or limits != ["-1", "-1"]:
        raise Refusal(
            409,
            f"topic {topic} is no table",
            detail="its records are deleted by age or size (cleanup.policy is"
            f" {','.join(sorted(policies))}), so rows would disappear without a change",
            hint=hint_for(topic),
        )


def incomplete(topic: str) -> Refusal:
    """Of one that is not compacted."""
    return Refusal(
        409,
        f"topic {topic} is no table",
        detail="records were deleted from its start",
        hint=hint_for(topic),
    )


def unordered_truncate(topic: str) -> Refusal:
    return Refusal(
        409,
        f"table {topic} was truncated, and its topic has several partitions",
        detail="which of the rows were written before the truncate is not in the log",
        hint='a capture with partitions = 1, or a view with into = "topic", can be read',
    )


def hint_for(topic: str) -> str:
    return (
        'topics of captures, and views with into = "topic", are tables;'
        f" GET /topics/{topic} reads the records of any topic, and"
        f" GET /tables/{topic}/KEY?as_of=… the last one of a key"
    )
