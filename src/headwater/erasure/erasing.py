"""The steps of an erasure, each of which can be repeated.

    search ─▶ drop the keys ─▶ erase plain records and events ─▶ search again ─▶ sign the receipt

Dropping the keys takes effect at once: every encrypted copy is unreadable from then on, in the log,
the archive, derived stores, operators' state and backups. It is recorded in the key store in the
same transaction, so that an erasure which is interrupted goes on where it was, and its receipt has
all of it. The source database leads: what it still holds is not erased by this.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from headwater import config
from headwater.client.writing.sending import TopicPartition
from headwater.erasure.derived import DerivedStore, derived_stores
from headwater.erasure.event_store import PlainEvents, erase_events, plain_events
from headwater.erasure.other_brokers import removal_elsewhere
from headwater.erasure.reach import groups_that_read, recorded_backups
from headwater.erasure.searching import Found, OnSearched, marks_by_topic, search
from headwater.erasure.subject import Subject
from headwater.errors import ErasureUnsupported, EventStoreError, HeadwaterError
from headwater.settings import ClientSettings
from headwater.subjects.key_store import Erasure, KeyStore
from headwater.subjects.receipts import signed

_EVENTS: Final = "event store, "  # before the name of a stream, among counts by partition
_OF_EVENT_STORE: Final = (
    "the event store's synchronous views, its scheduled and refused commands, and the log (WAL) of"
    " its server"
)


class EraseRecords(Protocol):
    """Erases records from segments and archive, physically; offsets stay as they are."""

    def __call__(
        self,
        bootstrap: str,
        login: ClientSettings,
        offsets: Mapping[TopicPartition, Sequence[int]],
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Any: ...


Rebuild: TypeAlias = Callable[[Sequence[DerivedStore]], None]


@dataclass(frozen=True, slots=True)
class Preview:
    """What an erasure would do."""

    subject: Subject
    key_ids: dict[str, bool]  # and whether each can still be used
    erased_ms: int | None  # when it was erased before
    found: Found
    plain_events: PlainEvents
    derived: list[DerivedStore]
    groups: list[str] | None
    backups: list[dict[str, Any]]
    interrupted: Erasure | None  # an erasure that has not ended

    @property
    def live_keys(self) -> list[str]:
        return [key_id for key_id, is_there in self.key_ids.items() if is_there]

    @property
    def is_unknown(self) -> bool:
        """Nothing was ever stored of it."""
        has_records = not self.found.is_empty or bool(self.plain_events.by_stream)
        return not self.key_ids and not has_records and self.erased_ms is None

    @property
    def is_done(self) -> bool:
        """It was erased, and nothing has come since."""
        return (
            self.erased_ms is not None
            and not self.live_keys
            and not self.found.plain
            and self.plain_events.is_empty
            and self.interrupted is None
        )


def preview(
    loaded: config.Config,
    store: KeyStore,
    subject: Subject,
    on_searched: OnSearched = lambda *_: None,
) -> Preview:
    """Changes nothing."""
    hashed = store.subject_hash(subject.kind, subject.id)
    key_ids = store.key_ids(subject.kind, hashed)
    kind = loaded.subject_kinds[subject.kind]
    marks = marks_by_topic(loaded, kind)
    bootstrap, login = loaded.bootstrap(), loaded.client
    found = search(bootstrap, login, marks, kind.topics, subject, key_ids, on_searched)
    last = store.last_erasure(subject.kind, hashed)
    return Preview(
        subject,
        key_ids,
        store.erased_at_ms(subject.kind, hashed),
        found,
        plain_events(loaded, marks, subject),
        derived_stores(loaded, subject.kind, marks),
        groups_that_read(bootstrap, login, found.topics),
        recorded_backups(loaded.base / loaded.broker.data_dir),
        last if last is not None and last.ended_ms is None else None,
    )


def erase(
    loaded: config.Config,
    store: KeyStore,
    planned: Preview,
    erase_records: EraseRecords,
    *,
    tombstones: bool = False,
    rebuild: Rebuild | None = None,
    on_searched: OnSearched = lambda *_: None,
    on_erased: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Does it, and returns the signed receipt. What could not be done is in the receipt
    (`incomplete`). After an interruption, the same call with a new preview goes on. `tombstones`:
    written to compacted topics of a broker that cannot erase records. `rebuild` gets the stores
    that hold plain text, once the log has none.
    """
    subject = planned.subject
    hashed = store.subject_hash(subject.kind, subject.id)
    marks = marks_by_topic(loaded, loaded.subject_kinds[subject.kind])
    counts = _counts(planned)
    erasure, _ = store.begin_erasure(subject.kind, hashed, counts)
    failures: list[str] = []
    if planned.found.plain:
        try:
            erase_records(
                loaded.bootstrap(), loaded.client, planned.found.plain, on_progress=on_erased
            )
        except ErasureUnsupported as error:
            failures.append(f"records were not erased: {error}")
            failures += removal_elsewhere(
                loaded.bootstrap(), loaded.client, planned.found.plain, tombstones=tombstones
            )
        except HeadwaterError as error:
            failures.append(f"records were not erased: {error}")
    snapshots = 0
    try:
        snapshots = erase_events(loaded, marks, subject, planned.plain_events)
    except EventStoreError as error:
        failures.append(f"events were not erased: {error}")
    held = [one for one in planned.derived if _holds_plain_text(one, erasure)]
    if rebuild is not None and held and not failures:
        try:
            rebuild(held)
        except HeadwaterError as error:
            failures.append(f"stores were not rebuilt: {error}")
    # Whatever a writer had in flight when the keys were dropped is found now.
    after = preview(loaded, store, subject, on_searched)
    receipt = signed(
        {
            "id": erasure.id,
            **_content(store, planned, after, erasure, failures),
            "snapshots_deleted": snapshots,
        },
        store.signing_key(),
    )
    is_complete = not after.found.plain and after.plain_events.is_empty and not failures
    store.end_erasure(erasure, receipt, is_complete=is_complete)
    return receipt


