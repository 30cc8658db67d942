"""Responses with splices, to clients and from disks of any speed."""

import asyncio

import pytest

from headwater.broker.network.sender import CHUNK_BYTES, Sender
from headwater.protocol.primitives import Out, Splice


class Piece(Splice):
    """A slice of a file of which `cached_bytes` are in the page cache."""

    def __init__(self, data: bytes, cached_bytes: int) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.cached_bytes = cached_bytes
        self.released = 0

    def read_cached(self, buffer: memoryview, at: int) -> int:
        part = self.data[at : min(at + len(buffer), self.cached_bytes)]
        buffer[: len(part)] = part
        return len(part) or -1

    def release(self) -> None:
        self.released += 1


class Client:
    """A transport and a disk, both in the hands of the test."""

    def __init__(self) -> None:
        self.received = b""
        self.failure: str | None = None
        self.went_on = 0
        self.disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sender = Sender(self.read, self.fail, self.resumed)
        self.sender.transport = self
        self.takes_bytes = 1 << 30

    def write(self, data: bytes) -> None:
        self.received += bytes(data)
        self.sender.is_writable = len(self.received) < self.takes_bytes

    async def read(self, splice: Piece, buffer: memoryview, at: int) -> int:
        await self.disk
        part = splice.data[at : at + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def fail(self, reason: str) -> None:
        self.failure = reason

    def resumed(self) -> None:
        self.went_on += 1


def response(*parts: bytes | Piece) -> Out:
    out = Out()
    for part in parts:
        if isinstance(part, Piece):
            out.splices.append((len(out), part))
        else:
            out += part
    return out


async def settled(client: Client) -> None:
    async with asyncio.timeout(60):
        while not client.sender.is_idle:
            await asyncio.sleep(0)


DATA = bytes(range(256)) * (CHUNK_BYTES // 100)  # some chunks and a rest


async def _in_order(cached_bytes: int) -> None:
    client = Client()
    first, second = Piece(DATA, cached_bytes), Piece(b"second", 6)
    client.sender.send(response(b"<", first, b"|", second, b">"))
    client.sender.send(response(b"next"))
    if cached_bytes < len(DATA):
        assert client.sender.is_behind
        assert not first.released
    client.disk.set_result(None)
    await settled(client)
    assert client.received == b"<" + DATA + b"|second>next"
    assert (first.released, second.released) == (1, 1)
    assert bool(client.went_on) == (cached_bytes < len(DATA))


@pytest.mark.parametrize("cached_bytes", [0, 1000, CHUNK_BYTES, len(DATA)])
def test_in_order_from_the_cache_and_from_the_disk(cached_bytes: int):
    asyncio.run(_in_order(cached_bytes))


def test_no_more_than_the_client_takes():
    async def check() -> None:
        client = Client()
        client.takes_bytes = 10
        piece = Piece(DATA, len(DATA))
        client.sender.send(response(b"<", piece, b">"))
        assert len(client.received) == 1 + CHUNK_BYTES
        assert not piece.released
        client.takes_bytes, client.sender.is_writable = 1 << 30, True
        client.sender.flush()
        assert client.received == b"<" + DATA + b">"

    asyncio.run(check())


@pytest.mark.parametrize("failure", [OSError(5, "bad sector"), None], ids=["error", "shorter"])
def test_what_cannot_be_read_ends_it_and_pins_nothing(failure: OSError | None):
    async def check() -> None:
        client = Client()
        torn, behind = Piece(DATA, 1000), Piece(DATA, len(DATA))
        client.sender.send(response(torn, behind))
        client.sender.send(response(behind))
        if failure is None:
            torn.data = torn.data[:1000]
            client.disk.set_result(None)
        else:
            client.disk.set_exception(failure)
        await settled(client)
        assert "a segment" in (client.failure or "")
        assert (torn.released, behind.released) == (1, 2)
        assert client.received == DATA[:1000]

    asyncio.run(check())


def test_after_the_end_nothing_is_held():
    async def check() -> None:
        client = Client()
        pieces = [Piece(DATA, 0) for _ in range(3)]
        client.sender.send(response(pieces[0]))
        client.sender.send(response(pieces[1]))
        client.sender.end()
        client.sender.send(response(pieces[2]))
        await asyncio.sleep(0)
        assert [piece.released for piece in pieces] == [1, 1, 1]
        assert client.received == b""

    asyncio.run(check())
