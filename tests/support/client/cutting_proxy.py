"""A proxy that cuts connections at random: in requests, in answers, and between the two."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.client import connection
from support.readable import readable


class CuttingProxy:
    """Each chunk that passes may be the last of its connection; half of it arrives, or nothing."""

    def __init__(self, seed: int, odds: float) -> None:
        self._rng = random.Random(seed)
        self._odds = odds
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        self.cuts = 0

    def connect(self, address: tuple[str, int], timeout_s: float) -> socket.socket:
        """A connection through the proxy; in place of socket.create_connection."""
        server = real_create_connection(address, timeout_s)
        client, inside = socket.socketpair()
        pump = threading.Thread(target=self._pump, args=(inside, server))
        self._threads.append(pump)
        pump.start()
        return _WithoutOptions(client)

    def _pump(self, inside: socket.socket, server: socket.socket) -> None:
        with inside, server:
            while not self._is_over.is_set():
                ready = readable(inside, server, timeout_s=0.1)
                for source in ready:
                    target = server if source is inside else inside
                    try:
                        chunk = source.recv(1 << 18)
                        if not chunk:
                            return
                        if self._rng.random() < self._odds:
                            self.cuts += 1
                            target.sendall(chunk[: self._rng.choice([0, len(chunk) // 2])])
                            return
                        target.sendall(chunk)
                    except OSError:
                        return

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


class _WithoutOptions:
    """A socket pair has no TCP options."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def setsockopt(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


real_create_connection = socket.create_connection


@contextlib.contextmanager
def cutting(monkeypatch: pytest.MonkeyPatch, seed: int, odds: float) -> Iterator[CuttingProxy]:
    """Connections of our client go through such a proxy, whatever address they are for."""
    proxy = CuttingProxy(seed, odds)
    with monkeypatch.context() as patched:
        patched.setattr(connection.socket, "create_connection", proxy.connect)
        try:
            yield proxy
        finally:
            proxy.stop()
