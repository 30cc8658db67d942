"""Transactions: records in several partitions, and a group's offsets, seen all or not at all.

    coordinator        serves all requests; timeouts and expiry
    ├── transitions    what a transactional id becomes, and whether it already has
    ├── transaction    the state of a transactional id, and its record in `__transaction_state`
    ├── markers        writes the end of a transaction into its partitions, until it is there
    └── recovery       what a restart finds: transactions in the middle, partitions left open

Life of a transaction (KIP-98, KIP-890):

    Empty ──partition added──▶ Ongoing ──EndTxn──▶ Prepare… ──markers──▶ Complete… ──▶ Ongoing …

A state is durable before any client sees it. One process is the coordinator and leads every
partition, so that markers are appended directly, and a batch is checked against its transaction
where it is appended.
"""

from headwater.broker.transactions.coordinator import TransactionCoordinator, TransactionSettings
from headwater.broker.transactions.transaction import State, Transaction

__all__ = ["State", "Transaction", "TransactionCoordinator", "TransactionSettings"]
