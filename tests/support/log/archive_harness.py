"""A log with an archive behind it, which fails, delays and lies on demand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

from headwater.errors import ArchiveUnavailable
from headwater.log import retention
from headwater.log.archive.descriptor import NotCached
from headwater.log.archive.options import ArchiveOptions
from headwater.log.partitions import timestamps
from support.log.log_harness import Log


class FaultyObjects:
    """An object store in memory. Without a fault asked for it is a perfect one.

    `is_down`: every request fails. `fail_share`: so many of them do, before or after they had
    their effect. `hold`: requests wait until it is set. `garble`: applied to what is read.
    """

    url = "memory://archive"

    def __init__(self, seed: int = 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.is_down = False
        self.fail_share = 0.0
        self.hold: asyncio.Event | None = None
        self.garble: Any = None
        self._random = Random(seed)

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        data = b"".join([part async for part in parts])
        await self._request("put", name)
        if self._random.random() < self.fail_share / 2:
            self.objects[name] = data[: self._random.randrange(len(data) + 1)]  # cut short
            raise ArchiveUnavailable("injected, after a part of it")
        self.objects[name] = data
        self._maybe_fail()

    async def get(self, name: str, start: int, end: int) -> bytes:
        await self._request("get", name)
        if name not in self.objects:
            raise ArchiveUnavailable("no such object", detail=name)
        data = self.objects[name][start:end]
        if self._random.random() < self.fail_share / 4:
            data = data[: len(data) // 2]
        return data if self.garble is None else self.garble(name, data)

    async def names(self, prefix: str) -> list[str]:
        await self._request("names", prefix)
        return [name for name in self.objects if name.startswith(prefix + "/")]

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            await self._request("delete", name)
            self.objects.pop(name, None)
            self._maybe_fail()

    def close(self) -> None:
        pass

    def count(self, kind: str, suffix: str = "") -> int:
        return sum(requested == kind and name.endswith(suffix) for requested, name in self.requests)

    async def _request(self, kind: str, name: str) -> None:
        self.requests.append((kind, name))
        if self.hold is not None:
            await self.hold.wait()
        await asyncio.sleep(0)
        if self.is_down:
            raise ArchiveUnavailable("it is down")
        self._maybe_fail()

    def _maybe_fail(self) -> None:
        if self._random.random() < self.fail_share:
            raise ArchiveUnavailable("injected")


class ArchivedLog(Log):
    """A log whose topic is archived; segments of some KiB."""

    def __init__(self, path: Any, *, objects: Any = None, cache_bytes: int = 1 << 20, **options):
        self.objects = objects or FaultyObjects()
        archive = ArchiveOptions(objects=self.objects, cache_bytes=cache_bytes)
        super().__init__(path, archive=archive, **options)

    def create(self, topic: str = "t", partitions: int = 1, **configs: Any):
        wanted = {"remote_storage_enable": "true", "segment_bytes": 2000, **configs}
        return super().create(topic, partitions, **wanted)

    @property
    def archive(self):
        return self.store.archive

    def archived(self) -> list[int]:
        return [segment.base_offset for segment in self.partition().archived]

    def wait(self, condition: Any) -> None:
        """Lets the background work go on until the condition holds."""

        async def wait() -> None:
            async with asyncio.timeout(8):
                while not condition():
                    await asyncio.sleep(0.001)

        self.run(wait())

    def archive_all(self) -> None:
        self.wait(
            lambda: (
                not self.archive.not_archived_bytes(self.partition())
                and not self.archive.uploads.busy
            )
        )

    def let_go_locally(self) -> None:
        self.run(retention.apply_locally(self.store, [self.partition()]))
        self.settle()

    def delete_all(self) -> None:
        self.wait(lambda: not self.archive.deletions.pending)
        self.settle()

    def read(self, offset: int, max_bytes: int = 1 << 20, topic: str = "t") -> bytes:
        while True:
            try:
                return super().read(offset, max_bytes, topic)
            except NotCached as missing:
                self.run(self.archive.chunks.fetched(missing.chunk))

    def find_time(self, timestamp_ms: int):
        return self.run(
            self.store.in_reader_and_archive(
                timestamps.first_at_or_after, self.partition(), timestamp_ms
            )
        )

    def object_names(self) -> list[str]:
        return sorted(name.split("/", 2)[2] for name in self.objects.objects)
