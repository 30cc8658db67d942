"""State transitions of a transactional id: each function returns the state that replaces another.

Nothing here writes or waits. A new producer id, where the epochs are used up, is the caller's to
give (`with_new_producer_id`).
"""

from dataclasses import replace

from headwater.broker.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Identity,
    State,
    Transaction,
)


def _after(before: Transaction, state: State, now_ms: int) -> Transaction:
    return replace(
        before,
        state=state,
        updated_ms=now_ms,
        unsaved={},
        saving=None,
        saves_under_way=0,
        is_changing=False,
    )


def initialised(
    before: Transaction, expected: Identity | None, timeout_ms: int, now_ms: int
) -> Transaction:
    """A new producer, or one that goes on after an error (KIP-360): the next epoch."""
    after = _after(before, State.EMPTY, now_ms)
    after.epoch = before.epoch + 1
    after.last_epoch = NO_EPOCH if expected is None else expected.epoch
    after.timeout_ms = timeout_ms
    after.started_ms = -1
    after.version = 0
    return after


def prepared(
    before: Transaction, now_ms: int, *, committed: bool, with_new_epoch: bool
) -> Transaction:
    """The client has decided; the markers, and the client, get the next epoch (KIP-890)."""
    after = _after(before, State.PREPARE_COMMIT if committed else State.PREPARE_ABORT, now_ms)
    after.version = 0
    if with_new_epoch:
        after.version = EPOCH_PER_TRANSACTION
        after.epoch, after.last_epoch = before.epoch + 1, before.epoch
    return after


def fenced(before: Transaction, now_ms: int) -> Transaction:
    """Aborted without the client's knowledge, under an epoch that it does not have."""
    after = _after(before, State.PREPARE_ABORT, now_ms)
    after.epoch, after.last_epoch = before.epoch + 1, NO_EPOCH
    after.version = 0
    return after


def aborted_empty(before: Transaction, now_ms: int) -> Transaction:
    """Nothing was added; the client still goes on with another epoch, so that batches of it that
    are late cannot be taken for the next transaction's.
    """
    after = _after(before, State.COMPLETE_ABORT, now_ms)
    after.epoch, after.last_epoch = before.epoch + 1, before.epoch
    after.started_ms = now_ms
    after.version = EPOCH_PER_TRANSACTION
    return after


def completed(before: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    committed = before.state is State.PREPARE_COMMIT
    after = _after(before, State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT, now_ms)
    after.partitions = set()
    if before.next_producer_id != NO_PRODUCER_ID:
        after = with_new_producer_id(after, before.next_producer_id)
        after.next_producer_id = NO_PRODUCER_ID
    return after


def with_new_producer_id(transaction: Transaction, producer_id: int) -> Transaction:
    return replace(
        transaction,
        previous_producer_id=transaction.producer_id,
        producer_id=producer_id,
        epoch=0,
    )


def is_repeated_init(transaction: Transaction, asking: Identity) -> bool:
    """Whether the producer was given its present identity in exchange for the one it names."""
    if asking.epoch != transaction.last_epoch or transaction.state is not State.EMPTY:
        return False
    return asking.producer_id == transaction.producer_id or (
        asking.producer_id == transaction.previous_producer_id and asking.is_exhausted
    )


def is_repeated_end(transaction: Transaction, asking: Identity) -> bool:
    """Whether the end that this client asks for has already given it another epoch."""
    if not transaction.has_own_epoch:
        return False
    if not (transaction.state.is_ending or transaction.state.is_complete):
        return False
    if asking.producer_id == transaction.producer_id:
        return transaction.epoch == asking.epoch + 1
    return (
        asking == Identity(transaction.previous_producer_id, LAST_EPOCH) and transaction.epoch == 0
    )
