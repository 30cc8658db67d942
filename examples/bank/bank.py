"""A bank whose accounts are streams of events: commands, a view of balances, transfers, a timeout.

    bank = open_bank("sqlite:///bank.db")
    bank.handle(Open("eva"))
    bank.handle(Deposit("eva", 100))

A transfer is requested, approved within an hour (or it expires), withdrawn, and deposited. Each
step is a command to one stream; the saga `transfers` gives the next one when an event has happened.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headwater.clock import Clock
from headwater.errors import CommandRefused
from headwater.events import (
    Application,
    Cancel,
    EventTypes,
    RecordedEvent,
    Saga,
    Schedule,
    Statements,
    Transaction,
    View,
    open_store,
)

APPROVAL_S = 3600
types, commands = EventTypes(), EventTypes()


class Record(msgspec.Struct, frozen=True):
    """Fields that do not change."""


# Facts.
@types.register
class Opened(Record):
    account: str


@types.register
class Deposited(Record):
    account: str
    amount: int
    transfer: str = ""


@types.register
class Withdrawn(Record):
    account: str
    amount: int
    transfer: str = ""


@types.register
class WithdrawalFailed(Record):
    account: str
    transfer: str
    reason: str


@types.register
class TransferRequested(Record):
    transfer: str
    source: str
    target: str
    amount: int


@types.register
class TransferEnded(Record):
    transfer: str
    outcome: str  # approved, expired, done, failed


# Commands.
class Open(Record):
    account: str


@commands.register
class Deposit(Record):
    account: str
    amount: int
    transfer: str = ""


@commands.register
class Withdraw(Record):
    account: str
    amount: int
    transfer: str = ""


class Transfer(TransferRequested, frozen=True):
    """From one account to another."""


@commands.register
class End(Record):
    transfer: str
    outcome: str


class Account:
    """The state is the balance, in cents; None before the account is opened."""

    def initial(self) -> int | None:
        return None

    def stream(self, command: Any) -> str:
        return f"account-{command.account}"

    def decide(self, command: Any, balance: int | None) -> Sequence[Any]:
        if isinstance(command, Open):
            return [] if balance is not None else [Opened(command.account)]
        problem = f"account {command.account} does not exist" if balance is None else ""
        if command.amount <= 0:
            problem = "an amount is more than 0"
        if isinstance(command, Withdraw) and not problem and (balance or 0) < command.amount:
            problem = f"account {command.account} has {balance}, not {command.amount}"
        if problem and isinstance(command, Withdraw) and command.transfer:
            return [WithdrawalFailed(command.account, command.transfer, problem)]
        if problem:
            raise CommandRefused(problem)
        fact = Deposited if isinstance(command, Deposit) else Withdrawn
        return [fact(command.account, command.amount, command.transfer)]

    def evolve(self, balance: int | None, event: Any) -> int | None:
        if isinstance(event, Deposited):
            return (balance or 0) + event.amount
        if isinstance(event, Withdrawn):
            return (balance or 0) - event.amount
        return balance or 0


class Transfers:
    """The state is what has become of a transfer."""

    def initial(self) -> str:
        return "unknown"

    def stream(self, command: Any) -> str:
        return f"transfer-{command.transfer}"

    def decide(self, command: Any, state: str) -> Sequence[Any]:
        if isinstance(command, Transfer):
            if state != "unknown":
                raise CommandRefused(f"transfer {command.transfer} is {state}")
            return [TransferRequested(*msgspec.structs.astuple(command))]
        allowed = {"approved": "requested", "expired": "requested"}.get(command.outcome, "approved")
        if state != allowed:
            raise CommandRefused(f"transfer {command.transfer} is {state}, not {allowed}")
        return [TransferEnded(command.transfer, command.outcome)]

    def evolve(self, state: str, event: Any) -> str:
        return event.outcome if isinstance(event, TransferEnded) else "requested"


def transfers(event: RecordedEvent, transaction: Transaction) -> Iterator[Any]:
    """The saga: what follows from what has happened."""
    fact = event.data
    if not fact.transfer:
        return
    (begin,) = transaction.read(stream=f"transfer-{fact.transfer}", limit=1)
    request: TransferRequested = begin.data
    match fact:
        case TransferRequested():
            yield Schedule(fact.transfer, End(fact.transfer, "expired"), after_s=APPROVAL_S)
        case TransferEnded(outcome="approved"):
            yield Cancel(fact.transfer)
            yield Withdraw(request.source, request.amount, fact.transfer)
        case WithdrawalFailed():
            yield End(fact.transfer, "failed")
        case Withdrawn():
            yield Deposit(request.target, request.amount, fact.transfer)
        case Deposited():
            yield End(fact.transfer, "done")


def create_balances(statements: Statements) -> None:
    statements.execute("CREATE TABLE balances (account TEXT PRIMARY KEY, balance INTEGER NOT NULL)")


def update_balances(events: Iterable[RecordedEvent], statements: Statements) -> None:
    for event in events:
        fact = event.data
        if isinstance(fact, Opened | Deposited | Withdrawn):
            amount = getattr(fact, "amount", 0) * (-1 if isinstance(fact, Withdrawn) else 1)
            statements.execute(
                "INSERT INTO balances VALUES (?, ?)"
                " ON CONFLICT (account) DO UPDATE SET balance = balance + excluded.balance",
                (fact.account, amount),
            )


def open_bank(url: str, clock: Clock | None = None) -> Application:
    """`bank.handle(command)`; `bank.run(stop)` in a thread runs transfers and timeouts."""
    balances = View("balances", update_balances, create_balances)
    store = open_store(url, types=types, views=[balances], clock=clock)
    account, transfer = Account(), Transfers()
    deciders = {
        Open: account,
        Deposit: account,
        Withdraw: account,
        Transfer: transfer,
        End: transfer,
    }
    facts = [name for name in types.names() if name != "Opened"]
    return Application(store, commands, deciders, sagas=[Saga("transfers", transfers, facts)])
