"""Authentication of connections: anonymous, the subject of a certificate, or a user by SASL.

Until that is established a connection is unauthenticated: it may ask for ApiVersions and log in,
with small requests, for a short time. A login that has an end (a token's) must be renewed before
(KIP-368); the next request after it ends the connection.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.broker.security.authorizer import ANONYMOUS, Principal
from headwater.broker.security.sasl import Exchange, OAuthBearer, Plain, Scram
from headwater.broker.security.users import Users
from headwater.errors import AuthenticationFailed
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headwater.protocol.messages.sasl_handshake import SaslHandshakeRequest

if TYPE_CHECKING:
    from headwater.broker.security.oauth import TokenVerifier
    from headwater.clock import Clock

log = logging.getLogger(__name__)

UNAUTHENTICATED_MAX_REQUEST_BYTES = 128 << 10  # the longest token, and more
UNAUTHENTICATED_TIMEOUT_S = 30.0
FAILED_DELAY_S = 0.1  # connection.failed.authentication.delay.ms
_BEFORE_AUTHENTICATION = frozenset(
    (ApiVersionsRequest.api_key, SaslHandshakeRequest.api_key, SaslAuthenticateRequest.api_key)
)


class Session:
    """The authentication state of the client behind one connection."""

    __slots__ = (
        "_authentication", "_on_authenticated", "exchange", "expires_at_ms", "has_failed",
        "is_authenticated", "mechanism", "principal",
    )  # fmt: skip

    def __init__(
        self, authentication: "Authentication", on_authenticated: Callable[[], None]
    ) -> None:
        self._authentication = authentication
        self._on_authenticated = on_authenticated
        self.principal = ANONYMOUS
        self.is_authenticated = False
        self.has_failed = False  # its connection ends when the answer is sent
        self.mechanism: str | None = None
        self.exchange: Exchange | None = None
        self.expires_at_ms: int | None = None

    def refusal_of(self, api_key: int) -> str | None:
        """Why the client may not ask that now, or None."""
        if api_key in _BEFORE_AUTHENTICATION:
            return None
        if not self.is_authenticated:
            return "a request before authentication; does the client use SASL?"
        if self.expires_at_ms is not None and self._authentication.now_ms() >= self.expires_at_ms:
            return "the session is over: the client did not authenticate again in time"
        return None

    def secured(self, subject: str) -> None:
        """TLS stands; `subject` is that of the client's certificate, or empty."""
        if self._authentication.mode == "tls":
            self.principal = Principal(subject)
        if self._authentication.mode != "sasl":
            self._know()

    def begin(self, mechanism: str) -> None:
        """A login begins, the first or a further one. Raises AuthenticationFailed."""
        if self.is_authenticated and mechanism != self.mechanism:
            raise AuthenticationFailed(
                "the mechanism changes", detail=f"from {self.mechanism} to {mechanism}"
            )
        if self.exchange is not None:  # or each of any number of attempts would be the first
            raise AuthenticationFailed("a login begins before the one before is over")
        self.exchange = self._authentication.exchange(mechanism)
        self.mechanism = mechanism

    async def answer(self, message: bytes) -> bytes:
        """Goes on with the login that has begun. Raises AuthenticationFailed."""
        exchange = self.exchange
        if exchange is None:
            raise AuthenticationFailed("no mechanism was chosen first")
        answer = await exchange.answer(message)
        if exchange.is_complete:
            self._complete(exchange)
        return answer

    def _complete(self, exchange: Exchange) -> None:
        principal = Principal(exchange.name or "")
        if self.is_authenticated and principal != self.principal:
            raise AuthenticationFailed("the user changes", detail=f"from {self.principal}")
        self.exchange = None
        self.principal = principal
        self.expires_at_ms = exchange.expires_at_ms
        log.debug("authenticated: %s with %s", principal, self.mechanism)
        self._know()

    @property
    def proved_by_password(self) -> bool:
        return self.is_authenticated and self.mechanism not in (None, "OAUTHBEARER")

    @property
    def lifetime_ms(self) -> int:
        """How long the login lasts; 0 stands for no end."""
        if self.expires_at_ms is None:
            return 0
        return max(1, self.expires_at_ms - self._authentication.now_ms())

    def fail(self) -> None:
        self.has_failed = True
        self.exchange = None

    def _know(self) -> None:
        if not self.is_authenticated:
            self.is_authenticated = True
            self._on_authenticated()


class Authentication:
    """What is asked of clients. `mode` is the setting of the name: none, sasl or tls."""

    def __init__(
        self,
        clock: "Clock",
        users: Users,
        *,
        mode: str = "none",
        mechanisms: tuple[str, ...] = (),
        verifier: "TokenVerifier | None" = None,
        uses_tls: bool = False,
    ) -> None:
        self.users = users
        self.mode = mode
        self.mechanisms = mechanisms if mode == "sasl" else ()
        self.now_ms = clock.now_ms
        self._verifier = verifier
        # One for all where no client has to authenticate.
        self._anonymous: Session | None = None
        if mode == "none" and not uses_tls:
            self._anonymous = Session(self, lambda: None)
            self._anonymous.is_authenticated = True

    def session(self, on_authenticated: Callable[[], None]) -> Session:
        """For a new connection. `on_authenticated` is called when it has authenticated."""
        return self._anonymous or Session(self, on_authenticated)

    def exchange(self, mechanism: str) -> Exchange:
        """Raises KeyError for a mechanism that is not offered."""
        if mechanism not in self.mechanisms:
            raise KeyError(mechanism)
        if mechanism == "PLAIN":
            return Plain(self.users)
        if mechanism == "OAUTHBEARER":
            assert self._verifier is not None
            return OAuthBearer(self._verifier)
        return Scram(self.users, mechanism)
