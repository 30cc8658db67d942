"""The transaction coordinator, which serves all requests that concern transactional ids.

All of it runs on the event loop. A method that refuses raises ApiError; its code is the answer.

Who changes what, and when:
  - A partition joins its transaction in memory at once (`add`), and the request waits until the
    record that says so is durable. So a batch may be appended right away, and an abort
    reaches it even if that record fails; a restart finds it too (`recovery`).
  - Every other change is durable first, and memory follows. While it is being written no other
    request may change the same id: CONCURRENT_TRANSACTIONS, which clients try again.
  - A transaction's data has the epoch that its client had when it began. Whatever ends one
    without the client's knowledge (a timeout, a new producer of that id), and every end of a
    client of KIP-890, writes markers of the next epoch: what is late is refused.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from headwater.broker.background import Background
from headwater.broker.internal_topics.coordinator_log import CoordinatorLog
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.transactions import recovery, transitions
from headwater.broker.transactions.markers import Marker, Markers
from headwater.broker.transactions.transaction import (
    NO_PRODUCER_ID,
    Identity,
    State,
    TopicPartition,
    Transaction,
)
from headwater.clock import Clock
from headwater.log.store import LogStore
from headwater.protocol.error_codes import ApiError, ErrorCode

logger = logging.getLogger(__name__)

IDS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's defaults, beside Kafka's names."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 24 * 3_600_000  # transactional.id.expiration.ms


class TransactionCoordinator:
    """Serves once `load` has read what there is; `close` waits for what is on its way."""

    def __init__(
        self,
        log: CoordinatorLog,
        store: LogStore,
        markers: Markers,
        clock: Clock,
        create_topic: Callable[[], Awaitable[None]],
        settings: TransactionSettings | None = None,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self.timed_out = 0
        self._log = log
        self._store = store
        self._markers = markers
        self._clock = clock
        self._create_topic = create_topic
        self._journal = Journal(log, "transactional id")
        self._by_id: dict[str, Transaction] = {}
        self._ongoing: dict[str, Transaction] = {}
        self._refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._background = Background("a transaction's change")

    # Life

    async def load(self, *, has_topic: bool) -> None:
        """Reads the transactions and goes on with those that were under way.

        The groups are loaded by now: their offsets wait for markers.
        """
        if has_topic:
            await recovery.read(self._log, self._by_id)
        found = await recovery.open_partitions(self._store, self._by_id.values())
        self._refusal = None
        for transaction in list(self._by_id.values()):
            if transaction.state is State.ONGOING:
                self._ongoing[transaction.transactional_id] = transaction
            elif transaction.state.is_ending:
                self._background.start(self._complete(transaction, lambda: None))
        for transaction, partitions in found.adopted:
            self._join(transaction, partitions)
        for marker, partitions in found.orphaned:
            logger.warning("producer %d: its open transaction is aborted", marker.producer_id)
            self._background.start(self._markers.write(marker, partitions, lambda: None))
        if self._by_id:
            logger.info("transactional ids loaded: %d", len(self._by_id))

    async def close(self) -> None:
        self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._markers.close()
        await self._background.wait()
        await self._journal.drain()

    def abandon(self) -> None:
        """Lets everything go as a crash would."""
        self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._background.cancel()

    def verify_ready(self) -> None:
        if self._refusal is not None:
            raise ApiError(self._refusal)

    # A producer comes

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None = None
    ) -> Identity:
        """An identity that fences every earlier one of this transactional id.

        What an earlier producer left open is aborted. `expected`: the producer goes on after an
        error of its own and says who it is (KIP-360); it is refused if it has been replaced.
        """
        self.verify_ready()
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise ApiError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"{timeout_ms} ms; transaction.max.timeout.ms={self.settings.max_timeout_ms}",
            )
        return await asyncio.shield(
            self._background.start(self._init(transactional_id, timeout_ms, expected))
        )

    async def _init(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None
    ) -> Identity:
        await self._create_topic()
        before = self._by_id.get(transactional_id)
        if before is None:
            return await self._found(transactional_id, timeout_ms)
        _verify_unchanging(before)
        if expected is not None:
            if transitions.is_repeated_init(before, expected):
                return before.identity
            if expected != before.identity:
                raise _fenced(before)
        if before.state is State.ONGOING:
            await self._abort_and_fence(before)
            before = self._by_id[transactional_id]
            _verify_unchanging(before)
        before.is_changing = True
        after = transitions.initialised(before, expected, timeout_ms, self._clock.now_ms())
        if before.identity.is_exhausted:
            producer_id = await self._new_producer_id(before)
            after = transitions.with_new_producer_id(after, producer_id)
        await self._change(before, after)
        return after.identity

    async def _found(self, transactional_id: str, timeout_ms: int) -> Identity:
        # Registered at once, so that a second request for it finds it changing.
        transaction = Transaction(
            transactional_id, NO_PRODUCER_ID, timeout_ms, self._clock.now_ms(), is_changing=True
        )
        self._by_id[transactional_id] = transaction
        try:
            producer_id = await self._new_producer_id(transaction)
            after = replace(transaction, producer_id=producer_id, epoch=0, is_changing=False)
            # Without `_change`: if this fails it stays changing until it is removed, for it has no
            # owner.
            await self._journal.write(
                transactional_id, [after.record()], lambda: self._replace(after)
            )
        except BaseException:
            if self._by_id.get(transactional_id) is transaction:
                del self._by_id[transactional_id]
            raise
        return after.identity

    async def _new_producer_id(self, transaction: Transaction) -> int:
        try:
            return await self._store.next_producer_id()
        except OSError:
            transaction.is_changing = False
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None

    # A transaction grows

    def add(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        topic: str,
        partition: int,
        *,
        implicit: bool,
    ) -> "asyncio.Future[None] | None":
        """None if the partition is part of the producer's transaction, durably.

        Else, if it may be added `implicit`ly (KIP-890), it is part of it from now on, and what is
        returned resolves when that is durable, or raises ApiError. TRANSACTION_ABORTABLE: it may
        not, so that a late batch cannot open a transaction that no producer ends.
        """
        transaction = self._verified(transactional_id, producer_id, epoch)
        added = (topic, partition)
        if transaction.state is State.ONGOING and added in transaction.partitions:
            saving = transaction.unsaved.get(added)
            if saving is None or not saving.done():
                return saving
        elif not implicit:
            raise ApiError(
                ErrorCode.TRANSACTION_ABORTABLE, f"{topic}-{partition} is not in the transaction"
            )
        return self._join(transaction, (added,))

    def add_all(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> "asyncio.Future[None] | None":
        """As `add`, for partitions that the client names beforehand."""
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        transaction = self._verified(transactional_id, producer_id, epoch)
        added = set(partitions)
        if transaction.state is State.ONGOING:
            added = {
                partition for partition in added if partition not in transaction.partitions
            } | {partition for partition in added if partition in transaction.unsaved}
            if not added:
                return None
        return self._join(transaction, added)

    def _verified(self, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        self.verify_ready()
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.epoch != epoch:
            raise _fenced(transaction)
        _verify_unchanging(transaction)
        return transaction

    def _join(
        self, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> "asyncio.Future[None]":
        if transaction.state is not State.ONGOING:
            transaction.state = State.ONGOING
            transaction.partitions = set()
            transaction.started_ms = self._clock.now_ms()
            self._ongoing[transaction.transactional_id] = transaction
        if transaction.saving is None:
            # One record for all that join in this turn of the loop (a request names many), or
            # while the last one is on its way: each lists every partition.
            loop = asyncio.get_running_loop()
            transaction.saving = loop.create_future()
            if not transaction.saves_under_way:
                loop.call_soon(self._save, transaction)
        for partition in partitions:
            transaction.partitions.add(partition)
            transaction.unsaved[partition] = transaction.saving
        return transaction.saving

    def _save(self, transaction: Transaction) -> None:
        saving = transaction.saving
        if saving is None:
            return
        transaction.saving = None
        transaction.updated_ms = self._clock.now_ms()
        transaction.saves_under_way += 1

        def saved() -> None:
            for partition in [p for p, state in transaction.unsaved.items() if state is saving]:
                del transaction.unsaved[partition]
            if not saving.done():
                saving.set_result(None)
            go_on()

        def failed() -> None:
            # They stay unsaved: a request that adds them again has them written again.
            if not saving.done():
                saving.set_exception(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                saving.exception()  # counts as seen: not every caller waits
            go_on()

        def go_on() -> None:
            transaction.saves_under_way -= 1
            self._save(transaction)  # what has joined meanwhile

        self._journal.write(transaction.transactional_id, [transaction.record()], saved, failed)

    # A transaction ends

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        committed: bool,
        with_new_epoch: bool,
    ) -> Identity:
        """Commits or aborts, and returns who the producer is from now on.

        Answered when it is complete: then the next transaction may begin and readers see this
        one. If a partition's disk refuses the marker, already when the decision is durable. A
        repetition gets the answer of the first. `with_new_epoch`: the client knows KIP-890.
        """
        self.verify_ready()
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        before = self._by_id.get(transactional_id)
        asking = Identity(producer_id, epoch)
        if before is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_repeated = transitions.is_repeated_end(before, asking)
        if not is_repeated:
            if before.producer_id != producer_id:
                raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            if before.epoch != epoch:
                raise _fenced(before)
        if before.is_changing:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if before.state is State.ONGOING:
            before.is_changing = True  # from here on: the task begins in the next turn
            return await asyncio.shield(
                self._background.start(
                    self._end(before, committed=committed, with_new_epoch=with_new_epoch)
                )
            )
        wanted = (
            (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
            if committed
            else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
        )
        if before.state.is_ending:
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS
                if before.state in wanted
                else ErrorCode.INVALID_TXN_STATE
            )
        if before.state in wanted and (is_repeated or not with_new_epoch):
            return before.identity
        if with_new_epoch and not committed and not is_repeated:
            before.is_changing = True
            return await asyncio.shield(self._background.start(self._end_empty(before)))
        raise ApiError(ErrorCode.INVALID_TXN_STATE, f"the state is {before.state.kafka_name}")

    async def _end(self, before: Transaction, *, committed: bool, with_new_epoch: bool) -> Identity:
        after = transitions.prepared(
            before, self._clock.now_ms(), committed=committed, with_new_epoch=with_new_epoch
        )
        if with_new_epoch and before.identity.is_exhausted:
            after.next_producer_id = await self._new_producer_id(before)
        await self._change(before, after)
        await self._complete_soon(after)
        if after.next_producer_id != NO_PRODUCER_ID:
            return Identity(after.next_producer_id, 0)
        return after.identity

    async def _end_empty(self, before: Transaction) -> Identity:
        after = transitions.aborted_empty(before, self._clock.now_ms())
        if before.identity.is_exhausted:
            producer_id = await self._new_producer_id(before)
            after = transitions.with_new_producer_id(after, producer_id)
        await self._change(before, after)
        return after.identity

    async def _abort_and_fence(self, before: Transaction) -> None:
        after = transitions.fenced(before, self._clock.now_ms())
        await self._change(before, after)
        await self._complete_soon(after)

    async def _complete_soon(self, transaction: Transaction) -> None:
        """Returns when it is complete, or as soon as that is seen to take longer."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def resolve(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        self._background.start(self._complete(transaction, resolve)).add_done_callback(resolve)
        await over

    async def _complete(self, before: Transaction, delayed: Callable[[], None]) -> None:
        """Writes the markers, and then that they are written; tries until both are there."""
        committed = before.state is State.PREPARE_COMMIT
        marker = Marker(before.producer_id, before.epoch, committed, self._store.leader_epoch)
        await self._markers.write(marker, before.partitions, delayed)
        after = transitions.completed(before, self._clock.now_ms())
        while True:
            try:
                await self._change(before, after)
                return
            except ApiError:
                delayed()
                await self._markers.pause()

    def _change(self, before: Transaction, after: Transaction) -> Awaitable[None]:
        """`after` replaces `before` when it is durable; if that fails, nothing changes."""
        before.is_changing = True
        self._save(before)  # what has just joined comes first in the log, too

        def failed() -> None:
            before.is_changing = False

        return self._journal.write(
            after.transactional_id, [after.record()], lambda: self._replace(after), failed
        )

    def _replace(self, after: Transaction) -> None:
        self._by_id[after.transactional_id] = after
        if after.state is not State.ONGOING:
            self._ongoing.pop(after.transactional_id, None)

    # Time

    async def abort_timed_out(self) -> None:
        """Aborts the transactions that are open for longer than their producers asked for."""
        if self._refusal is not None:
            return
        now_ms = self._clock.now_ms()
        for transaction in list(self._ongoing.values()):
            # If the clock was set back, its time begins again.
            transaction.started_ms = min(transaction.started_ms, now_ms)
            if (
                not transaction.is_changing
                and transaction.started_ms + transaction.timeout_ms < now_ms
            ):
                logger.info("transactional id %s: timed out", transaction.transactional_id)
                self.timed_out += 1
                transaction.is_changing = True
                self._background.start(self._abort_and_fence(transaction))

    async def expire_ids(self) -> None:
        """Removes the transactional ids that no producer has used for the expiration time."""
        if self._refusal is not None:
            return
        before_ms = self._clock.now_ms() - self.settings.id_expiration_ms
        ids = list(self._by_id.values())
        for at in range(0, len(ids), IDS_PER_TURN):
            await asyncio.gather(
                *(
                    self._forget(transaction)
                    for transaction in ids[at : at + IDS_PER_TURN]
                    if transaction.updated_ms <= before_ms
                    and not transaction.is_changing
                    and (transaction.state is State.EMPTY or transaction.state.is_complete)
                    and self._by_id.get(transaction.transactional_id) is transaction
                ),
                return_exceptions=True,
            )
            await asyncio.sleep(0)

    def _forget(self, transaction: Transaction) -> Awaitable[None]:
        transaction.is_changing = True

        def forget() -> None:
            transaction.state = State.DEAD
            del self._by_id[transaction.transactional_id]

        def retain() -> None:
            transaction.is_changing = False

        return self._journal.write(
            transaction.transactional_id, [transaction.tombstone()], forget, retain
        )

    # As administrators see it

    def transaction(self, transactional_id: str) -> Transaction | None:
        found = self._by_id.get(transactional_id)
        return found if found is not None and found.epoch >= 0 else None

    def transactions(self) -> Iterator[Transaction]:
        for transaction in list(self._by_id.values()):
            if transaction.epoch >= 0:
                yield transaction

    def counts(self) -> Counter[State]:
        # By numbers, and no step of it in Python: there may be a million ids.
        numbers = Counter(map(attrgetter("state._value_"), self._by_id.values()))
        return Counter({State(number): count for number, count in numbers.items()})


def _verify_unchanging(transaction: Transaction) -> None:
    if transaction.is_changing or transaction.state.is_ending:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _fenced(transaction: Transaction) -> ApiError:
    return ApiError(
        ErrorCode.PRODUCER_FENCED, f"the producer's epoch is {transaction.epoch} by now"
    )
