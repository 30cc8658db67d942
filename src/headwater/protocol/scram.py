"""SCRAM (RFC 5802, RFC 7677) with SHA-256 and SHA-512: both sides of it, and what is stored.

    client first   n,,n=NAME,r=NONCE
    server first   r=NONCE+OURS,s=SALT,i=ITERATIONS
    client final   c=HEADER,r=NONCE+OURS,p=PROOF
    server final   v=SIGNATURE

A server stores a salted hash of the password, with which it can check a proof and cannot make one.
There is no channel binding, as in Kafka. The text of a password is taken as UTF-8 as it stands:
neither Kafka nor the clients normalise it (SASLprep).
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from headwater.errors import AuthenticationFailed

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}  # on the wire
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384  # Kafka's bounds
SALT_BYTES = 24
MAX_MESSAGE_BYTES = 4096
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,512}")  # printable, no comma
_NAME = re.compile(r"(?:[^=,\x00]|=2C|=3D)+")


@dataclass(frozen=True, slots=True)
class Credential:
    """What is stored of a password for one mechanism."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def matches(self, password: str) -> bool:
        """Whether this is the password. Takes milliseconds: (worker)"""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        stored_key = _hash(self.mechanism, _hmac(self.mechanism, salted, b"Client Key"))
        return hmac.compare_digest(stored_key, self.stored_key)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes milliseconds: (worker)"""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    client_key = _hmac(mechanism, salted, b"Client Key")
    return Credential(
        mechanism,
        iterations,
        salt,
        stored_key=_hash(mechanism, client_key),
        server_key=_hmac(mechanism, salted, b"Server Key"),
    )


def new_credential(mechanism: str, password: str, iterations: int) -> Credential:
    """With a fresh salt. Takes milliseconds: (worker)"""
    salt = secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


@dataclass(frozen=True, slots=True)
class ClientFirst:
    """The client's first message, taken apart. Raises AuthenticationFailed if it is none."""

    header: bytes  # the gs2 header, which the client repeats in its last message
    bare: bytes
    name: str
    nonce: str

    @classmethod
    def read(cls, message: bytes) -> "ClientFirst":
        text = _text(message)
        flag, comma, rest = text.partition(",")
        authzid, second_comma, bare = rest.partition(",")
        if not comma or not second_comma or flag not in ("n", "y"):
            # "p=…" asks for channel binding, which is not offered.
            raise AuthenticationFailed("no SCRAM client-first message without channel binding")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            raise AuthenticationFailed("a SCRAM client-first message of unknown form")
        name, nonce = _name(fields[0][2:]), fields[1][2:]
        if not _NONCE.fullmatch(nonce):
            raise AuthenticationFailed("a SCRAM nonce of unknown form")
        if authzid and (not authzid.startswith("a=") or _name(authzid[2:]) != name):
            raise AuthenticationFailed("the client asks to act as another user")
        header = text[: len(text) - len(bare)]
        return cls(header.encode(), bare.encode(), name, nonce)


class ServerExchange:
    """The server's part, for one login. A wrong message or proof raises AuthenticationFailed."""

    def __init__(self, first: ClientFirst, credential: Credential) -> None:
        self._client = first
        self._credential = credential
        self._nonce = first.nonce + secrets.token_urlsafe(24)

    def server_first(self) -> bytes:
        salt = base64.b64encode(self._credential.salt).decode()
        return f"r={self._nonce},s={salt},i={self._credential.iterations}".encode()

    def server_final(self, client_final: bytes) -> bytes:
        without_proof, proof_field, proof = _text(client_final).rpartition(",p=")
        fields = without_proof.split(",")
        if not proof_field or len(fields) < 2 or fields[0][:2] != "c=" or fields[1][:2] != "r=":
            raise AuthenticationFailed("a SCRAM client-final message of unknown form")
        if _unbase64(fields[0][2:]) != self._client.header:
            raise AuthenticationFailed("the SCRAM header is not the one that was begun with")
        # librdkafka before 2.6.1 puts its own nonce in front once more, so Kafka looks at the end.
        # That is as fresh as the whole, and the proof covers what was sent.
        if not fields[1].endswith(self._nonce):
            raise AuthenticationFailed("the SCRAM nonce is not the one that was sent")
        return self._signature(without_proof.encode(), _unbase64(proof))

    def _signature(self, without_proof: bytes, proof: bytes) -> bytes:
        mechanism, stored_key = self._credential.mechanism, self._credential.stored_key
        message = b",".join((self._client.bare, self.server_first(), without_proof))
        client_signature = _hmac(mechanism, stored_key, message)
        if len(proof) != len(client_signature):
            raise AuthenticationFailed("a SCRAM proof of the wrong length")
        client_key = _xor(proof, client_signature)
        if not hmac.compare_digest(_hash(mechanism, client_key), stored_key):
            raise AuthenticationFailed("wrong user or password")
        signature = _hmac(mechanism, self._credential.server_key, message)
        return b"v=" + base64.b64encode(signature)


class ClientExchange:
    """The client's part, for one login."""

    def __init__(self, mechanism: str, name: str, password: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = secrets.token_urlsafe(24)
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={self._nonce}"
        self._server_signature = b""

    def client_first(self) -> bytes:
        return b"n,," + self._bare.encode()

    def client_final(self, server_first: bytes) -> bytes:
        text = _text(server_first)
        found = re.fullmatch(r"r=([^,]+),s=([A-Za-z0-9+/=]+),i=(\d{1,9})(?:,.*)?", text)
        if found is None or not found[1].startswith(self._nonce):
            raise AuthenticationFailed("a SCRAM server-first message of unknown form")
        salt, iterations = _unbase64(found[2]), int(found[3])
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AuthenticationFailed(f"the server asks for {iterations} iterations of SCRAM")
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={found[1]}"
        message = f"{self._bare},{text},{without_proof}".encode()
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        stored_key = _hash(self._mechanism, client_key)
        proof = _xor(client_key, _hmac(self._mechanism, stored_key, message))
        server_key = _hmac(self._mechanism, salted, b"Server Key")
        self._server_signature = _hmac(self._mechanism, server_key, message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """The server has proved the password too, or AuthenticationFailed is raised."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not hmac.compare_digest(server_final, expected):
            raise AuthenticationFailed("the server does not prove the password: is it an impostor?")


def _hmac(mechanism: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, DIGESTS[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(DIGESTS[mechanism], data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise AuthenticationFailed(f"a SCRAM message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a SCRAM message that is no UTF-8") from error


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise AuthenticationFailed("a SCRAM name of unknown form")
    return text.replace("=2C", ",").replace("=3D", "=")


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationFailed("a SCRAM field that is no base64") from error
