"""Which addresses webhooks may be sent to: public ones, unless a setting names a network.

A URL is a wish of whoever registers it, and the gateway stands inside a network: so nothing is sent
to loopback, private, link-local or otherwise special addresses (also where IPv6 wraps IPv4), except
for `gateway.webhook_allowed_networks`. A name is resolved for each connection, every address is
checked, and the connection goes to the address that was checked: a name that changes its address in
between (DNS rebinding) gains nothing. Redirects are not followed.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from headwater.errors import UsageError

MAX_URL_CHARACTERS: Final = 2000
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_HINT: Final = "gateway.webhook_allowed_networks names networks that are allowed nevertheless"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ForbiddenTarget(UsageError):
    """An address that webhooks are not sent to."""


class Target(NamedTuple):
    """A URL, taken apart."""

    is_tls: bool
    host: str
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """Without the path, which may be a secret."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def parse_networks(texts: Sequence[str]) -> list[Network]:
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def parse_target(url: str) -> Target:
    """Raises UsageError."""
    wrong = UsageError(
        "this is no address that webhooks can be sent to", hint="https://shop.example/hooks/orders"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if (
        parts.scheme not in ("http", "https")
        or not host
        or port == 0
        or len(url) > MAX_URL_CHARACTERS
        or not url.isprintable()
        or any(character.isspace() for character in url)
    ):
        raise wrong
    if parts.username is not None:
        raise UsageError(
            "the address has a user or a password", hint="requests are signed with the secret"
        )
    try:
        host = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        raise wrong from None
    is_tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    path = quote(path, safe="/?%:@!$&'()*+,;=~")
    return Target(is_tls, host, port or (443 if is_tls else 80), path)


def check(address: Address, target: Target, allowed: Sequence[Network]) -> None:
    """Raises ForbiddenTarget."""
    if any(address in network for network in allowed if network.version == address.version):
        return
    if not _is_public(address):
        raise ForbiddenTarget(
            f"webhooks are not sent to {target.shown}",
            detail=f"{address} is no public address",
            hint=_HINT,
        )
    if not target.is_tls:
        raise ForbiddenTarget(
            f"webhooks are not sent to {target.shown}",
            detail="http:// can be read on the way",
            hint=f"https://…; {_HINT}",
        )


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


async def resolve(target: Target, allowed: Sequence[Network]) -> list[str]:
    """The addresses of its host, each of them allowed. Raises ForbiddenTarget, OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    texts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in texts:
        check(ipaddress.ip_address(text.partition("%")[0]), target, allowed)
    return texts


def check_now(target: Target, allowed: Sequence[Network]) -> None:
    """When it is registered: a name that cannot be resolved now is let through, for it is checked
    again for each connection. Blocks. Raises ForbiddenTarget.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        return
    for entry in found:
        check(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]), target, allowed)
