"""All tables of one login, each with a thread that follows its topic.

A table is loaded for the first client, shared by all, and dropped some seconds after the last one.
One that cannot go on (the topic was deleted, the login lost its right, it became too large) is
broken: its clients ask for it again, and get the reason, or a new one.
"""

import asyncio
import time
from contextlib import suppress
from typing import Final

from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.gateway.access import Access
from headwater.gateway.live.loading import Loaded, load
from headwater.gateway.live.memory import Memory
from headwater.gateway.live.table import Table
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.following import TopicFollower
from headwater.gateway.reading.schemas import Schemas
from headwater.gateway.turns import in_turn
from headwater.inspect.table_rows import Step, step_of
from headwater.settings import ClientSettings
from headwater.web.login_access import PATIENCE_S

_IDLE_S: Final = 30.0  # a table without clients is dropped
_FETCHED_BYTES: Final = 8 << 20  # of one topic; more is read again


class Tables:
    """Its methods are called on the event loop."""

    def __init__(self, access: Access, memory: Memory, settings_login: ClientSettings) -> None:
        self._access = access
        self._memory = memory
        self._settings_login = settings_login  # that reads the settings of topics
        self._loop = asyncio.get_running_loop()
        self._tables: dict[tuple[str, int], Table] = {}  # by topic and its partitions
        self._followers: dict[Table, TopicFollower[Step]] = {}
        self._opening: dict[tuple[str, int], asyncio.Lock] = {}
        self.is_stopping = False

    def stop(self) -> None:
        self.is_stopping = True
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for table in self.all():
            table.wake()

    def close(self) -> None:
        for table, follower in list(self._followers.items()):
            follower.close()
            table.break_off()

    def all(self) -> list[Table]:
        return list(self._tables.values())

    async def join(self, topic: str, partitions: int, schemas: Schemas) -> Table:
        """The table of the topic, which is to be left. Raises HeadwaterError."""
        key = (topic, partitions)

        async def opened() -> Table:
            found = self._tables.get(key)
            if found is None or found.is_broken:
                loaded = await self._access.call(self._load, topic, partitions, schemas)
                found = self._tables[key] = Table(topic, loaded, self._memory)
                self._followers[found] = self._follower(key, found, schemas)
            return found

        table = await in_turn(self._opening.setdefault(key, asyncio.Lock()), opened)
        table.clients += 1
        return table

    def leave(self, table: Table) -> None:
        table.clients -= 1
        table.idle_since_s = time.monotonic()

    async def bring_up_to_date(self, table: Table) -> None:
        """Returns when the table has all that was committed when this was called, or is broken.
        Clients that come together ask the broker once.
        """
        asked_s = time.monotonic()
        async with table.looking:
            if table.looked_s < asked_s:
                began_s = time.monotonic()
                everything = [(table.topic, number) for number in table.offsets]
                found = await readers_of(self._access).use(
                    lambda fetcher: fetcher.offsets(everything, LATEST)
                )
                table.ends = {number: offset for (_, number), offset in found.items()}
                table.looked_s = began_s
            ends = table.ends
        await table.reach(ends)

    def _load(self, topic: str, partitions: int, schemas: Schemas) -> Loaded:
        """Blocks."""
        with Fetcher(self._access.bootstrap, self._access.login, patience_s=PATIENCE_S) as fetcher:
            return load(
                topic, partitions, schemas, fetcher, self._settings_login,
                self._access.bootstrap, self._memory,
            )  # fmt: skip

    def _follower(
        self, key: tuple[str, int], table: Table, schemas: Schemas
    ) -> TopicFollower[Step]:
        def apply(steps: list[Step], offsets: dict[int, int]) -> None:
            if not table.is_broken:
                table.apply(steps, offsets)

        return TopicFollower(
            self._access,
            table,
            table.offsets,
            self._loop,
            decode=lambda partition, record, _: step_of(partition, record, *schemas),
            apply=apply,
            ended=lambda: self._ended(key, table),
            held_bytes=_FETCHED_BYTES,
            idle_s=_IDLE_S,
            reads_log=True,
        )

    def _ended(self, key: tuple[str, int], table: Table) -> None:
        self._followers.pop(table, None)
        if self._tables.get(key) is table:
            del self._tables[key]


def tables_of(access: Access, memory: Memory, settings_login: ClientSettings) -> Tables:
    return access.part(Tables, lambda: Tables(access, memory, settings_login))
