"""The event store ([events]) in an erasure: plain events are found, snapshots are thrown away.

Events are immutable, and the store refuses to change them, so an event that was appended before its
fields were personal cannot be erased there; it is reported. Snapshots of states are a cache that
may hold decrypted values: they are deleted, and made again from events.
"""

from collections.abc import Mapping

from headwater import config
from headwater.erasure.subject import Subject
from headwater.events import open_store
from headwater.events.personal_events import TOPICS
from headwater.events.store import EventStore
from headwater.subjects.personal import Marked, plain_fields


def plain_events(
    loaded: config.Config, marks: Mapping[str, Marked], subject: Subject
) -> dict[str, int]:
    """Events with personal fields of the subject in plain text, by stream."""
    found: dict[str, int] = {}
    categories = _categories(loaded, marks)
    if not categories:
        return found
    with _opened(loaded) as store:
        for category, mark in categories.items():
            for event in store.read(category=category):
                if plain_fields(event.json.encode(), mark, subject.id):
                    found[event.stream] = found.get(event.stream, 0) + 1
    return found


def delete_snapshots(loaded: config.Config, marks: Mapping[str, Marked]) -> int:
    """How many there were."""
    if not _categories(loaded, marks):
        return 0
    with _opened(loaded) as store, store.transaction() as transaction:
        counted = transaction.run("SELECT count(*) FROM headwater_snapshots")
        transaction.run("DELETE FROM headwater_snapshots")
        return int(counted[0][0])


def _categories(loaded: config.Config, marks: Mapping[str, Marked]) -> dict[str, Marked]:
    if loaded.events.store is None:
        return {}
    return {
        topic.removeprefix(TOPICS): mark
        for topic, mark in marks.items()
        if topic.startswith(TOPICS) and not topic.endswith(".dlq")
    }


def _opened(loaded: config.Config) -> EventStore:
    assert loaded.events.store is not None
    return open_store(loaded.events.store.reveal())
