"""The keys that a process uses: created in groups, cached, and dropped with the store's.

A new subject's key is used at once and stored by `flush`, which its user calls before the records
that need it become visible. So a snapshot of a million rows does not sync a million times.

A key that another process drops is noticed by `refresh`, which costs microseconds: readers call it
before each batch, `flush` does it for writers. What a writer encrypts with a dropped key in between
nobody can read.
"""

import threading
from collections.abc import Collection
from typing import Any, Final

import orjson

from headwater.errors import SubjectErased
from headwater.subjects.key_store import DataKey, KeyStore
from headwater.subjects.sealing import ERASED, Sealer, Tampered, key_id_of

_MOST_CACHED: Final = 200_000


class Keyring:
    """Thread-safe."""

    def __init__(self, store: KeyStore) -> None:
        self.store = store
        self._lock = threading.RLock()
        self._by_subject: dict[tuple[str, str], Sealer | None] = {}  # None: it was erased
        self._by_id: dict[str, Sealer | None] = {}  # None: it was dropped
        self._ids: dict[str, tuple[str, str]] = {}  # whose each key is; that never changes
        self._pending: dict[tuple[str, bytes], DataKey] = {}  # by kind and subject
        self._seen = store.erasures_begun()

    def encrypt(self, kind: str, subject_id: str, field: str, value: Any) -> str:
        """ERASED for a subject that was erased. The text counts only after `flush`. Raises
        KeyStoreError; TypeError for a value that JSON has no form for.
        """
        return self.encrypt_json(kind, subject_id, field, orjson.dumps(value))

    def encrypt_json(self, kind: str, subject_id: str, field: str, plain: bytes) -> str:
        """The same for a value that is JSON already."""
        try:
            sealer = self._by_subject[kind, subject_id]
        except KeyError:
            sealer = self._sealer(kind, subject_id)
        return ERASED if sealer is None else sealer.seal(field, plain)

    def check_subject(self, token: str, kind: str, subject_id: str) -> None:
        """Raises Tampered if the token is of another subject. Of one whose key was dropped nothing
        can be said, and nothing can be read.
        """
        if token == ERASED:
            return
        key_id = key_id_of(token)
        sealer = self._by_id[key_id] if key_id in self._by_id else self._sealer_by_id(key_id)
        if sealer is None:
            return
        known = self._ids.get(key_id)
        if known != (kind, subject_id):
            if (sealer.kind, sealer.subject) != (kind, self.store.subject_hash(kind, subject_id)):
                raise Tampered("the encrypted value was moved from another subject")
            if len(self._ids) >= _MOST_CACHED:
                self._ids.clear()
            self._ids[key_id] = (kind, subject_id)

    def decrypt(self, token: str, field: str, kinds: Collection[str] | None = None) -> bytes | None:
        """The value as JSON; None if it was erased; the token as JSON itself if its subject is of
        none of these kinds. Raises Tampered, also for a key that the store has never had;
        KeyStoreError.
        """
        if token == ERASED:
            return None
        key_id = key_id_of(token)
        try:
            sealer = self._by_id[key_id]
        except KeyError:
            sealer = self._sealer_by_id(key_id)
        if sealer is None:
            return None
        if kinds is not None and sealer.kind not in kinds:
            return b'"' + token.encode() + b'"'
        return sealer.open(field, token)

    def flush(self) -> None:
        """Stores the keys of subjects that were new; then texts that were encrypted with them may
        become visible. Raises SubjectErased if one was erased meanwhile: its texts must not.
        """
        with self._lock:
            pending, self._pending = self._pending, {}
            try:
                if pending:
                    self.store.add(list(pending.values()))
            except BaseException:
                self._clear()
                raise
            self.refresh()

    def refresh(self) -> None:
        """Forgets cached keys if a subject was erased since."""
        seen = self.store.erasures_begun()
        if seen != self._seen:
            with self._lock:
                self._clear()
                self._seen = seen

    def _clear(self) -> None:
        self._by_subject.clear()
        self._by_id.clear()
        for key in self._pending.values():  # those of other threads are used on
            self._by_id[key.key_id] = self.store.sealer(key)

    def _sealer(self, kind: str, subject_id: str) -> Sealer | None:
        with self._lock:
            subject = self.store.subject_hash(kind, subject_id)
            try:
                key = self._pending.get((kind, subject)) or self.store.key_of(kind, subject)
                if key is None:
                    key = self._pending[kind, subject] = self.store.new_key(kind, subject)
                sealer = self.store.sealer(key)
            except SubjectErased:
                sealer = None
            if len(self._by_subject) >= _MOST_CACHED:
                self._by_subject.clear()
            self._by_subject[kind, subject_id] = sealer
            return sealer

    def _sealer_by_id(self, key_id: str) -> Sealer | None:
        with self._lock:
            key = self.store.key_by_id(key_id)
            if key is None:
                pending = self._pending.values()
                key = next((one for one in pending if one.key_id == key_id), None)
            if key is None:
                raise Tampered("its key is none of this key store")
            if len(self._by_id) >= _MOST_CACHED:
                self._by_id.clear()
            sealer = self._by_id[key_id] = self.store.sealer(key)
            return sealer
