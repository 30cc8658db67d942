"""Users and their stored credentials: salted hashes, never the passwords.

A user is a document in the catalog: {mechanism: {iterations, salt, stored_key, server_key}}. A
change is durable before it is answered, and counts for every login that is not over by then.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headwater.log.store import LogStore
from headwater.protocol import scram
from headwater.protocol.scram import Credential

KIND = "user"
SECRETS = "secret"
_UNKNOWN_USERS = "unknown_users"
MAX_NAME_CHARACTERS = 255
DEFAULT_ITERATIONS = 4096  # what `headwater user create` stores


class Users:
    """Looks up and checks. Lives on the event loop; what takes milliseconds runs in a thread."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        # Not the threads of the disk: a flood of wrong passwords must not hold up the log.
        self._thread = ThreadPoolExecutor(1, "password")
        # A thousand clients that come back at once should not cost seconds of hashing. Kept is no
        # password and no hash that is of use outside this process.
        self._key = secrets.token_bytes(32)
        self._verified: dict[str, tuple[Credential, bytes]] = {}
        self._salt_key = secrets.token_bytes(32)
        self._usual: dict[str, tuple[int, int]] = {}  # iterations, bytes of salt; by mechanism

    async def start(self) -> None:
        """The log is open."""
        stored_key = self._store.catalog.documents.get(SECRETS, {}).get(_UNKNOWN_USERS)
        if stored_key is None:
            stored_key = base64.b64encode(self._salt_key).decode()
            await self._store.put_documents(SECRETS, {_UNKNOWN_USERS: stored_key})
        self._salt_key = base64.b64decode(stored_key)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def names(self) -> list[str]:
        return sorted(self._documents())

    def credentials(self, name: str) -> dict[str, Credential]:
        """By mechanism; empty for a user who does not exist."""
        return credentials_of(self._documents().get(name, {}))

    def still_knows(self, name: str, mechanism: str | None) -> bool:
        """Whether who has logged in so could have done so still."""
        stored = self._documents().get(name, {})
        return bool(stored) if mechanism == "PLAIN" else mechanism in stored

    def credential_or_fake(self, name: str, mechanism: str) -> Credential:
        """For a user without one, a credential that no password matches.

        Its salt is the same every time, also after a restart, and it looks as most real ones do, so
        that no client can distinguish it from one.
        """
        return self.credentials(name).get(mechanism) or self._fake(name, mechanism)

    def _fake(self, name: str, mechanism: str) -> Credential:
        iterations, salt_bytes = self._usual_of(mechanism)
        salt = hashlib.shake_256(self._salt_key + f"{mechanism}:{name}".encode()).digest(salt_bytes)
        random_key = secrets.token_bytes(32 if mechanism == "SCRAM-SHA-256" else 64)
        return Credential(mechanism, iterations, salt, random_key, random_key)

    def _usual_of(self, mechanism: str) -> tuple[int, int]:
        if mechanism not in self._usual:
            found = Counter(
                (credential["iterations"], len(base64.b64decode(credential["salt"])))
                for document in self._documents().values()
                if (credential := document.get(mechanism)) is not None
            )
            most_common = found.most_common(1) or [((DEFAULT_ITERATIONS, scram.SALT_BYTES), 0)]
            self._usual[mechanism] = most_common[0][0]
        return self._usual[mechanism]

    async def is_password(self, name: str, password: str) -> bool:
        """Whether the user exists and this is the password; takes as long if not."""
        stored = self.credentials(name)
        credential = next(iter(stored.values()), None) or self._fake(name, "SCRAM-SHA-256")
        mark = hmac.digest(self._key, password.encode(), "sha256")
        verified = self._verified.get(name)
        if (
            verified is not None
            and verified[0] == credential
            and hmac.compare_digest(verified[1], mark)
        ):
            return True
        is_right = await self._in_thread(credential.matches, password)
        if not is_right or credential not in self.credentials(name).values():
            return False  # or no longer
        self._verified[name] = (credential, mark)
        return True

    async def put(self, changes: dict[str, dict[str, Credential | None]]) -> None:
        """Sets (or, with None, removes) credentials of users, by name and mechanism, all or none.

        A user without any is removed.
        """
        documents: dict[str, Any] = {}
        for name, credentials in changes.items():
            remaining = {**self.credentials(name), **credentials}
            document = document_of(
                [credential for credential in remaining.values() if credential is not None]
            )
            documents[name] = document or None
            self._verified.pop(name, None)
        await self._store.put_documents(KIND, documents)
        self._usual.clear()

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _documents(self) -> dict[str, Any]:
        return self._store.catalog.documents.get(KIND, {})


def document_of(credentials: list[Credential]) -> dict[str, Any]:
    """As it stands in the catalog."""
    return {
        credential.mechanism: {
            "iterations": credential.iterations,
            "salt": base64.b64encode(credential.salt).decode(),
            "stored_key": base64.b64encode(credential.stored_key).decode(),
            "server_key": base64.b64encode(credential.server_key).decode(),
        }
        for credential in credentials
    }


def credentials_of(document: dict[str, Any]) -> dict[str, Credential]:
    return {
        mechanism: Credential(
            mechanism,
            credential["iterations"],
            base64.b64decode(credential["salt"]),
            base64.b64decode(credential["stored_key"]),
            base64.b64decode(credential["server_key"]),
        )
        for mechanism, credential in document.items()
    }
