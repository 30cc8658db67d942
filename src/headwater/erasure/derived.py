"""Stores that pipelines derive from topics with personal fields, by the status they report.

A store follows the log, and a row in it says what the log said when it was derived. So after an
erasure a store that holds plain text has to be derived again: `headwater pipeline rebuild`. Which
versions a store had at the time of the erasure is part of the receipt; a later version was derived
from a log without the data.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headwater import config
from headwater.inspect.pipelines import read_store, reported_writes
from headwater.pipelines.running import status


@dataclass(frozen=True, slots=True)
class DerivedStore:
    """One write of a pipeline that reads a topic with personal fields."""

    pipeline: str
    write: str  # sink/table
    topics: tuple[str, ...]  # with personal fields, that it reads
    is_decrypted: bool  # the pipeline reads them in plain text
    versions: tuple[int, ...]  # that the store has
    error: str | None  # why they cannot be read

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "write": self.write,
            "topics": list(self.topics),
            "decrypts": self.is_decrypted,
            "versions": list(self.versions),
            **({"error": self.error} if self.error else {}),
        }


def derived_stores(loaded: config.Config, kind: str, topics: Collection[str]) -> list[DerivedStore]:
    """Of all pipelines that have run on this machine, or share its state directory."""
    found = []
    for name, settings in loaded.pipelines.items():
        for write, about in reported_writes(status.read(loaded.state_dir(), name)).items():
            read = tuple(sorted({*about.get("topics", [])} & {*topics}))
            if not read:
                continue
            store = read_store(loaded, name, about)
            versions = tuple(version.number for version in store.versions)
            is_decrypted = kind in settings.decrypt
            found.append(DerivedStore(name, write, read, is_decrypted, versions, store.error))
    return found
