"""The control socket (<data_dir>/control) for commands of the data directory's owner.

One request and one answer per connection, a line of JSON each:

    {"stage": true}   →   {"staged": "<data_dir>/backup-….deleted"}

What was staged is removed when the connection ends: nothing is left of a command that was killed.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headwater.log.store import LogStore

log = logging.getLogger(__name__)

NAME: Final = "control"
_REQUEST_TIMEOUT_S: Final = 10.0


@contextmanager
def short_path(directory: str) -> Iterator[str]:
    """The socket's address, which may have some hundred bytes only: by way of a descriptor where
    the system can.
    """
    if not os.path.isdir("/proc/self/fd"):
        yield f"{directory}/{NAME}"
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


class Control:
    def __init__(self, store: "LogStore") -> None:
        self._store = store
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """A directory that takes no socket is no reason not to serve: then there are no backups
        while the broker runs.
        """
        path = f"{self._store.path}/{NAME}"
        listener = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # a crash left it; the lock is ours
            before = os.umask(0o177)
            try:
                with short_path(self._store.path) as address:
                    listener.bind(address)
            finally:
                os.umask(before)
            self._server = await asyncio.start_unix_server(self._accept, sock=listener)
        except OSError as error:
            listener.close()
            log.warning("no backups while this broker runs: %s: %s", path, error)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(FileNotFoundError):
                os.unlink(f"{self._store.path}/{NAME}")
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        staged = None
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = json.loads(await reader.readline())
            if request != {"stage": True}:
                raise ValueError("the only request is stage")
            staged = await self._store.stage()
            await _answer(writer, {"staged": staged})
            await reader.read()  # until the other side has what it wants, or has closed
        except (OSError, ValueError, TimeoutError) as error:
            with suppress(OSError):
                await _answer(writer, {"error": str(error)})
        finally:
            try:
                if staged is not None:  # if the broker stops just now, the next start does it
                    await self._store.in_worker(self._store.storage.files.rmtree, staged)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()


async def _answer(writer: asyncio.StreamWriter, fields: dict[str, Any]) -> None:
    writer.write(json.dumps(fields).encode() + b"\n")
    await writer.drain()
