"""One webhook: every record from its position on, at least once, in order per key.

  log ──▶ a piece of at most 2,000 records ──▶ lanes, one for each key ──▶ POST

- A lane sends its records one after the other; several lanes send at once, `max_in_flight` in
  all. Records without a key are one lane for each partition.
- The position of a partition is its first record that has not been delivered or dead-lettered. It
  is committed twice a second, so a crash repeats what was sent since, with the same webhook-id.
- A request that fails is repeated, after 0.5 s and then ever longer up to a minute, with jitter,
  or when Retry-After says. While the receiver fails altogether, one request at a time tries it.
- After `retry_for_s` without success a record becomes a dead letter, and the next one's turn has
  come. So does one that the receiver refuses for good (400, 413, 415, 422).
- 410 pauses the webhook: the receiver wants nothing any more.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from headwater.errors import HeadwaterError
from headwater.gateway.access import Access
from headwater.gateway.reading import positions
from headwater.gateway.reading.backlog import read_stretch, readers_of
from headwater.gateway.reading.schemas import Schemas, schema_id
from headwater.gateway.reading.subscription import Lost, Shared, Subscription
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.letters import (
    Message,
    message_of,
    message_of_letter,
    origin_of,
)
from headwater.gateway.webhooks.metrics import WebhookMetrics
from headwater.gateway.webhooks.posting import NoAnswer, Poster
from headwater.gateway.webhooks.states import State, now_ms
from headwater.gateway.webhooks.targets import ForbiddenTarget, Network, parse_target
from headwater.gateway.writing.delivery import Delivery
from headwater.jitter import pause_between
from headwater.sinks.notifications.standard_webhooks import (
    retry_after_s,
    secret_bytes,
    signed_headers,
)

log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 128 << 10
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_FAILURES_BEFORE_PROBING: Final = 3
_REDELIVERY_S: Final = 60.0  # that a dead letter is retried for
_REFUSED: Final = (400, 413, 415, 422)
_GONE: Final = 410

Place = tuple[str, int]
Committed = Callable[[Iterable[Place]], Awaitable[dict[Place, int]]]


class Sending:
    """To be run as a task, and cancelled. `positions` has what is to be committed."""

    def __init__(
        self,
        webhook: Webhook,
        access: Access,
        delivery: Delivery,
        allowed: Sequence[Network],
        schemas: Callable[[str], Schemas],
        state: State,
        committed: Committed,
        pause: Callable[[str], Awaitable[None]],
        metrics: WebhookMetrics,
    ) -> None:
        self.webhook = webhook
        self.state = state
        self.positions: dict[Place, int] = {}
        self.begun: dict[Place, int] = {}  # where it began to read
        self._metrics = metrics
        self._access = access
        self._delivery = delivery
        self._schemas = schemas
        self._committed = committed
        self._pause = pause
        self._secrets = [secret_bytes(secret) for secret in webhook.secrets]
        self._poster = Poster(parse_target(webhook.url), allowed, webhook.timeout_s)
        self._slots = asyncio.Semaphore(webhook.max_in_flight)
        self._probing = asyncio.Lock()
        self._is_gone = asyncio.Event()
        self._failures = 0  # since the last success
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled, or the receiver wants nothing any more."""
        jobs = [self._follow_for_ever(topic) for topic in self.webhook.topics]
        work = asyncio.gather(self._redeliver(), *jobs)
        gone = asyncio.ensure_future(self._is_gone.wait())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            gone.cancel()
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work
            self._poster.close()

    # Records of a topic

    async def _follow_for_ever(self, topic: str) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            began_s = time.monotonic()
            try:
                await self._follow(topic)
            except HeadwaterError as error:
                self.state.has_failed(f"{topic} cannot be read: {error}")
                log.warning("webhook %s: %s", self.webhook.name, error)
            if time.monotonic() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(_jittered(pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _follow(self, topic: str) -> None:
        begins = self.webhook.begins.get(topic, {})
        at = {int(number): offset for number, offset in begins.items()}
        partitions = (await self._access.topic(topic, "read")).partitions
        stored = await self._committed([(topic, number) for number in range(partitions)])
        at |= {number: offset for (_, number), offset in stored.items()}
        self.begun |= {(topic, number): at.get(number, 0) for number in range(partitions)}
        subscription = Subscription(
            self._access,
            Shared(),  # of its own: one that waits for its receiver holds back no other
            topic,
            self.webhook.parsed_filter(),
            self._schemas(topic),
            _PIECE_BYTES,
        )
        try:
            await subscription.begin(at)
            while True:
                found = await subscription.next(5.0)
                if isinstance(found, Lost):
                    self.state.lost += found.end - found.start
                    self._count("lost_records", found.end - found.start)
                    self.state.last_error = (
                        f"retention deleted offsets {found.start} to {found.end} of {topic}"
                        f" partition {found.partition} before they were sent"
                    )
                    self.state.last_error_ms = now_ms()
                    self.positions[topic, found.partition] = found.end
                elif found is not None:
                    behind = positions.parse(found.id.decode())
                    assert isinstance(behind, dict)
                    await self._deliver(
                        [message_of(topic, entry) for entry in found.entries], topic, behind
                    )
        finally:
            subscription.close()

    async def _deliver(self, messages: list[Message], topic: str, behind: dict[int, int]) -> None:
        lanes: dict[object, deque[Message]] = {}
        waiting: dict[int, set[int]] = {}
        for message in messages:
            lanes.setdefault(message.lane, deque()).append(message)
            waiting.setdefault(message.partition, set()).add(message.record.offset)
        ended: dict[int, int] = dict(behind)

        def settled(message: Message) -> None:
            left = waiting[message.partition]
            left.discard(message.record.offset)
            end = min(left) if left else ended[message.partition]
            self.positions[topic, message.partition] = end

        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(self._send_lane(lane, settled))
        self.positions |= {(topic, number): offset for number, offset in behind.items()}

    async def _send_lane(self, lane: deque[Message], settled: Callable[[Message], None]) -> None:
        while lane:
            await self._send(lane[0], self.webhook.retry_for_s)
            settled(lane.popleft())

    # One record

    async def _send(self, message: Message, retry_for_s: float) -> None:
        """Returns when it was delivered, or is a dead letter."""
        until_s = time.monotonic() + retry_for_s
        pause_s = _FIRST_PAUSE_S
        attempt = 0
        while True:
            attempt += 1
            failing_ms = self.state.failing_since_ms
            has_expired = failing_ms > 0 and now_ms() - failing_ms > retry_for_s * 1000
            async with self._slots:
                cause, after_s, is_final = await self._try(message, attempt, has_expired)
            if cause is None:
                return
            if is_final or has_expired or time.monotonic() + after_s > until_s:
                await self._bury(message, cause)
                return
            wait_s = max(_jittered(pause_s), after_s)
            self._not_before_s = max(self._not_before_s, time.monotonic() + wait_s)
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try(
        self, message: Message, attempt: int, has_expired: bool
    ) -> tuple[str | None, float, bool]:
        """Why it has failed, when it may be repeated, and whether it may not."""
        if self._failures < _FAILURES_BEFORE_PROBING or has_expired:
            return await self._post(message, attempt)
        async with self._probing:
            if self._failures >= _FAILURES_BEFORE_PROBING:
                await asyncio.sleep(max(0.0, self._not_before_s - time.monotonic()))
            return await self._post(message, attempt)

    async def _post(self, message: Message, attempt: int) -> tuple[str | None, float, bool]:
        if attempt > 1:
            self._count("retries")
        identity = message.identity(self.webhook)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "headwater",
            "Headwater-Webhook": self.webhook.name,
            "Headwater-Attempt": str(attempt),
            "Idempotency-Key": identity,
            **signed_headers(identity, message.body, self._secrets),
        }
        try:
            answer = await self._poster.post(message.body, headers)
        except (NoAnswer, ForbiddenTarget) as error:
            return self._failed(str(error)), 0.0, False
        if 200 <= answer.status < 300:
            self._failures = 0
            self.state.succeeded()
            self._count("sent_records")
            return None, 0.0, False
        cause = self._failed(f"answered {answer.status}" + (f": {answer.text}" * bool(answer.text)))
        if answer.status == _GONE:
            await self._pause("the receiver answered 410 Gone")
            self._is_gone.set()
            await asyncio.Event().wait()  # until it is ended
        return cause, retry_after_s(answer.retry_after), answer.status in _REFUSED

    def _count(self, counter: str, number: int = 1) -> None:
        self._metrics.count(counter, self.webhook.name, number)

    def _failed(self, cause: str) -> str:
        self._failures += 1
        self._count("failed_attempts")
        self.state.has_failed(cause)
        return cause

    async def _bury(self, message: Message, cause: str) -> None:
        letter = message.letter(self.webhook, cause)
        pause_s = _FIRST_PAUSE_S
        while True:
            written = await self._delivery.send(self.webhook.dead_letter_topic, [letter])
            if written.error is None:
                self.state.dead_lettered += 1
                self._count("dead_letters")
                return
            self.state.has_failed(f"the dead letter cannot be written: {written.error}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    # Dead letters

    async def _redeliver(self) -> None:
        """Those before `redeliver_until`, in order. What fails again becomes a letter again, behind
        that offset: it waits for the next time it is asked for.
        """
        topic, until = self.webhook.dead_letter_topic, self.webhook.redeliver_until
        while True:
            try:
                at = (await self._committed([(topic, 0)])).get((topic, 0), 0)
                while at < until:
                    start = at
                    stretch = await readers_of(self._access).use(
                        lambda fetcher, start=start: read_stretch(  # type: ignore[misc]
                            fetcher, topic, 0, start, until, _PIECE_BYTES
                        )
                    )
                    for letter in stretch.records:
                        found = schema_id(letter.value)
                        if found is not None:
                            look_up = self._schemas(origin_of(letter)).look_up
                            await self._access.call(look_up, [found])
                        message = message_of_letter(letter, self._schemas)
                        if message is not None:
                            await self._send(message, min(self.webhook.retry_for_s, _REDELIVERY_S))
                        self.positions[topic, 0] = letter.offset + 1
                    at = self.positions[topic, 0] = stretch.behind
            except HeadwaterError as error:
                self.state.has_failed(f"{topic} cannot be read: {error}")
                await asyncio.sleep(_jittered(_LONGEST_PAUSE_S))
                continue
            return


def _jittered(pause_s: float) -> float:
    """So that webhooks that failed together are not repeated together."""
    return pause_between(pause_s / 2, pause_s)
