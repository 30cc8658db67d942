"""Free TCP ports for servers that take their port as an argument."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_FIRST_PORT, _LAST_PORT = 10_000, 65_535
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_reservations: list[int] = []  # descriptors of locks, open as long as this process runs


def free_port() -> int:
    """A port that nobody else gets before the server binds it, which may take seconds.

    The kernel never assigns it to a connection or to a listener on port 0, because it is outside of
    the ephemeral range. No other process gets it from this function, because a lock reserves it
    until this process ends.
    """
    ports = _candidates()
    random.SystemRandom().shuffle(ports)
    for port in ports:
        if _is_unbound(port) and _reserve(port):
            return port
    raise OSError(f"no port between {_FIRST_PORT} and {_LAST_PORT} is free")


def _candidates() -> list[int]:
    first, last = (int(number) for number in _EPHEMERAL_RANGE.read_text().split())
    return [port for port in range(_FIRST_PORT, _LAST_PORT + 1) if not first <= port <= last]


def _is_unbound(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    directory = Path(tempfile.gettempdir()) / f"headwater-ports-{os.getuid()}"
    directory.mkdir(exist_ok=True)
    descriptor = os.open(directory / str(port), os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _reservations.append(descriptor)
    return True
