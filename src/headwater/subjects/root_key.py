"""The root key, which wraps the key store's other keys: in a file, or behind a command (KMS).

The root key wraps only the key-encryption keys, of which there are one or two, so an external KMS
is asked once when a process opens the key store, and not for each subject.
"""

import os
import shlex
import subprocess
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headwater.errors import KeyStoreError
from headwater.subjects.sealing import KEY_BYTES

_NONCE_BYTES: Final = 12
_CONTEXT: Final = b"headwater root"
_COMMAND_S: Final = 60.0


class RootKey(Protocol):
    """Wraps and unwraps short secrets. An external KMS implements it."""

    def wrap(self, secret: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Raises KeyStoreError if it was not wrapped by this root key."""
        ...


class FileRootKey:
    """A root key in a file that only its owner can read. The first line is in use; others are of a
    rotation that has not ended.
    """

    def __init__(self, path: Path) -> None:
        """Raises KeyStoreError if the file is missing, malformed, or readable for others."""
        self._path = path
        try:
            mode = path.stat().st_mode & 0o077
            lines = path.read_bytes().split()
        except OSError as error:
            raise KeyStoreError(
                "the root key of the key store cannot be read",
                detail=f"{path}: {error.strerror}",
                hint="without it no personal field can be read or written; restore it from where it"
                " is backed up",
            ) from error
        if mode:
            raise KeyStoreError(
                "the root key of the key store can be read by others",
                detail=str(path),
                hint=f"chmod 600 {path}",
            )
        try:
            self._keys = [b64decode(line, validate=True) for line in lines]
        except ValueError:
            self._keys = []
        if not self._keys or any(len(key) != KEY_BYTES for key in self._keys):
            raise KeyStoreError("the file of the root key has no key in it", detail=str(path))

    @classmethod
    def create(cls, path: Path) -> "FileRootKey":
        """Writes a new key, durably. The file must not exist."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, [os.urandom(KEY_BYTES)])
        return cls(path)

    def wrap(self, secret: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys[0]).encrypt(nonce, secret, _CONTEXT)

    def unwrap(self, wrapped: bytes) -> bytes:
        for key in self._keys:
            with suppress(InvalidTag, ValueError):
                return AESGCM(key).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _CONTEXT)
        raise KeyStoreError(
            "the root key does not open the key store",
            detail=str(self._path),
            hint="it is the root key of another key store, or from before a rotation",
        )

    def begin_rotation(self) -> "FileRootKey":
        """A new key in front of the present one, durably: both open until `end_rotation`."""
        _write(self._path, [os.urandom(KEY_BYTES), *self._keys])
        return FileRootKey(self._path)

    def end_rotation(self) -> None:
        """Only the key in use is left."""
        _write(self._path, self._keys[:1])


class CommandRootKey:
    """A root key that never leaves an external KMS: a command wraps and unwraps with it."""

    def __init__(self, command: str) -> None:
        self._command = command

    def wrap(self, secret: bytes) -> bytes:
        return self._run("wrap", secret)

    def unwrap(self, wrapped: bytes) -> bytes:
        return self._run("unwrap", wrapped)

    def _run(self, action: str, data: bytes) -> bytes:
        try:
            done = subprocess.run(
                [*shlex.split(self._command), action],
                input=b64encode(data) + b"\n",
                capture_output=True,
                timeout=_COMMAND_S,
                check=False,
            )
            if done.returncode:
                lines = done.stderr.decode(errors="replace").strip().splitlines()
                raise self._failed(action, f"exit code {done.returncode}: {(lines or [''])[-1]}")
            return b64decode(done.stdout.strip(), validate=True)
        except subprocess.TimeoutExpired:
            raise self._failed(action, f"no answer in {_COMMAND_S:g} s") from None
        except (OSError, ValueError) as error:
            raise self._failed(action, str(error)) from error

    def _failed(self, action: str, detail: str) -> KeyStoreError:
        return KeyStoreError(
            f"subjects.key_command does not {action} the key of the key store",
            detail=detail[:300],
            hint="it gets base64 on stdin, and has to write base64 to stdout",
        )


def _write(path: Path, keys: list[bytes]) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(b"".join(b64encode(key) + b"\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
