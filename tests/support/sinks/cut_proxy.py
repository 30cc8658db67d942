"""A TCP proxy that ends a connection at a chosen moment: before or after any chunk that passes."""

import socket
import threading
from contextlib import suppress
from typing import Self

from support.readable import readable


class CutProxy:
    """For one server. Chunks in both directions are counted; see `cut_at`."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut_at: int | None = None
        self._passes_last = False
        self.chunks = 0
        self.was_cut = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut_at(self, chunk: int | None, *, passes_last: bool = False) -> None:
        """All connections end with the chunk of that number, counted from now (0 is the next); it
        arrives or it does not. None: no longer.
        """
        self.chunks = 0
        self._cut_at = chunk
        self._passes_last = passes_last
        self.was_cut.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            pump = threading.Thread(target=self._pump, args=(client,))
            self._threads.append(pump)
            pump.start()

    def _pump(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._server) as server:
            while not self.was_cut.is_set():
                ready = readable(client, server, timeout_s=0.02)
                if self._listener.fileno() < 0:
                    return
                for source in ready:
                    chunk = source.recv(1 << 20)
                    if not chunk:
                        return
                    is_last = self.chunks == self._cut_at
                    self.chunks += 1
                    if not is_last or self._passes_last:
                        (server if source is client else client).sendall(chunk)
                    if is_last:
                        self.was_cut.set()
                        return

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
