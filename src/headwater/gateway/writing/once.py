"""Idempotency-Key: a request that is repeated is written once, and answered as the first time.

The records of a request and a marker with its answer are one Kafka transaction (shards.py). Each
partition of the topic of markers is a *shard*, and a key always falls on the same one. Requests of
a shard that come while a transaction is under way go together into the next one.
"""

import asyncio
import hashlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from headwater.client.reading.fetching import Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import HeadwaterError
from headwater.gateway.turns import in_turn
from headwater.gateway.writing.delivery import Delivered
from headwater.gateway.writing.shards import CONFIGS, PATIENCE_S, SHARDS, TOPIC, Request, Shard
from headwater.settings import ClientSettings

MAX_KEY_CHARACTERS: Final = 255
_AT_ONCE: Final = 100  # requests in one transaction


def identity_of(caller: str, topic: str, key: str) -> bytes:
    parts = (caller.encode(), topic.encode(), key.encode("utf-8", "surrogatepass"))
    hashed = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    return hashed.digest()[:16]


class Once:
    """All shards, written with the gateway's own login. For the event loop."""

    def __init__(self, bootstrap: str, login: ClientSettings, threads: ThreadPoolExecutor) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._threads = threads
        self._starting = asyncio.Lock()
        self._queues: list[_Queue] = []

    def close(self) -> None:
        for queue in self._queues:
            queue.shard.close()

    async def write(self, request: Request) -> tuple[Delivered, bool]:
        """What was written, and whether that was an earlier time. Requests with the same key wait
        for each other. Raises Refusal, HeadwaterError; then nothing was written, or the next
        request with this key finds out.
        """
        if not self._queues:
            await in_turn(self._starting, self._start)
        return await self._queues[request.identity[0] % len(self._queues)].write(request)

    async def _start(self) -> None:
        if not self._queues:
            loop = asyncio.get_running_loop()
            number = await loop.run_in_executor(self._threads, self._made)
            self._queues = [
                _Queue(Shard(self._bootstrap, self._login, shard), self._threads)
                for shard in range(number)
            ]

    def _made(self) -> int:
        """The number of shards."""
        ensure_topics(
            self._bootstrap,
            self._login,
            [NewTopic(TOPIC, SHARDS, CONFIGS)],
            patience_s=PATIENCE_S,
        )
        with Fetcher(self._bootstrap, self._login, patience_s=PATIENCE_S) as fetcher:
            return fetcher.partitions(TOPIC)


class _Queue:
    """The requests of one shard, in their order; what they hold counts in the gateway's budget."""

    def __init__(self, shard: Shard, threads: ThreadPoolExecutor) -> None:
        self.shard = shard
        self._threads = threads
        self._waiting: deque[tuple[Request, asyncio.Future[tuple[Delivered, bool]]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, request: Request) -> tuple[Delivered, bool]:
        future: asyncio.Future[tuple[Delivered, bool]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return await future

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                results = await loop.run_in_executor(
                    self._threads, self.shard.write, [request for request, _ in group]
                )
                for (_, future), result in zip(group, results, strict=True):
                    if future.done():
                        continue  # nobody waits any longer
                    if isinstance(result, HeadwaterError):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._writing = None
