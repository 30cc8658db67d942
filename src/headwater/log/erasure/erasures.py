"""Erasures: what was asked for, how far it is, and what became of it.

They are documents of the catalog, so an erasure that was accepted outlives a crash, and its result
can still be asked for some time after it is done:

    accepted   {"at_ms": …, "partitions": [[topic, topic id, partition, [offsets …]], …]}
    ended      {"at_ms": …, "ended_ms": …, "error": "", "counts": [[topic, partition, erased,
                already gone], …]}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DOCUMENTS = "erasures"


class ErasedPartition(NamedTuple):
    """A partition of one topic, not of another that gets its name later."""

    topic: str
    topic_id: str
    partition: int


class Counts(NamedTuple):
    erased: int
    gone: int  # already: by retention, compaction or an earlier erasure


@dataclass(slots=True)
class Erasure:
    """One request. Lives on the event loop; `offsets` ascend, each once."""

    id: str
    at_ms: int
    offsets: dict[ErasedPartition, Sequence[int]] = field(default_factory=dict)
    counts: dict[tuple[str, int], Counts] = field(default_factory=dict)
    failed: dict[ErasedPartition, str] = field(default_factory=dict)  # for good: damaged
    waits: dict[ErasedPartition, str] = field(default_factory=dict)  # why; they are tried again
    ended_error: str = ""  # why it is not complete, or why its end cannot be recorded yet
    ended_ms: int | None = None
    segments: int = 0  # to be looked at, as far as it is known
    segments_done: int = 0
    leaving: list[str] = field(default_factory=list)  # old files whose readers are not done

    @property
    def topics(self) -> set[str]:
        return {key.topic for key in self.offsets} | {topic for topic, _ in self.counts}

    @property
    def has_ended(self) -> bool:
        return self.ended_ms is not None

    @property
    def error(self) -> str:
        """Why it has not ended yet, or, when it has, why it is not complete."""
        return self.ended_error or "; ".join(self.waits.values())

    @property
    def unfinished(self) -> list[ErasedPartition]:
        """The partitions that are still to be rewritten."""
        return [
            key
            for key in self.offsets
            if (key.topic, key.partition) not in self.counts and key not in self.failed
        ]

    def record(self, key: ErasedPartition, erased: set[int]) -> None:
        """A partition is rewritten; `erased` are the offsets that had contents, of all erasures."""
        self.waits.pop(key, None)
        wanted = self.offsets[key]
        count = len(erased.intersection(wanted))
        self.counts[key.topic, key.partition] = Counts(count, len(wanted) - count)

    def accepted(self) -> dict[str, Any]:
        """The document of one that has not ended."""
        return {
            "at_ms": self.at_ms,
            "partitions": [[*key, list(offsets)] for key, offsets in self.offsets.items()],
        }

    def ended(self, ended_ms: int) -> dict[str, Any]:
        """The document of one that has ended, with or without an error."""
        return {
            "at_ms": self.at_ms,
            "ended_ms": ended_ms,
            "error": "; ".join(self.failed.values()),
            "counts": [[*key, *counts] for key, counts in self.counts.items()],
        }

    @classmethod
    def from_document(cls, erasure_id: str, document: Mapping[str, Any]) -> "Erasure":
        erasure = cls(erasure_id, document["at_ms"])
        erasure.ended_ms = document.get("ended_ms")
        erasure.ended_error = document.get("error", "")
        for topic, topic_id, index, offsets in document.get("partitions", ()):
            erasure.offsets[ErasedPartition(topic, topic_id, index)] = offsets
        for topic, index, erased, gone in document.get("counts", ()):
            erasure.counts[topic, index] = Counts(erased, gone)
        return erasure


def offsets_of(
    erasures: Iterable[Erasure],
) -> dict[ErasedPartition, tuple[list[int], list[Erasure]]]:
    """What is still to be done in each partition, for all erasures at once, and for which."""
    wanted: dict[ErasedPartition, set[int]] = {}
    askers: dict[ErasedPartition, list[Erasure]] = {}
    for erasure in erasures:
        for key in erasure.unfinished:
            wanted.setdefault(key, set()).update(erasure.offsets[key])
            askers.setdefault(key, []).append(erasure)
    return {key: (sorted(offsets), askers[key]) for key, offsets in wanted.items()}
