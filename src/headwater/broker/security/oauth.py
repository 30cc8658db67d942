"""Tokens of OAUTHBEARER: JWTs that one of the keys in a JWKS file signed (RFC 7515, 7517, 7519).

Only signatures with public keys count: a token that is not signed, or "signed" with HMAC and a
public key for its secret, is refused whatever it says. The key is the one that the token names
(`kid`), and the algorithm must be one of that key's own.

PyJWT and cryptography are imported when the first token comes, for most brokers never see one.
"""

import os
import re
import threading
from typing import Any, NamedTuple

from headwater.errors import AuthenticationFailed, ConfigError

LEEWAY_S = 30  # clocks differ
MAX_TOKEN_BYTES = 64 << 10
MAX_EXPIRY_S = 1 << 40  # whatever it says: the answer has 64 bits for it
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
# RFC 7628: gs2 header, then key=value pairs between bytes of 1.
_MESSAGE = re.compile(
    rb"[ny],(?:a=(?P<authzid>[^,]*))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01", re.DOTALL
)
_AUTH = re.compile(rb"\x01auth=[Bb]earer +(?P<token>[A-Za-z0-9._~+/=-]+)\x01")


class Verified(NamedTuple):
    """What a token proves."""

    name: str
    expires_at_ms: int


class _Key(NamedTuple):
    id: str | None
    kind: str
    algorithm: str | None
    key: Any


class TokenVerifier:
    """Checks tokens. `verify` is called from threads: it reads the file again when it changes."""

    def __init__(self, jwks_file: str, issuer: str, audience: str, principal_claim: str) -> None:
        self._path = jwks_file
        self._issuer = issuer
        self._audience = audience
        self._claim = principal_claim
        self._stamp: tuple[int, int] | None = None
        self._keys: list[_Key] = []
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raises ConfigError unless there are keys to begin with."""
        try:
            self._current_keys()
        except AuthenticationFailed as error:
            raise ConfigError(
                "the keys for tokens cannot be used",
                detail=str(error),
                hint="broker.oauth_jwks_file names a JWKS file with public keys (RSA, EC or OKP)",
            ) from error

    def token_in(self, message: bytes) -> str:
        """The token of the client's message. Raises AuthenticationFailed if it is of no form."""
        if len(message) > MAX_TOKEN_BYTES:
            raise AuthenticationFailed(f"an OAUTHBEARER message of {len(message)} bytes")
        whole, found = _MESSAGE.fullmatch(message), _AUTH.search(message)
        if whole is None or found is None:
            raise AuthenticationFailed("an OAUTHBEARER message of unknown form")
        if whole["authzid"]:
            raise AuthenticationFailed("the client asks to act as another user")
        return found["token"].decode()

    def verify(self, token: str) -> Verified:
        """(worker) Raises AuthenticationFailed, whose words are for the log only."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            key, algorithm = self._key_of(header)
            claims = jwt.decode(
                token,
                key=key.key,
                algorithms=[algorithm],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._claim]},
            )
        except jwt.PyJWTError as error:
            raise AuthenticationFailed("the token is refused", detail=str(error)[:200]) from error
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise AuthenticationFailed("the token cannot be read") from error
        name = claims[self._claim]
        if not isinstance(name, str) or not name or len(name) > 255:
            raise AuthenticationFailed(f"the token's claim {self._claim} is no name")
        return Verified(name, min(int(claims["exp"]), MAX_EXPIRY_S) * 1000)

    def _key_of(self, header: dict[str, Any]) -> tuple[_Key, str]:
        algorithm, key_id = header.get("alg"), header.get("kid")
        keys = [
            key
            for key in self._current_keys()
            if algorithm in _ALGORITHMS[key.kind]
            and key.algorithm in (None, algorithm)
            and (key_id is None or key.id in (None, key_id))
        ]
        if len(keys) != 1 or not isinstance(algorithm, str):
            found = "no key" if not keys else "more than one key"
            raise AuthenticationFailed(
                f"{found} for this token", detail=f"alg {algorithm!r:.40}, kid {key_id!r:.80}"
            )
        return keys[0], algorithm

    def _current_keys(self) -> list[_Key]:
        with self._lock:
            try:
                status = os.stat(self._path)
                stamp = (status.st_mtime_ns, status.st_size)
                if stamp != self._stamp:
                    self._keys = _read_keys(self._path)
                    self._stamp = stamp
            except (OSError, ValueError, KeyError, TypeError) as error:
                # A half-written file: the old keys count until it is whole.
                if not self._keys:
                    raise AuthenticationFailed(
                        "no keys can be read", detail=f"{self._path}: {error}"
                    ) from error
            return self._keys


def _read_keys(path: str) -> list[_Key]:
    import jwt
    import orjson

    with open(path, "rb") as file:
        entries = orjson.loads(file.read())["keys"]
    keys = []
    for entry in entries:
        # A secret key ("oct") among them is none that a token may be signed with.
        if entry.get("kty") not in _ALGORITHMS or entry.get("use", "sig") != "sig":
            continue
        try:
            parsed = jwt.PyJWK(entry)
        except jwt.PyJWTError as error:
            raise ValueError(f"a key that cannot be used: {error}") from error
        keys.append(_Key(entry.get("kid"), entry["kty"], entry.get("alg"), parsed.key))
    if not keys:
        raise ValueError("the file has no public key for signatures")
    return keys
