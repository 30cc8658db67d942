"""Delivers the webhooks that are this gateway's, in a thread with an event loop of its own.

So receivers that are slow, and requests of clients, do not wait for each other. Every webhook is a
task with its own bounds; none waits for another.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from headwater.client.cluster import Cluster
from headwater.client.group_offsets import GroupOffsets
from headwater.client.offsets import COMMITTED, LATEST, list_offsets
from headwater.client.reading.compacted import CommittedLatest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import partition_of
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.access import Access
from headwater.gateway.ownership import Ownership
from headwater.gateway.reading.schemas import schemas_of
from headwater.gateway.webhooks import definitions, states
from headwater.gateway.webhooks.administration import Administration
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.metrics import WebhookMetrics
from headwater.gateway.webhooks.sending import Place, Sending
from headwater.gateway.webhooks.states import State
from headwater.gateway.webhooks.targets import parse_networks
from headwater.gateway.writing.delivery import Delivery
from headwater.inspect.record_json import Record

log = logging.getLogger(__name__)

_T = TypeVar("_T")

GROUP: Final = "headwater-webhooks"
_LOOK_S: Final = 0.5
_IDLE_LOOK_S: Final = 2.0  # while there are no webhooks
_STATE_S: Final = 5.0
_RENEW_S: Final = 3600.0  # brokers delete offsets of groups that commit nothing for days
_THREADS: Final = 16
_PATIENCE_S: Final = 10.0
_STOPPING_LIMIT_S: Final = 10.0
_MAX_LETTER_BYTES: Final = 64 << 20


class _Running:
    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.task = asyncio.get_running_loop().create_task(sending.run())
        self.committed: dict[Place, int] = {}
        self.reported = ""
        self.reported_s = 0.0
        self.written = b""


class WebhookService:
    """Started and closed by whoever runs the gateway."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.metrics = WebhookMetrics()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What was delivered is committed, so that it is not repeated."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_STOPPING_LIMIT_S)

    def _run(self) -> None:
        pause_s = 1.0
        while not self._is_closed.is_set():
            try:
                asyncio.run(_Deliveries(self._config, self._is_closed, self.metrics).run())
            except HeadwaterError as error:
                log.warning("webhooks are not sent: %s", error)
            except Exception:
                log.exception("webhooks are not sent")
            self._is_closed.wait(pause_s)
            pause_s = min(2 * pause_s, 30.0)


