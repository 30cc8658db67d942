"""Stored patterns in their topic: what `headwater pattern` reads and writes, and `hw.match_stored`
follows.

    key                value (JSON)
    {"id": "unpaid"}   {"id", "pattern", "define", "measures", "subset", "within", "after_match",
                        "timed_out", "from", "owner", "target", "created"}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headwater.errors import PipelineError
from headwater.pipelines.definitions_topic import DefinitionsTopic
from headwater.pipelines.operators.patterns.stored.definitions import (
    CompiledPattern,
    PatternDefinition,
    compiled,
)
from headwater.settings import ClientSettings

DEFAULT_TOPIC: Final = "patterns"


@dataclass(frozen=True, slots=True)
class StoredPattern:
    """A record of the topic. What is wrong in it whatever columns rows have is its error."""

    id: str
    fields: Mapping[str, Any]

    @property
    def definition(self) -> PatternDefinition:
        """Raises PipelineError."""
        return PatternDefinition.of_row(self.fields)

    def checked(self) -> CompiledPattern:
        """Raises PipelineError."""
        return compiled(self.definition)

    @property
    def error(self) -> str:
        try:
            self.checked()
        except PipelineError as error:
            return error.what
        return ""


class StoredPatterns:
    """Of one topic. All methods raise BrokerUnreachable and RequestRefused."""

    def __init__(self, bootstrap: str, login: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self.topic = topic
        self._definitions = DefinitionsTopic(bootstrap, login, topic, "pattern")

    def all(self) -> dict[str, StoredPattern]:
        """By id, sorted. Records that are no JSON objects with an id are left out."""
        values = self._definitions.values()
        found = [pattern for value in values if (pattern := _decoded(value)) is not None]
        return {pattern.id: pattern for pattern in sorted(found, key=lambda one: one.id)}

    def one(self, id_: str) -> StoredPattern:
        return self._definitions.existing(id_, self.all())

    def put(self, definition: PatternDefinition) -> bool:
        """Stores it, checked; returns whether it is new. Raises PipelineError, UsageError,
        NotReady.
        """
        self._definitions.check_id(definition.id)
        compiled(definition)
        return self._definitions.put(definition.id, definition.to_json())

    def drop(self, id_: str) -> None:
        self.one(id_)
        self._definitions.drop(id_)


def _decoded(value: bytes) -> StoredPattern | None:
    try:
        fields: Any = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        return None
    return StoredPattern(fields["id"], fields)
