"""Whether something readable of an erased subject is left where Headwater can look.

The keys have to be gone, no record may have a personal field of the subject in plain text, and no
store that was derived in plain text may be as old as the erasure. Without the keys nobody knows
what the values were, so files are searched for them only if the caller gives some (`texts`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headwater import config
from headwater.erasure.erasing import preview
from headwater.erasure.searching import OnSearched
from headwater.erasure.subject import Subject
from headwater.subjects.key_store import KeyStore

_CHUNK_BYTES: Final = 1 << 24


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
    """Changes nothing. `texts`: values of the person, searched for in all files of the data
    directory and the state of pipelines, byte by byte.
    """
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
    before = _versions_then(erasure.receipt if erasure else None)
    had_plain_text = erasure is not None and bool(erasure.records)
    for one in seen.derived:
        if not one.is_decrypted and not had_plain_text:
            continue
        name = f"{one.pipeline}/{one.write}"
        if one.error is not None:
            left.append(f"{name} cannot be read: {one.error}")
        elif old := [number for number in one.versions if number in before.get(name, ())]:
            left.append(
                f"{name}: version {', '.join(map(str, old))} was derived before the erasure;"
                f" `headwater pipeline rebuild {one.pipeline}` and `headwater pipeline promote"
                f" {one.pipeline} --drop` replace it"
            )
    files = 0
    for file in _files(loaded) if texts else ():
        files += 1
        left += [f"{file} contains one of the texts" for text in texts if _contains(file, text)]
    searched = {
        "topics": seen.found.topics,
        "records": seen.found.records,
        "stores": [f"{one.pipeline}/{one.write}" for one in seen.derived],
        "files": files,
        "unreadable_records": seen.found.encrypted,
    }
    return ErasureVerdict(subject, left, searched)


def _versions_then(receipt: Any) -> dict[str, tuple[int, ...]]:
    return {
        f"{one['pipeline']}/{one['write']}": tuple(one["versions"])
        for one in (receipt or {}).get("derived", [])
    }


def _files(loaded: config.Config) -> Iterator[Path]:
    """Of the data directory, the archive if it is a directory, and the state of pipelines."""
    roots = {(loaded.base / loaded.broker.data_dir).resolve(), loaded.state_dir()}
    archive = loaded.broker.archive or ""
    if archive.startswith("file://"):
        roots.add(Path(archive.removeprefix("file://")).resolve())
    inner = {root for root in roots if any(root != one and one in root.parents for one in roots)}
    for root in sorted(roots - inner):
        for directory, _, names in os.walk(root):
            for name in names:
                file = Path(directory, name)
                if file.is_file() and not file.is_symlink():
                    yield file


def _contains(file: Path, text: str) -> bool:
    """Whether the bytes are in the file, as UTF-8. Compressed data is not looked into."""
    wanted = text.encode()
    before = b""
    try:
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                if wanted in before + chunk:
                    return True
                before = chunk[-len(wanted) :]
    except OSError:
        return False  # it was removed meanwhile
    return False
