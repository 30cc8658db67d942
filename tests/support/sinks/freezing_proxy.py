"""A TCP proxy whose server stops answering: connections stay open, and nothing passes."""

import socket
import threading
from contextlib import suppress
from typing import Self

from support.readable import readable


class FreezingProxy:
    """For one server. While it is frozen it accepts connections, and forwards nothing."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_open = threading.Event()
        self._is_open.set()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def freeze(self) -> None:
        self._is_open.clear()

    def thaw(self) -> None:
        self._is_open.set()

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
            while not self._is_closed:
                ready = readable(client, server, timeout_s=0.02)
                self._is_open.wait()
                for source in ready:
                    chunk = source.recv(1 << 20)
                    if not chunk:
                        return
                    (server if source is client else client).sendall(chunk)

    def close(self) -> None:
        self._is_closed = True
        self.thaw()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
