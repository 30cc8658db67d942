"""Names by which a server is asked for, and pages that ask.

A page of another site can make a browser ask 127.0.0.1 by a name of its own (DNS rebinding), and
can send requests here (cross-site requests). The Host and Origin headers show both.
"""

import ipaddress
from urllib.parse import urlsplit

from headwater.settings import split_address


def host_is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a Host header is an address, or one of these names, with a port or without."""
    has_port = ":" in host.rpartition("]")[2]
    try:
        name, _ = split_address(host if has_port else f"{host}:80")
    except ValueError:
        return False
    if name.lower().rstrip(".") in names or host.lower() in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_host(origin: str, host: str) -> bool:
    """Whether an Origin header is of a page of the server that the Host header names."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False  # brackets without an address
