"""Failed sign-ins: who guesses passwords has to wait."""

import hashlib
import ipaddress
import time
from collections import OrderedDict, deque
from typing import Final

# Failed attempts within a minute: of one address with one name, and with any.
_ATTEMPTS: Final = (5, 20)
_ATTEMPTS_WITHIN_S: Final = 60.0
# Of all addresses: beyond the first number attempts are delayed, with the second the longest.
_UNDELAYED_ANYWHERE: Final = 100
_MOST_COUNTED_ANYWHERE: Final = 1000
_LONGEST_DELAY_S: Final = 10.0
_MOST_REMEMBERED: Final = 10_000


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
