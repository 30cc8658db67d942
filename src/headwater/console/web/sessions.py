"""Sessions: a signed cookie for each browser, and the login behind it.

The cookie holds a random id and its signature by a key of this process. A login stays in memory and
nowhere else, so users sign in again after a restart.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from headwater.settings import ClientSettings

IDLE_S: Final = 8 * 3600.0
_MOST_SESSIONS: Final = 1000


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
