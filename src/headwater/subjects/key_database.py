"""The SQLite database of a key store: its tables, its creation, and whether it is the right one.

A key store is a directory of its own with `keys.sqlite` (mode 0600). It is created at first use
only: a marker in the data directory has the store's id, so that a store which was lost or replaced
is an error, and not an empty store in which every subject gets a new key.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headwater.errors import KeyStoreError, KeyStoreLost
from headwater.private_files import open_lock, replace
from headwater.subjects.root_key import CommandRootKey, FileRootKey, RootKey
from headwater.subjects.settings import KeyPlaces

FILE: Final = "keys.sqlite"
FORMAT: Final = 1
_BUSY_S: Final = 30.0
_SCHEMA: Final = """
create table store (id text not null, format integer not null, created_ms integer not null);
create table wrapping_keys (
    id text primary key, wrapped blob not null, created_ms integer not null
);
-- Secrets of the store itself, wrapped: "index" hashes subjects, "signing" signs receipts.
create table secrets (name text primary key, wrapping_key text not null, wrapped blob not null);
create table public_keys (name text primary key, value blob not null);
create table data_keys (
    key_id text primary key, kind text not null, subject blob not null,
    wrapping_key text not null, wrapped blob, created_ms integer not null, dropped_ms integer
);
create index data_keys_of_subject on data_keys (kind, subject);
create table erased (
    kind text not null, subject blob not null, erased_ms integer not null,
    primary key (kind, subject)
);
create table erasures (
    id text primary key, kind text not null, subject blob not null, begun_ms integer not null,
    ended_ms integer, key_ids text not null, records text not null, receipt text
);
"""


def exists(places: KeyPlaces) -> bool:
    return Path(places.key_store, FILE).exists()


def is_unused(places: KeyPlaces) -> bool:
    """Whether there was never a key store for this data directory."""
    return not exists(places) and _marked(places) is None


def root_key(places: KeyPlaces) -> RootKey:
    """Raises KeyStoreError."""
    if places.key_command:
        return CommandRootKey(places.key_command)
    return FileRootKey(Path(places.key_file))


def connect(places: KeyPlaces) -> sqlite3.Connection:
    """A connection to the store that belongs to the data directory. Raises KeyStoreLost if it is
    not there or another one, KeyStoreError if it cannot be read.
    """
    path = Path(places.key_store, FILE)
    expected = _marked(places)
    if not path.exists():
        if expected is None:
            raise KeyStoreError(
                "there is no key store yet",
                detail=str(path),
                hint="it is created with the first personal field; `subjects.key_store` says where",
            )
        raise KeyStoreLost(
            "the key store is not there",
            detail=f"{path}, with the keys of personal fields; its id is {expected}",
            hint="restore it from its backup; nothing is written in plain text meanwhile",
        )
    try:
        connection = sqlite3.connect(
            path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        # Dropped keys are overwritten, not only unlinked; and no write-ahead log retains them, nor
        # would one work on the shared volume of a cluster. A key must be durable before a record
        # that needs it is.
        connection.execute("pragma secure_delete = on")
        connection.execute("pragma journal_mode = truncate")
        connection.execute("pragma synchronous = full")
        store_id, form = connection.execute("select id, format from store").fetchone()
    except (sqlite3.Error, TypeError, OSError) as error:
        raise unusable(path, error) from error
    if form != FORMAT:
        connection.close()
        raise KeyStoreError(
            "the key store is of another version of Headwater", detail=f"{path}: format {form}"
        )
    if expected not in (None, store_id):
        connection.close()
        raise KeyStoreLost(
            "the key store is another one than the data directory was used with",
            detail=f"{path} has the id {store_id}, and {places.marker} says {expected}",
            hint="restore the right one from its backup; if that is lost for good, every value that"
            f" it encrypted is unreadable, and removing {places.marker} lets the new one be used",
        )
    if expected is None:
        _mark(places, store_id)
    return connection


def create(places: KeyPlaces, store_id: str) -> sqlite3.Connection:
    """A new store without any key. Its root key is made, too, unless a KMS has it. Called with the
    lock held.
    """
    directory = Path(places.key_store)
    path = directory / FILE
    if _marked(places) is not None:
        return connect(places)  # raises: it was there
    if not places.key_command and not Path(places.key_file).exists():
        FileRootKey.create(Path(places.key_file))
    temporary = directory / (FILE + ".new")
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        connection = sqlite3.connect(temporary, isolation_level=None)
        connection.execute("pragma secure_delete = on")
        connection.executescript(_SCHEMA)
        now_ms = time.time_ns() // 1_000_000
        connection.execute("insert into store values (?, ?, ?)", (store_id, FORMAT, now_ms))
        connection.close()
        temporary.replace(path)
    except (sqlite3.Error, OSError) as error:
        raise unusable(path, error) from error
    return connect(places)


@contextmanager
def creation_lock(places: KeyPlaces) -> Iterator[None]:
    """Held by one process at a time. Raises KeyStoreError if the directory cannot be made."""
    directory = Path(places.key_store)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open_lock(directory / "lock")
    except OSError as error:
        raise unusable(directory, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def unusable(path: Path, error: Exception) -> KeyStoreError:
    return KeyStoreError(
        "the key store cannot be used",
        detail=f"{path}: {error}",
        hint="nothing is written in plain text meanwhile; if the file is damaged, restore it from"
        " its backup",
    )


def _marked(places: KeyPlaces) -> str | None:
    try:
        return str(json.loads(Path(places.marker).read_bytes())["id"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeyStoreError(
            "the file that says which key store is used cannot be read",
            detail=f"{places.marker}: {error}",
        ) from error


def _mark(places: KeyPlaces, store_id: str) -> None:
    marker = Path(places.marker)
    try:
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"id": store_id, "key_store": places.key_store}
        replace(marker, json.dumps(about).encode() + b"\n")
    except OSError as error:
        raise unusable(marker, error) from error
