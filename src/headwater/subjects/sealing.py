"""Encryption of one value with the data key of its subject: AES-256-GCM, self-describing texts.

    hw1:<key id>:<base64url of nonce, ciphertext and tag>      an encrypted value
    hw1:erased                                                 a value that was never written

The plaintext is the value as JSON, so that a number is a number again. The additional data binds a
text to the kind and the identity of its subject and to the name of its field: moved to another
field or person, it does not open.

The nonce is an HMAC of plaintext and context under a key of its own (as in SIV modes), not random:
a snapshot that is taken again gives the same bytes, so topics can be compared with their tables,
and a record that is written twice is the same record. Two equal nonces then mean two equal
plaintexts of the same field of the same person, which is all that equal texts reveal.
"""

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX: Final = "hw1:"
ERASED: Final = "hw1:erased"  # written for a subject that was erased before
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 12
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_KEY_ID: Final = slice(4, 20)  # in such a text
_SEALED: Final = slice(21, None)
_TOKEN: Final = re.compile(r"hw1:([A-Za-z0-9_-]{16}):([A-Za-z0-9_-]{38,})")


class Tampered(ValueError):
    """The text is not what was written for this field of this subject."""


def is_token(value: Any) -> bool:
    """Whether a value is of the form of an encrypted or erased one. It may be forged."""
    return isinstance(value, str) and value.startswith(PREFIX) and (
        value == ERASED or _TOKEN.fullmatch(value) is not None
    )  # fmt: skip


def key_id_of(token: str) -> str:
    """Of a text that `is_token`, and not ERASED."""
    return token[_KEY_ID]


class Sealer:
    """The data key of one subject, ready for use."""

    __slots__ = ("_aead", "_context", "_nonce_key", "kind", "prefix", "subject")

    def __init__(self, key_id: str, data_key: bytes, kind: str, subject: bytes) -> None:
        """`subject`: the hash by which the key store knows it."""
        self.kind = kind
        self.subject = subject
        self.prefix = f"{PREFIX}{key_id}:"
        self._aead = AESGCM(hmac.digest(data_key, b"headwater encryption", "sha256"))
        self._nonce_key = hmac.digest(data_key, b"headwater nonce", "sha256")
        self._context = b"\0".join((b"hw1", kind.encode(), subject.hex().encode(), b""))

    def seal(self, field: str, plain: bytes) -> str:
        """`plain`: the value as JSON."""
        context = self._context + field.encode()
        sized = len(context).to_bytes(4, "big") + context + plain
        nonce = hmac.digest(self._nonce_key, sized, "sha256")[:_NONCE_BYTES]
        sealed = nonce + self._aead.encrypt(nonce, plain, context)
        return self.prefix + urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, field: str, token: str) -> bytes:
        """The value as JSON. Raises Tampered."""
        try:
            sealed = urlsafe_b64decode(token[_SEALED] + "==")
        except ValueError:
            sealed = b""
        if len(sealed) < _NONCE_BYTES + _TAG_BYTES:
            raise Tampered("the encrypted value is not whole")
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._aead.decrypt(nonce, rest, self._context + field.encode())
        except InvalidTag:
            raise Tampered(
                "the encrypted value was changed, or moved from another field or subject"
            ) from None