def _counts(seen: Preview) -> dict[str, int]:
    """What it has in plain text: records by partition, events by stream."""
    return {
        f"{topic}-{partition}": len(offsets)
        for (topic, partition), offsets in seen.found.plain.items()
    } | {_EVENTS + stream: number for stream, number in seen.plain_events.counts().items()}


def _content(
    store: KeyStore, planned: Preview, after: Preview, erasure: Erasure, failures: Sequence[str]
) -> dict[str, Any]:
    before = {(one.pipeline, one.write): {*one.versions} for one in planned.derived}
    left = _counts(after)
    erased = {place: count - left.get(place, 0) for place, count in erasure.records.items()}
    held = [
        one
        for one in after.derived
        if _holds_plain_text(one, erasure)
        and (one.error or before.get((one.pipeline, one.write), {*one.versions}) & {*one.versions})
    ]
    return {
        "subject": {"kind": erasure.kind, "hash": erasure.subject.hex()},
        "key_store": store.id,
        "begun": _text(erasure.begun_ms),
        "ended": _text(time.time_ns() // 1_000_000),
        "keys_dropped": list(erasure.key_ids),
        "made_unreadable": dict(after.found.encrypted),
        "records_erased": {
            place: count for place, count in erased.items() if not place.startswith(_EVENTS)
        },
        "events_erased": {
            place.removeprefix(_EVENTS): count
            for place, count in erased.items()
            if place.startswith(_EVENTS)
        },
        "topics_searched": after.found.topics,
        # As they were when the erasure began: later versions are derived from a log without it.
        "derived": [one.as_json() for one in planned.derived],
        "incomplete": [
            *(
                f"{place}: {count} {'events' if place.startswith(_EVENTS) else 'records'}"
                " in plain text"
                for place, count in left.items()
            ),
            *failures,
            *(
                f"{topic}: {count} values of Avro or Protobuf were not searched"
                for topic, count in after.found.not_searched.items()
            ),
            *(
                f"{one.pipeline}/{one.write} holds plain text until `headwater pipeline rebuild"
                f" {one.pipeline} --promote --drop`"
                for one in held
            ),
        ],
        "not_reached": {
            "consumer_groups": after.groups,
            "backups": [backup["path"] for backup in after.backups],
            "other": [
                "the source database, which leads: the row there is its owner's to delete",
                "backups of the key store from before: they hold the dropped keys",
                "copies that consumers have made, with and without a group",
                *([_OF_EVENT_STORE] if after.plain_events.is_searched else []),
            ],
        },
    }


def _holds_plain_text(store: DerivedStore, erasure: Erasure) -> bool:
    """It was derived in plain text: by decryption, or from records that were never encrypted."""
    return store.is_decrypted or bool(erasure.records)


def old_versions(seen: Preview, erasure: Erasure | None) -> dict[DerivedStore, list[int]]:
    """Of stores that hold plain text: the versions that were derived before this erasure."""
    if erasure is None:
        return {}
    then = {
        (one["pipeline"], one["write"]): {*one["versions"]}
        for one in (erasure.receipt or {}).get("derived", [])
    }
    found = {
        one: sorted({*one.versions} & then.get((one.pipeline, one.write), set()))
        for one in seen.derived
        if _holds_plain_text(one, erasure)
    }
    return {one: versions for one, versions in found.items() if versions}


def renewed(store: KeyStore, erasure: Erasure) -> dict[str, Any]:
    """The receipt of an erasure that has left something, signed again when nothing is left."""
    old = {name: value for name, value in (erasure.receipt or {}).items() if name != "signature"}
    content = {**old, "incomplete": [], "completed": _text(time.time_ns() // 1_000_000)}
    receipt = signed(content, store.signing_key())
    store.end_erasure(erasure, receipt)
    return receipt


def _text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
