"""Authentication: a user's name and password of the broker (Basic), or a token (Bearer).

The broker judges passwords, by a login for each of them. One that it has accepted is not shown
to it again for a minute: a password that was changed is good here for as long. Tokens are read from
their topic, at most every two seconds: a token that was revoked is good for as long.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headwater.client.reading.compacted import CommittedLatest
from headwater.config import Config
from headwater.errors import BrokerUnreachable, RequestRefused
from headwater.gateway import tokens
from headwater.gateway.answers import Refusal
from headwater.gateway.callers import Caller
from headwater.gateway.turns import in_turn
from headwater.settings import ClientSettings
from headwater.web import logins
from headwater.web.attempts import Attempts

_ACCEPTED_S: Final = 60.0
_MOST_ACCEPTED: Final = 1000
_TOKENS_S: Final = 2.0
_READ_PAUSE_S: Final = 0.2
_PATIENCE_S: Final = 10.0
_MAX_HEADER_CHARACTERS: Final = 2000
_NO_LOGIN: Final = (
    "the gateway has no login of its own at the broker, with which tokens and Idempotency-Key work;"
    " [client] has it"
)


class Authentication:
    """Of all requests. Methods are called on the event loop."""

    def __init__(self, config: Config, threads: ThreadPoolExecutor) -> None:
        self._config = config
        self._threads = threads
        self.has_users = logins.is_needed(config)
        self.is_required = self.has_users or config.gateway.require_authentication
        self._attempts = Attempts()
        self._accepted: OrderedDict[bytes, tuple[ClientSettings, float]] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._tokens = _Tokens(config, threads)

    def close(self) -> None:
        self._tokens.close()

    @property
    def has_own_login(self) -> bool:
        """Whether the gateway itself can ask the broker for anything."""
        return not self.has_users or bool(
            self._config.client.username or self._config.client.token_file
        )

    def require_own_login(self) -> ClientSettings:
        """Raises Refusal."""
        if not self.has_own_login:
            raise Refusal(503, "this gateway cannot do that", detail=_NO_LOGIN)
        return self._config.client

    async def caller(self, header: str | None, address: str) -> Caller:
        """Raises Refusal, BrokerUnreachable."""
        kind, _, value = (header or "").strip().partition(" ")
        value = value.strip()
        if len(value) > _MAX_HEADER_CHARACTERS:
            raise self._refused("the Authorization header is too long")
        if kind.lower() == "bearer":
            return await self._by_token(value)
        if kind.lower() == "basic" and self.has_users:
            return await self._by_password(value, address)
        if self.is_required:
            raise self._refused("a user's password or a token is needed")
        return Caller("", self._config.client)

    async def check_still_good(self, caller: Caller) -> None:
        """Of a stream that is open: raises Refusal when its token was revoked or has expired. A
        user whose password was changed stays connected, as at the broker.
        """
        if caller.token is None:
            return
        token = (await self._tokens.all(_TOKENS_S)).get(caller.token.id)
        if token is None or token.has_expired(time.time_ns() // 1_000_000):
            raise self._refused("this token was revoked, or has expired")

    async def _by_token(self, text: str) -> Caller:
        """Attempts are not counted: nobody guesses 256 bits, and a machine with a token that was
        revoked must not shut out its neighbours.
        """
        login = self.require_own_login()
        token = tokens.matching(await self._tokens.all(_TOKENS_S), text)
        if token is None:  # it may have been created a moment ago
            token = tokens.matching(await self._tokens.all(0.0), text)
        if token is None:
            raise self._refused("this token is not valid, or no longer")
        return Caller(f"token:{token.id}", login, token)

    async def _by_password(self, encoded: str, address: str) -> Caller:
        try:
            decoded = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, ValueError):
            raise self._refused("the Authorization header cannot be read") from None
        name, colon, password = decoded.partition(":")
        if not colon or not name:
            raise self._refused("a name and a password are needed")
        digest = hashlib.blake2b(decoded.encode(), key=self._key).digest()
        login, until_s = self._accepted.get(digest, (None, 0.0))
        if login is None or until_s < time.monotonic():
            login = await self._log_in(name, password, address)
            self._accepted[digest] = (login, time.monotonic() + _ACCEPTED_S)
            while len(self._accepted) > _MOST_ACCEPTED:
                self._accepted.popitem(last=False)
        return Caller(f"user:{name}", login)

    async def _log_in(self, name: str, password: str, address: str) -> ClientSettings:
        self._check_attempts(address, name)
        self._attempts.begin(address, name)
        await asyncio.sleep(self._attempts.delay_s())
        login = logins.login_of(self._config, name, password)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._threads, logins.try_login, self._config.bootstrap(), login
            )
        except RequestRefused:
            raise self._refused("the broker refuses the login") from None
        except BrokerUnreachable:
            self._attempts.succeeded(address, name)  # the broker has not judged it
            raise
        self._attempts.succeeded(address, name)
        return login

    def _check_attempts(self, address: str, name: str) -> None:
        wait_s = self._attempts.wait_s(address, name)
        if wait_s > 0:
            raise Refusal(
                429,
                "too many attempts",
                detail=f"the next one is possible in {wait_s:.0f} s",
                headers={"Retry-After": str(int(wait_s) + 1)},
            )

    def _refused(self, detail: str) -> Refusal:
        schemes = ['Bearer realm="headwater"']
        if self.has_users:
            schemes.insert(0, 'Basic realm="headwater", charset="UTF-8"')
        return Refusal(
            401,
            "sign in first",
            detail=detail,
            hint="`curl -u NAME`, or `Authorization: Bearer TOKEN` (`headwater token create`)",
            headers={"WWW-Authenticate": ", ".join(schemes)},
        )


class _Tokens:
    """All tokens, read again when they are needed and not fresh; by one reader at a time, and at
    most five times a second, however many invalid tokens come.
    """

    def __init__(self, config: Config, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._topic = CommittedLatest(
            config.bootstrap(), config.client, tokens.TOPIC, patience_s=_PATIENCE_S
        )
        self._found: dict[str, tokens.Token] = {}
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    def close(self) -> None:
        self._topic.close()

    async def all(self, max_age_s: float) -> dict[str, tokens.Token]:
        """By a read that began `max_age_s` ago, or later."""
        since_s = time.monotonic() - max_age_s

        async def read() -> None:
            if self._read_s >= since_s:  # somebody else has, meanwhile
                return
            await asyncio.sleep(self._read_s + _READ_PAUSE_S - time.monotonic())
            began_s = time.monotonic()
            loop = asyncio.get_running_loop()
            self._found = tokens.decoded(
                await loop.run_in_executor(self._threads, self._topic.read)
            )
            self._read_s = began_s

        if self._read_s < since_s:
            await in_turn(self._reading, read)
        return self._found
