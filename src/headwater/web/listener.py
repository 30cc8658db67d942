"""Whether a broker listens: found out at once, where clients would try again for long."""

import socket
from typing import Final

from headwater.errors import BrokerUnreachable
from headwater.settings import split_address

_CONNECT_TIMEOUT_S: Final = 2.0


def require_listener(bootstrap: str) -> None:
    """Raises BrokerUnreachable at once; the clients would retry until their patience ends."""
    failures = []
    for address in bootstrap.split(","):
        try:
            with socket.create_connection(split_address(address), _CONNECT_TIMEOUT_S):
                return
        except OSError as error:
            failures.append(f"{address}: {(error.strerror or str(error)).lower()}")
    raise BrokerUnreachable(
        "the broker does not answer",
        detail="; ".join(failures),
        hint="this page continues by itself as soon as it does",
    )
