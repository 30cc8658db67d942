"""SASL exchanges: one per login of a connection, whatever its mechanism.

No answer to a client shows whether it was the user or the password that was wrong; the log
says a little more.
"""

import asyncio
from typing import TYPE_CHECKING, Protocol

from headwater.broker.security.users import MAX_NAME_CHARACTERS, Users
from headwater.errors import AuthenticationFailed
from headwater.protocol import scram

if TYPE_CHECKING:
    from headwater.broker.security.oauth import TokenVerifier

MAX_PASSWORD_BYTES = 4096


class Exchange(Protocol):
    """One login. `answer` is called with each message of the client, in turn."""

    name: str | None  # of the user, as far as it was sent; for the log until `is_complete`
    is_complete: bool
    expires_at_ms: int | None  # when what it proved is no longer true

    async def answer(self, message: bytes) -> bytes:
        """The answer to the client. Raises AuthenticationFailed; then there is no further call."""
        ...


class Plain:
    """RFC 4616: [act as] NUL name NUL password, in one message."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self.name: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    async def answer(self, message: bytes) -> bytes:
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationFailed("a PLAIN message of unknown form")
        acting_as, name, password = parts
        if len(name) > MAX_NAME_CHARACTERS or len(password) > MAX_PASSWORD_BYTES:
            raise AuthenticationFailed("a name or password of more than any has")
        self.name = name
        if acting_as not in ("", name):
            raise AuthenticationFailed("the client asks to act as another user")
        if not await self._users.is_password(name, password):
            raise AuthenticationFailed("wrong user or password")
        self.is_complete = True
        return b""


class Scram:
    """RFC 5802, in two messages."""

    def __init__(self, users: Users, mechanism: str) -> None:
        self._users = users
        self._mechanism = mechanism
        self._exchange: scram.ServerExchange | None = None
        self._credential: scram.Credential | None = None
        self.name: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    async def answer(self, message: bytes) -> bytes:
        if self._exchange is None:
            first = scram.ClientFirst.read(message)
            self.name = first.name
            credential = self._users.credential_or_fake(first.name, self._mechanism)
            self._credential = credential
            self._exchange = scram.ServerExchange(first, credential)
            return self._exchange.server_first()
        signature = self._exchange.server_final(message)
        if self._credential not in self._users.credentials(self.name or "").values():
            raise AuthenticationFailed(
                "the password has changed, or the user was removed, meanwhile"
            )
        self.is_complete = True
        return signature


class OAuthBearer:
    """RFC 7628: a token in one message. A client whose token is refused gets the error in a first
    answer, says that it has understood (0x01), and is refused then.
    """

    def __init__(self, verifier: "TokenVerifier") -> None:
        self._verifier = verifier
        self.refusal: AuthenticationFailed | None = None  # which is sent to the client first
        self.name: str | None = None
        self.is_complete = False
        self.expires_at_ms: int | None = None

    async def answer(self, message: bytes) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        token = self._verifier.token_in(message)
        try:
            verified = await asyncio.to_thread(self._verifier.verify, token)
        except AuthenticationFailed as error:
            self.refusal = error
            return b'{"status":"invalid_token"}'
        self.name = verified.name
        self.expires_at_ms = verified.expires_at_ms
        self.is_complete = True
        return b""
