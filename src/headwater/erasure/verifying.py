"""Whether something readable of an erased subject is left where Headwater can look.

The keys have to be gone, no record may have a personal field of the subject in plain text, and no
store that was derived in plain text may be as old as the erasure. Without the keys nobody knows
what the values were, so files and rows are searched for them only if the caller gives some
(`texts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwater import config
from headwater.erasure.erasing import old_versions, preview
from headwater.erasure.searching import OnSearched
from headwater.erasure.subject import Subject
from headwater.erasure.texts import TextSearch, search_texts
from headwater.subjects.key_store import KeyStore


@dataclass(frozen=True, slots=True)
class ErasureVerdict:
    subject: Subject
    left: list[str]  # what is readable, or cannot be excluded
    searched: dict[str, Any]

    @property
    def is_erased(self) -> bool:
        return not self.left


def verify_erased(
    loaded: config.Config,
    store: KeyStore,
    subject: Subject,
    texts: Sequence[str] = (),
    on_searched: OnSearched = lambda *_: None,
) -> ErasureVerdict:
    """Changes nothing. `texts`: values of the person, searched for in files and rows (texts.py)."""
    seen = preview(loaded, store, subject, on_searched)
    hashed = store.subject_hash(subject.kind, subject.id)
    erasure = store.last_erasure(subject.kind, hashed)
    left = [f"key {key_id} can still be used" for key_id in seen.live_keys]
    if seen.erased_ms is None and not seen.is_unknown:
        left.append("the subject was never erased")
    left += [
        f"{topic}-{partition}: {len(offsets)} records in plain text, the first at offset"
        f" {offsets[0]} ({', '.join(sorted(seen.found.plain_fields[topic]))})"
        for (topic, partition), offsets in seen.found.plain.items()
    ]
    left += [
        f"{topic}: {count} values of Avro or Protobuf were not searched"
        for topic, count in seen.found.not_searched.items()
    ]
    left += [
        f"event store, {stream}: {count} events in plain text"
        for stream, count in seen.plain_events.counts().items()
    ]
    if seen.plain_events.is_rewriting:
        left.append("event store: its files are not rewritten yet; `headwater erase` does it")
    if seen.interrupted is not None:
        left.append("its erasure is not complete; `headwater erase` continues it")
    had_plain_text = erasure is not None and bool(erasure.records)
    left += [
        f"{one.pipeline}/{one.write} cannot be read: {one.error}"
        for one in seen.derived
        if one.error is not None and (one.is_decrypted or had_plain_text)
    ]
    left += [
        f"{one.pipeline}/{one.write}: version {', '.join(map(str, versions))} was derived before"
        f" the erasure; `headwater pipeline rebuild {one.pipeline} --promote --drop` replaces it"
        for one, versions in old_versions(seen, erasure).items()
    ]
    of_texts = search_texts(loaded, texts) if texts else TextSearch()
    left += of_texts.left
    searched = {
        "topics": seen.found.topics,
        "records": seen.found.records,
        "stores": sorted(
            {*of_texts.stores, *(f"{one.pipeline}/{one.write}" for one in seen.derived)}
        ),
        "files": of_texts.files,
        "unreadable_records": seen.found.encrypted,
    }
    return ErasureVerdict(subject, left, searched)
