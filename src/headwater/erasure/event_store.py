"""The event store ([events]) in an erasure: what events have in plain text is replaced by a blank,
and snapshots are thrown away.

Events that were appended before their fields were personal hold them in plain text. The store
refuses changes of events; this is the one exception. Snapshots of states are a cache that may hold
decrypted values: they are deleted, and made again from events.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater import config
from headwater.erasure.searching import needles_of
from headwater.erasure.subject import Subject
from headwater.events import open_store
from headwater.events.erasing import (
    is_rewriting,
    note_rewriting,
    replace_payloads,
    rewrite_files,
)
from headwater.events.personal_events import TOPICS
from headwater.events.store import EventStore
from headwater.subjects.access import PersonalTopics
from headwater.subjects.personal import Marked, plain_fields

_AT_ONCE: Final = 1000  # events that are replaced in one transaction


@dataclass(frozen=True, slots=True)
class PlainEvents:
    """Events with personal fields of a subject in plain text: positions, by stream."""

    by_stream: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_rewriting: bool = False  # the files may still hold what was replaced
    is_searched: bool = False  # there is a store with personal fields

    @property
    def is_empty(self) -> bool:
        return not self.by_stream and not self.is_rewriting

    def counts(self) -> dict[str, int]:
        return {stream: len(positions) for stream, positions in self.by_stream.items()}


def plain_events(
    loaded: config.Config, marks: Mapping[str, Sequence[Marked]], subject: Subject
) -> PlainEvents:
    found: dict[str, list[int]] = {}
    categories = _categories(loaded, marks)
    if not categories:
        return PlainEvents()
    (needle, *_) = needles_of(subject, ())
    with _opened(loaded) as store:
        for category, of_category in categories.items():
            for event in store.read(category=category):
                value = event.json.encode()
                if needle in value and any(
                    plain_fields(value, mark, subject.id) for mark in of_category
                ):
                    found.setdefault(event.stream, []).append(event.position)
        return PlainEvents(found, is_rewriting(store), is_searched=True)


def erase_events(
    loaded: config.Config,
    marks: Mapping[str, Sequence[Marked]],
    subject: Subject,
    found: PlainEvents,
) -> int:
    """Replaces what these events have of the subject, deletes all snapshots, and rewrites the files
    if there was any of both. Returns the number of snapshots. It can be repeated. The keys of the
    subject have to be dropped before: its fields then get the text of an erased value.
    """
    if not _categories(loaded, marks):
        return 0
    positions = sorted(one for of_stream in found.by_stream.values() for one in of_stream)
    personal = PersonalTopics(
        {subject.kind: loaded.subject_kinds[subject.kind]}, loaded.key_places()
    )
    with _opened(loaded) as store:
        for at in range(0, len(positions), _AT_ONCE):
            some = positions[at : at + _AT_ONCE]
            payloads: dict[int, str] = {}
            for position in some:
                (event,) = store.read(from_position=position, limit=1)
                payload = personal.value(TOPICS + event.category, event.json.encode())
                assert payload is not None, "an event has data"
                payloads[position] = payload.decode()
            replace_payloads(store, payloads)
        with store.transaction() as transaction:
            ((snapshots,),) = transaction.run("SELECT count(*) FROM headwater_snapshots")
            if snapshots:
                transaction.run("DELETE FROM headwater_snapshots")
                note_rewriting(transaction)
        rewrite_files(store)
    return int(snapshots)


def _categories(
    loaded: config.Config, marks: Mapping[str, Sequence[Marked]]
) -> dict[str, Sequence[Marked]]:
    if loaded.events.store is None:
        return {}
    return {
        topic.removeprefix(TOPICS): of_topic
        for topic, of_topic in marks.items()
        if topic.startswith(TOPICS) and not topic.endswith(".dlq")
    }


def _opened(loaded: config.Config) -> EventStore:
    assert loaded.events.store is not None
    return open_store(loaded.events.store.reveal())
