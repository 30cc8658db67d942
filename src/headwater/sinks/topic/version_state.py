"""What is stored of a version of a derived topic, in `__headwater_positions`:

    key     /topic/<topic>
    value   {"owner", "target", "version", "key", "value", "position", "ends", "fields"}

`ends` are the topic's offsets behind the batch, so that a reader finds exactly the rows of the
position while writing continues. `owner` is the pipeline or view, and the write.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from headwater.sinks.contract import (
    Log,
    Position,
    fields_from_text,
    fields_to_text,
    offsets_from,
)
from headwater.sinks.topic.transactional_positions import read_positions

_KEYS: Final = b"/topic/"


@dataclass(frozen=True, slots=True)
class VersionState:
    owner: str
    target: str
    version: int
    key: tuple[str, ...]
    value: str
    fields: pa.Schema
    position: Position | None = None
    ends: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def topic(self) -> str:
        return topic_of(self.target, self.version)

    def to_json(self) -> bytes:
        position = self.position
        return orjson.dumps(
            {
                "owner": self.owner,
                "target": self.target,
                "version": self.version,
                "key": self.key,
                "value": self.value,
                "position": None if position is None else dataclasses.asdict(position),
                "ends": self.ends,
                "fields": fields_to_text(self.fields),
            },
            option=orjson.OPT_NON_STR_KEYS,
        )

    @classmethod
    def from_json(cls, stored: bytes) -> "VersionState":
        read: dict[str, Any] = orjson.loads(stored)
        at = read["position"]
        return cls(
            read["owner"],
            read["target"],
            read["version"],
            tuple(read["key"]),
            read["value"],
            fields_from_text(read["fields"]),
            None if at is None else Position(at["query"], at["batch"], offsets_from(at["offsets"])),
            {int(partition): end for partition, end in read["ends"].items()},
        )


def topic_of(target: str, version: int) -> str:
    """Version 1 has the target's name, N has `<name>.v<N>`."""
    return target if version == 1 else f"{target}.v{version}"


def key_of(topic: str) -> bytes:
    """Under which the state of this topic is stored."""
    return _KEYS + topic.encode()


def stored_versions(log: Log, *, patience_s: float) -> Iterator[VersionState]:
    """Of all targets and owners."""
    for key, stored in read_positions(log, patience_s=patience_s).items():
        if key.startswith(_KEYS):
            yield VersionState.from_json(stored)


def topics_of_owner(log: Log, pipeline: str, *, patience_s: float) -> list[VersionState]:
    """The topics that a pipeline or a view writes, as their readers see them: version 1."""
    return [
        state
        for state in stored_versions(log, patience_s=patience_s)
        if state.version == 1 and state.owner.startswith(f"{pipeline}/")
    ]