class _Deliveries:
    """From connecting to the broker until something fails, or the end."""

    def __init__(self, config: Config, is_closed: threading.Event, metrics: WebhookMetrics) -> None:
        self._config = config
        self._is_closed = is_closed
        self._metrics = metrics
        self._measured_s = 0.0
        self._bootstrap, self._login = config.bootstrap(), config.client
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="webhooks")
        self._committing = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._renewed_s = time.monotonic()

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._definitions = CommittedLatest(
            self._bootstrap, self._login, definitions.TOPIC, patience_s=_PATIENCE_S
        )
        self._cluster = Cluster(self._bootstrap, self._login, patience_s=_PATIENCE_S)
        self._ownership: Ownership | None = None
        self._access = Access(self._bootstrap, self._login, self._threads)
        self._delivery: Delivery | None = None
        try:
            while not self._is_closed.is_set():
                webhooks = definitions.decoded(await self._call(self._definitions.read))
                if webhooks and self._ownership is None:
                    await self._begin()
                await self._follow(webhooks)
                await self._commit_all()
                await self._report()
                await self._measure()
                await asyncio.sleep(_LOOK_S if webhooks else _IDLE_LOOK_S)
        finally:
            await self._end()

    async def _begin(self) -> None:
        await self._call(
            lambda: ensure_topics(
                self._bootstrap, self._login, [NewTopic(states.TOPIC, 1, states.CONFIGS)]
            )
        )
        self._states = states.decoded(await self._call(self._read_states))
        self._delivery = Delivery(self._bootstrap, self._login, _MAX_LETTER_BYTES)
        self._ownership = Ownership(
            self._bootstrap, self._login, GROUP, definitions.TOPIC, self._revoked
        )

    def _read_states(self) -> dict[bytes, bytes]:
        found = CommittedLatest(self._bootstrap, self._login, states.TOPIC, patience_s=_PATIENCE_S)
        try:
            return found.read()
        finally:
            found.close()

    async def _follow(self, webhooks: Mapping[str, Webhook]) -> None:
        """Starts and ends what has to be."""
        owned = self._ownership.owned if self._ownership is not None else frozenset()
        wanted = {
            name: webhook
            for name, webhook in webhooks.items()
            if not webhook.paused and _shard(name) in owned
        }
        for name in [
            name
            for name, running in self._running.items()
            if wanted.get(name) != running.sending.webhook or running.task.done()
        ]:
            await self._stop(name)
        for name, webhook in wanted.items():
            if name not in self._running:
                self._running[name] = _Running(await self._sending(webhook))
        if time.monotonic() - self._renewed_s > _RENEW_S:
            self._renewed_s = time.monotonic()
            for name, webhook in webhooks.items():
                if _shard(name) in owned:
                    await self._renew(webhook)

    async def _sending(self, webhook: Webhook) -> Sending:
        assert self._delivery is not None
        state = replace(
            State(since_ms=states.now_ms()),
            failing_since_ms=self._states.get(webhook.name, State()).failing_since_ms,
            last_error=self._states.get(webhook.name, State()).last_error,
            last_error_ms=self._states.get(webhook.name, State()).last_error_ms,
        )

        async def committed(places: Iterable[Place]) -> dict[Place, int]:
            wanted = list(places)
            return await self._call(lambda: self._group_committed(webhook, wanted))

        async def pause(reason: str) -> None:
            administration = Administration(self._bootstrap, self._login)
            log.warning("webhook %s is paused: %s", webhook.name, reason)
            with suppress(HeadwaterError):  # else it is asked once more, and says so again
                await self._call(lambda: administration.pause(webhook.name, reason))

        return Sending(
            webhook,
            self._access,
            self._delivery,
            parse_networks(self._config.gateway.webhook_allowed_networks),
            lambda topic: schemas_of(self._config, self._access, topic),
            state,
            committed,
            pause,
            self._metrics,
        )

    async def _stop(self, name: str) -> None:
        running = self._running.pop(name, None)
        if running is None:
            return
        running.task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await running.task
        if not running.task.cancelled() and running.task.exception() is not None:
            log.error("webhook %s failed", name, exc_info=running.task.exception())
        self._metrics.forget(name)
        self._states[name] = running.sending.state
        await self._commit(running)
        self._write_state(name, running)

    def _revoked(self, shards: set[int]) -> None:
        """In the thread of the group: others may send them as soon as this returns."""

        async def stop() -> None:
            for name in [name for name in self._running if _shard(name) in shards]:
                await self._stop(name)

        if self._is_closed.is_set():
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(stop(), self._loop).result(_STOPPING_LIMIT_S)

    # Positions

    async def _commit_all(self) -> None:
        for running in list(self._running.values()):
            await self._commit(running)

    async def _commit(self, running: _Running) -> None:
        positions = dict(running.sending.positions)
        new = {
            place: offset
            for place, offset in positions.items()
            if running.committed.get(place) != offset
        }
        if not new:
            return
        webhook = running.sending.webhook
        try:
            await self._call(lambda: self._group_commit(webhook, new))
        except HeadwaterError as error:
            log.warning("webhook %s: its position is not committed: %s", webhook.name, error)
            return
        running.committed |= new

    async def _renew(self, webhook: Webhook) -> None:
        def renew() -> None:
            places = [
                (topic, number)
                for topic in (*webhook.topics, webhook.dead_letter_topic)
                for number in range(self._cluster.find_partitions(topic) or 0)
            ]
            with self._committing:
                group = self._group(webhook)
                group.commit(group.committed(places))

        with suppress(HeadwaterError):
            await self._call(renew)

    def _group(self, webhook: Webhook) -> GroupOffsets:
        return GroupOffsets(self._bootstrap, self._login, webhook.group, cluster=self._cluster)

    def _group_commit(self, webhook: Webhook, offsets: Mapping[Place, int]) -> None:
        with self._committing:
            self._group(webhook).commit(offsets)

    def _group_committed(self, webhook: Webhook, places: list[Place]) -> dict[Place, int]:
        with self._committing:
            return self._group(webhook).committed(places)

    # States

    async def _report(self) -> None:
        for name, running in self._running.items():
            state = running.sending.state
            text = f"{state.state} {state.last_error} {state.dead_lettered}"
            now_s = time.monotonic()
            if text != running.reported or now_s - running.reported_s > _STATE_S:
                running.reported = text
                running.reported_s = now_s
                self._write_state(name, running)

    def _write_state(self, name: str, running: _Running) -> None:
        encoded = running.sending.state.to_json()
        if self._delivery is None or running.written == encoded:
            return
        running.written = encoded
        self._delivery.send(states.TOPIC, [Record(name.encode(), encoded, (), 0)])

    # Metrics

    async def _measure(self) -> None:
        """How much each webhook has not passed yet, now and then."""
        self._metrics.failing = {
            name: running.sending.state.state == states.FAILING
            for name, running in self._running.items()
        }
        if time.monotonic() - self._measured_s < _STATE_S:
            return
        self._measured_s = time.monotonic()
        reached = {
            name: {**running.sending.begun, **running.sending.positions}
            for name, running in self._running.items()
        }
        places = {
            place
            for name, running in self._running.items()
            for place in reached[name]
            if place[0] in running.sending.webhook.topics
        }
        try:
            ends = await self._call(lambda: list_offsets(self._cluster, places, LATEST, COMMITTED))
        except HeadwaterError:
            return  # the next one may get through; what is shown is some seconds old
        self._metrics.backlog = {
            name: sum(max(0, ends[place] - at) for place, at in positions.items() if place in ends)
            for name, positions in reached.items()
        }

    # The end

    async def _end(self) -> None:
        for name in list(self._running):
            await self._stop(name)
        if self._ownership is not None:
            await self._call(self._ownership.close)
        if self._delivery is not None:
            self._delivery.close()
        self._access.stop()
        self._access.close()
        self._definitions.close()
        self._cluster.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[[], _T]) -> _T:
        return await self._loop.run_in_executor(self._threads, function)


def _shard(name: str) -> int:
    return partition_of(name.encode(), definitions.SHARDS)
