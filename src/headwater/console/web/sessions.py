"""Sessions: a signed cookie for each browser, and the login behind it.

The cookie holds a random id and its signature by a key of this process. A login stays in memory and
nowhere else, so users sign in again after a restart.
"""

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from headwater.settings import ClientSettings

IDLE_S: Final = 8 * 3600.0
_MOST_SESSIONS: Final = 1000
# Failed attempts within a minute: of one address with one name, and with any.
_ATTEMPTS: Final = (5, 20)
_ATTEMPTS_WITHIN_S: Final = 60.0
# Of all addresses: beyond the first number attempts are delayed, with the second the longest.
_UNDELAYED_ANYWHERE: Final = 100
_MOST_COUNTED_ANYWHERE: Final = 1000
_LONGEST_DELAY_S: Final = 10.0
_MOST_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class SignedIn:
    user: str
    login: ClientSettings
    seen_s: float


class Sessions:
    """Ids of browsers, and which of them have signed in."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._signed_in: OrderedDict[str, SignedIn] = OrderedDict()

    def new(self) -> str:
        return secrets.token_urlsafe(24)

    def cookie(self, session: str) -> str:
        return f"{session}.{self._signature('session', session)}"

    def opened(self, cookie: str) -> str | None:
        """The session that we once gave this cookie for; None if it is not from us."""
        session, _, signature = cookie.rpartition(".")
        if session and _is_same(signature, self._signature("session", session)):
            return session
        return None

    def token(self, session: str) -> str:
        """What a form of this session must carry: no other site can know it."""
        return self._signature("form", session)

    def is_token(self, session: str, token: str) -> bool:
        return _is_same(token, self.token(session))

    def sign_in(self, user: str, login: ClientSettings) -> str:
        """A new session: one that an attacker has planted gains nothing (session
        fixation). It ends those of the same user with another password, which was changed since.
        """
        session = self.new()
        for other in [id_ for id_, login_ in self._signed_in.items() if login_.user == user]:
            if self._signed_in[other].login != login:
                del self._signed_in[other]
        self._signed_in[session] = SignedIn(user, login, time.monotonic())
        while len(self._signed_in) > _MOST_SESSIONS:
            self._signed_in.popitem(last=False)
        return session

    def sign_out(self, session: str) -> None:
        self._signed_in.pop(session, None)

    def is_open(self, session: str) -> bool:
        """Whether it is signed in; asking does not keep it so."""
        return session in self._signed_in

    def has(self, user: str) -> bool:
        return any(session.user == user for session in self._signed_in.values())

    def who(self, session: str) -> SignedIn | None:
        found = self._signed_in.get(session)
        if found is None:
            return None
        now_s = time.monotonic()
        if now_s - found.seen_s > IDLE_S:
            del self._signed_in[session]
            return None
        found.seen_s = now_s
        self._signed_in.move_to_end(session)
        return found

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


def _is_same(given: str, ours: str) -> bool:
    """In the same time whatever differs; what was given may be any text."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), ours.encode())


class Attempts:
    """How often signing in has failed lately. An address that guesses has to wait. Guesses from
    very many addresses slow down all attempts, but lock no user out.
    """

    def __init__(self) -> None:
        self._failed: OrderedDict[str, list[float]] = OrderedDict()
        self._failed_anywhere: deque[float] = deque(maxlen=_MOST_COUNTED_ANYWHERE)

    def wait_s(self, address: str, name: str) -> float:
        """How long the next attempt has to wait; 0: it may be made."""
        now_s = time.monotonic()
        waits = [0.0]
        for key, most in zip(_keys(address, name), _ATTEMPTS, strict=True):
            recent = self._recent(key, now_s)
            if len(recent) >= most:
                waits.append(recent[-most] + _ATTEMPTS_WITHIN_S - now_s)
        return max(waits)

    def delay_s(self) -> float:
        """How much later an attempt is made, because of the failures of all addresses."""
        now_s = time.monotonic()
        failures = sum(now_s - at_s < _ATTEMPTS_WITHIN_S for at_s in self._failed_anywhere)
        if failures <= _UNDELAYED_ANYWHERE:
            return 0.0
        return failures / _MOST_COUNTED_ANYWHERE * _LONGEST_DELAY_S

    def begin(self, address: str, name: str) -> None:
        """Counts as failed until it has succeeded: several at the same time are several."""
        now_s = time.monotonic()
        for key in _keys(address, name):
            self._failed[key] = [*self._recent(key, now_s), now_s][-_ATTEMPTS[-1] :]
            self._failed.move_to_end(key)
        while len(self._failed) > _MOST_REMEMBERED:
            self._failed.popitem(last=False)
        self._failed_anywhere.append(now_s)

    def succeeded(self, address: str, name: str) -> None:
        for key in _keys(address, name):
            if self._failed.get(key):
                self._failed[key].pop()
        if self._failed_anywhere:
            self._failed_anywhere.pop()

    def _recent(self, name: str, now_s: float) -> list[float]:
        return [at_s for at_s in self._failed.get(name, ()) if now_s - at_s < _ATTEMPTS_WITHIN_S]


def network_of(address: str) -> str:
    """What counts as one address: a network of IPv6, for one peer has all of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:  # an IPv4 client of an IPv6 socket
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))


def _keys(address: str, name: str) -> tuple[str, str]:
    """Short whatever the name."""
    network = network_of(address)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{network} {digest}", network
