"""The key store: data keys of subjects, wrapped; erased subjects; erasures under way.

Envelope encryption: the root key (root_key.py) wraps a *wrapping key*, which wraps the data keys,
one for each subject. A subject is known by a hash under a secret of the store (HMAC), so that the
store lists no names.

To erase a subject is to delete the wrapped key. The subject then stays *erased*: no key is created
for it again, unless `allow` says so.
"""

import hmac
import json
import math
import os
import sqlite3
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headwater.errors import KeyStoreError, SubjectErased
from headwater.subjects import key_database
from headwater.subjects.key_database import FILE, creation_lock, unusable
from headwater.subjects.root_key import FileRootKey, RootKey
from headwater.subjects.sealing import KEY_BYTES, KEY_ID_BYTES, Sealer
from headwater.subjects.settings import KeyPlaces

_NONCE_BYTES: Final = 12
_ROTATED_AT_ONCE: Final = 10_000
_ASKED_AT_ONCE: Final = 400
_FILE_CHECKED_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class DataKey:
    key_id: str
    kind: str
    subject: bytes  # the hash
    key: bytes | None  # None: it was dropped


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure of a subject, from the moment its keys are dropped."""

    id: str
    kind: str
    subject: bytes
    begun_ms: int
    ended_ms: int | None
    key_ids: tuple[str, ...]
    records: Mapping[str, int]  # by topic-partition: records to erase that were found before
    receipt: Mapping[str, Any] | None


class KeyStore:
    """An open key store. Thread-safe; of one process (a child opens its own)."""

    def __init__(self, places: KeyPlaces, *, create: bool = True) -> None:
        """Creates the store at its first use, unless `create` is False. Raises KeyStoreLost if it
        was there and is not, KeyStoreError if it or the root key cannot be used.
        """
        self.places = places
        self._path = Path(places.key_store, FILE)
        self._lock = threading.RLock()
        self._file_checked_s = time.monotonic()
        if create and not self._path.exists():
            with creation_lock(places):
                if not self._path.exists():
                    self._connection = key_database.create(places, _new_id())
                    self._file_number = _file_number(self._path)
                    self._add_secrets(key_database.root_key(places))
                else:
                    self._connection = key_database.connect(places)
        else:
            self._connection = key_database.connect(places)
        self._file_number = _file_number(self._path)
        self.id = str(self._one("select id from store")[0])
        self._unlock(key_database.root_key(places))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # ── data keys ───────────────────────────────────────────────────────────────────────────────

    def subject_hash(self, kind: str, subject_id: str) -> bytes:
        return hmac.digest(self._index_key, f"{kind}\0{subject_id}".encode(), "sha256")

    def key_of(self, kind: str, subject: bytes) -> DataKey | None:
        """The key for new values; None if there is none yet. Raises SubjectErased."""
        rows = self._all(
            "select key_id, wrapped, wrapping_key, created_ms from data_keys"
            " where kind = ? and subject = ? and wrapped is not null"
            " union all select null, null, null, 0 from erased where kind = ? and subject = ?",
            (kind, subject, kind, subject),
        )
        keys = sorted((row[3], row[:3]) for row in rows if row[0] is not None)
        if keys:  # of several that processes made at the same moment, the first
            key_id, wrapped, wrapping_key = keys[0][1]
            key = self._unwrapped(key_id, wrapped, wrapping_key)
            return DataKey(key_id, kind, subject, key)
        if rows:
            raise _erased(kind, subject)
        return None

    def key_by_id(self, key_id: str) -> DataKey | None:
        """For values that exist; None if the store has never had such a key."""
        found = self._one(
            "select kind, subject, wrapped, wrapping_key from data_keys where key_id = ?", (key_id,)
        )
        if found is None:
            return None
        kind, subject, wrapped, wrapping_key = found
        key = None if wrapped is None else self._unwrapped(key_id, wrapped, wrapping_key)
        return DataKey(key_id, kind, subject, key)

    def new_key(self, kind: str, subject: bytes) -> DataKey:
        """A key that is not stored until `add`."""
        key_id = urlsafe_b64encode(os.urandom(KEY_ID_BYTES)).decode()
        return DataKey(key_id, kind, subject, os.urandom(KEY_BYTES))

    def add(self, keys: Sequence[DataKey]) -> None:
        """Stores new keys, durably when it returns. Raises SubjectErased if a subject has been
        erased meanwhile; then none of them is stored.
        """
        now_ms = _now_ms()
        with self._transaction() as connection:
            for kind, subject in self._erased_among(connection, keys):
                raise _erased(kind, subject)
            connection.executemany(
                "insert into data_keys values (?, ?, ?, ?, ?, ?, null)",
                [
                    (
                        key.key_id, key.kind, key.subject, self._wrapping_id,
                        self._wrapped(key.key_id, key.key), now_ms,
                    )
                    for key in keys
                ],
            )  # fmt: skip

    def sealer(self, key: DataKey) -> Sealer | None:
        """None if the key was dropped."""
        return None if key.key is None else Sealer(key.key_id, key.key, key.kind, key.subject)

    def key_ids(self, kind: str, subject: bytes) -> dict[str, bool]:
        """All keys that the subject has had, and whether each can still be used."""
        rows = self._all(
            "select key_id, wrapped is not null from data_keys where kind = ? and subject = ?",
            (kind, subject),
        )
        return {key_id: bool(is_there) for key_id, is_there in rows}

    def counts(self) -> dict[str, tuple[int, int]]:
        """By kind: subjects with a key, subjects that were erased."""
        keys = dict(
            self._all(
                "select kind, count(distinct subject) from data_keys where wrapped is not null"
                " group by kind"
            )
        )
        erased = dict(self._all("select kind, count(*) from erased group by kind"))
        return {kind: (keys.get(kind, 0), erased.get(kind, 0)) for kind in {*keys, *erased}}

    def erasures_begun(self) -> int:
        """How often subjects were erased, or allowed again: keys in memory are valid as long as it
        is the same. Raises KeyStoreLost if the store has gone meanwhile.
        """
        with self._lock:
            self._check_file()
        return int(self._one("pragma user_version")[0])

    # ── erasure ─────────────────────────────────────────────────────────────────────────────────

    def erased_at_ms(self, kind: str, subject: bytes) -> int | None:
        found = self._one(
            "select erased_ms from erased where kind = ? and subject = ?", (kind, subject)
        )
        return None if found is None else int(found[0])

    def begin_erasure(
        self, kind: str, subject: bytes, records: Mapping[str, int]
    ) -> tuple[Erasure, bool]:
        """Drops all keys of the subject, marks it as erased, and records that its erasure is under
        way, in one transaction. The second is whether an erasure that was interrupted goes on.
        """
        with self._transaction() as connection:
            found = self._erasure(kind, subject, "and ended_ms is null")
            dropped = [key_id for key_id, there in self.key_ids(kind, subject).items() if there]
            now_ms = _now_ms()
            connection.execute(
                "update data_keys set wrapped = null, dropped_ms = ?"
                " where kind = ? and subject = ? and wrapped is not null",
                (now_ms, kind, subject),
            )
            connection.execute(
                "insert or ignore into erased values (?, ?, ?)", (kind, subject, now_ms)
            )
            _count_erasure(connection)
            before = found or Erasure(_new_id(), kind, subject, now_ms, None, (), {}, None)
            erasure = Erasure(
                before.id, kind, subject, before.begun_ms, None,
                (*before.key_ids, *dropped), {**before.records, **records}, None,
            )  # fmt: skip
            connection.execute(
                "insert or replace into erasures values (?, ?, ?, ?, null, ?, ?, null)",
                (
                    erasure.id, kind, subject, erasure.begun_ms,
                    json.dumps(erasure.key_ids), json.dumps(dict(erasure.records)),
                ),
            )  # fmt: skip
        return erasure, found is not None

    def end_erasure(
        self, erasure: Erasure, receipt: Mapping[str, Any], *, is_complete: bool = True
    ) -> None:
        """Stores the receipt. An erasure that is not complete stays under way."""
        with self._transaction() as connection:
            connection.execute(
                "update erasures set ended_ms = ?, receipt = ? where id = ?",
                (_now_ms() if is_complete else None, json.dumps(receipt), erasure.id),
            )

    def last_erasure(self, kind: str, subject: bytes) -> Erasure | None:
        return self._erasure(kind, subject, "")

    def allow(self, kind: str, subject: bytes) -> bool:
        """Keys may be created again for a subject that was erased. What was erased stays so."""
        with self._transaction() as connection:
            done = connection.execute(
                "delete from erased where kind = ? and subject = ?", (kind, subject)
            )
            _count_erasure(connection)
            return done.rowcount > 0

    def signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._signing_key)

    # ── rotation ────────────────────────────────────────────────────────────────────────────────

    def rotate(self) -> int:
        """A new root key (in a file; a KMS rotates its own) and a new wrapping key, by which every
        key is wrapped again; the old ones are deleted. Values stay as they are. Returns how many
        data keys were wrapped. After a crash the old or the new keys are in use, and open.
        """
        with creation_lock(self.places):  # of two rotations at once, one would lose the other's key
            return self._rotate()

    def _rotate(self) -> int:
        root = key_database.root_key(self.places)
        if isinstance(root, FileRootKey):
            root = root.begin_rotation()
        with self._transaction() as connection:
            self._unlock(root)  # as they are now: another process may have rotated
            wrapping_id, wrapping_key = _new_id(), os.urandom(KEY_BYTES)
            connection.execute(
                "insert into wrapping_keys values (?, ?, ?)",
                (wrapping_id, root.wrap(wrapping_key), _now_ms()),
            )
            count, after = 0, ""
            while rows := connection.execute(
                "select key_id, wrapped, wrapping_key from data_keys"
                " where key_id > ? and wrapped is not null order by key_id limit ?",
                (after, _ROTATED_AT_ONCE),
            ).fetchall():
                connection.executemany(
                    "update data_keys set wrapped = ?, wrapping_key = ? where key_id = ?",
                    [
                        (_wrap(wrapping_key, row[0], self._unwrapped(*row)), wrapping_id, row[0])
                        for row in rows
                    ],
                )
                count, after = count + len(rows), rows[-1][0]
            for name, secret in (("index", self._index_key), ("signing", self._signing_key)):
                connection.execute(
                    "update secrets set wrapping_key = ?, wrapped = ? where name = ?",
                    (wrapping_id, _wrap(wrapping_key, name, secret), name),
                )
            connection.execute("delete from wrapping_keys where id <> ?", (wrapping_id,))
        self._unlock(root)
        if isinstance(root, FileRootKey):
            root.end_rotation()
        return count

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _add_secrets(self, root: RootKey) -> None:
        wrapping_id, wrapping_key = _new_id(), os.urandom(KEY_BYTES)
        signing = Ed25519PrivateKey.generate()
        public = signing.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        secrets = {"index": os.urandom(KEY_BYTES), "signing": signing.private_bytes_raw()}
        with self._transaction() as connection:
            connection.execute(
                "insert into wrapping_keys values (?, ?, ?)",
                (wrapping_id, root.wrap(wrapping_key), _now_ms()),
            )
            connection.executemany(
                "insert into secrets values (?, ?, ?)",
                [
                    (name, wrapping_id, _wrap(wrapping_key, name, secret))
                    for name, secret in secrets.items()
                ],
            )
            connection.execute("insert into public_keys values ('signing', ?)", (public,))

    def _unlock(self, root: RootKey) -> None:
        self._wrapping = {
            key_id: root.unwrap(wrapped)
            for key_id, wrapped in self._all(
                "select id, wrapped from wrapping_keys order by created_ms"
            )
        }
        if not self._wrapping:
            raise unusable(self._path, ValueError("its creation was interrupted; delete it"))
        self._wrapping_id = list(self._wrapping)[-1]
        secrets = {
            name: self._unwrapped(name, wrapped, wrapping_key)
            for name, wrapped, wrapping_key in self._all(
                "select name, wrapped, wrapping_key from secrets"
            )
        }
        self._index_key, self._signing_key = secrets["index"], secrets["signing"]

    def _wrapped(self, name: str, secret: bytes | None) -> bytes:
        assert secret is not None, "a key that was dropped is not stored"
        return _wrap(self._wrapping[self._wrapping_id], name, secret)

    def _unwrapped(self, name: str, wrapped: bytes, wrapping_id: str) -> bytes:
        if wrapping_id not in self._wrapping:
            self._unlock(key_database.root_key(self.places))  # another process has rotated
        try:
            key = AESGCM(self._wrapping[wrapping_id])
            return key.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], name.encode())
        except (KeyError, InvalidTag, ValueError) as error:
            raise KeyStoreError(
                "a key of the key store does not open",
                detail=f"{self._path}: {name}",
                hint="the file was changed; restore it from its backup",
            ) from error

    def _erased_among(
        self, connection: sqlite3.Connection, keys: Sequence[DataKey]
    ) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        for at in range(0, len(keys), _ASKED_AT_ONCE):
            part = keys[at : at + _ASKED_AT_ONCE]
            marks = ", ".join(["(?, ?)"] * len(part))
            found += connection.execute(
                f"select kind, subject from erased where (kind, subject) in (values {marks})",
                [value for key in part for value in (key.kind, key.subject)],
            ).fetchall()
        return found

    def _erasure(self, kind: str, subject: bytes, condition: str) -> Erasure | None:
        row = self._one(
            "select id, kind, subject, begun_ms, ended_ms, key_ids, records, receipt from erasures"
            f" where kind = ? and subject = ? {condition} order by begun_ms desc, rowid desc",
            (kind, subject),
        )
        if row is None:
            return None
        erasure_id, _, _, begun_ms, ended_ms, key_ids, records, receipt = row
        return Erasure(
            erasure_id, kind, subject, begun_ms, ended_ms,
            tuple(json.loads(key_ids)), json.loads(records),
            None if receipt is None else json.loads(receipt),
        )  # fmt: skip

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._check_file()
            try:
                self._connection.execute("begin immediate")
                try:
                    yield self._connection
                    self._connection.execute("commit")
                except BaseException:
                    with suppress(sqlite3.Error):
                        self._connection.execute("rollback")
                    raise
            except sqlite3.Error as error:
                raise unusable(self._path, error) from error

    def _all(self, statement: str, values: Iterable[Any] = ()) -> list[Any]:
        with self._lock:
            if time.monotonic() > self._file_checked_s + _FILE_CHECKED_S:
                self._check_file()
            try:
                return self._connection.execute(statement, tuple(values)).fetchall()
            except sqlite3.Error as error:
                raise unusable(self._path, error) from error

    def _check_file(self) -> None:
        """An open file outlives its name: what is written into it then is lost."""
        if _file_number(self._path) != self._file_number:
            self._file_checked_s = -math.inf  # until another one is open
            self._connection.close()
            self._connection = key_database.connect(self.places)
            self._file_number = _file_number(self._path)
        self._file_checked_s = time.monotonic()

    def _one(self, statement: str, values: Iterable[Any] = ()) -> Any:
        rows = self._all(statement, values)
        return rows[0] if rows else None


def _count_erasure(connection: sqlite3.Connection) -> None:
    (count,) = connection.execute("pragma user_version").fetchone()
    connection.execute(f"pragma user_version = {int(count) + 1}")


def _erased(kind: str, subject: bytes) -> SubjectErased:
    return SubjectErased(
        f"a {kind} was erased, and gets no key again",
        detail=f"subject {subject.hex()[:16]}…",
        hint="`headwater subject allow KIND:ID` allows it, if the person has come back",
    )


def _wrap(wrapping_key: bytes, name: str, secret: bytes) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(wrapping_key).encrypt(nonce, secret, name.encode())


def _file_number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _new_id() -> str:
    return os.urandom(8).hex()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
