"""The journal of a coordinator: write first, then change memory, then answer.

Everything that must survive a crash goes through here: the change becomes records, the records
become durable, and only then does `on_durable` change memory. So memory never holds what the log
does not, an append that fails leaves everything as it was, and what a client got as an answer
is in the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headwater.broker.internal_topics.coordinator_log import CoordinatorLog
from headwater.broker.internal_topics.records import Record, encode, partition_for
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ApiError, ErrorCode

logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


class Journal:
    """A coordinator's writer of its topic. `owner` names in the log whose change failed."""

    def __init__(self, log: CoordinatorLog, owner: str = "group") -> None:
        self._log = log
        self._owner = owner
        self._writes: set[asyncio.Future[int]] = set()

    def write(
        self,
        name: str,
        records: Sequence[Record],
        on_durable: Callable[[], None],
        on_failed: Callable[[], None] = _nothing,
    ) -> Awaitable[None]:
        """Appends the records; exactly one of the callbacks runs, in the order of the log.

        `name` (a group's, a transactional id) decides on the partition. What it returns resolves
        after the callback, and raises ApiError when the log failed. A caller that goes away (its
        connection closed) stops neither the append nor the callback.
        """
        return self.write_at(name, records, lambda _: on_durable(), on_failed)

    def write_at(
        self,
        name: str,
        records: Sequence[Record],
        on_durable: Callable[[int], None],
        on_failed: Callable[[], None] = _nothing,
        *,
        producer: tuple[int, int] | None = None,
    ) -> Awaitable[None]:
        """As `write`; `on_durable` gets the offset, and a `producer`'s transaction decides."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[None] = loop.create_future()
        partition = partition_for(name, self._log.partition_count)
        encoded = [encode(record) for record in records]
        write: asyncio.Future[int]
        try:
            write = asyncio.ensure_future(self._log.append(partition, encoded, producer))
        except (StorageFailed, ApiError) as error:
            write = loop.create_future()
            write.set_exception(error)
        self._writes.add(write)

        def settle(write: asyncio.Future[int]) -> None:
            self._writes.discard(write)
            error = asyncio.CancelledError() if write.cancelled() else write.exception()
            if error is None:
                on_durable(write.result())
                if not outcome.done():
                    outcome.set_result(None)
                return
            on_failed()
            if isinstance(error, ApiError):  # the log refuses this producer
                if not outcome.done():
                    outcome.set_exception(error)
                    outcome.exception()
                return
            if isinstance(error, StorageFailed):
                logger.warning("%s %s: its change was not stored: %s", self._owner, name, error)
            else:
                logger.error("%s %s: its change was not stored", self._owner, name, exc_info=error)
            if not outcome.done():
                # Retriable for every client: it looks for the coordinator and tries again.
                outcome.set_exception(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                outcome.exception()  # counts as seen: not every caller waits

        write.add_done_callback(settle)
        return outcome

    async def drain(self) -> None:
        """Waits for the appends that are under way."""
        while self._writes:
            await asyncio.wait(self._writes)
            await asyncio.sleep(0)  # lets the callbacks run
