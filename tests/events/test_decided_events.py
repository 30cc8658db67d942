"""States that handlers give are those that folds give; sagas and timeouts go on after mistakes."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from support.events.order_events import Cancelled, Paid, Placed

from headwater.errors import CommandRefused, EventStoreError, FoldFailed
from headwater.events import (
    Application,
    CommandHandler,
    Decider,
    Event,
    EventTypes,
    Saga,
    Schedule,
    open_store,
)
from headwater.events.commands import schedule
from headwater.testing import FakeClock

types, commands = EventTypes(), EventTypes()
for event in (Placed, Paid, Cancelled):
    types.register(event)


@commands.register
@dataclass(frozen=True)
class Pay:
    order: str


@dataclass(frozen=True)
class Unregistered:
    order: str


def no_order(command, state):
    if command.order == "none":
        raise CommandRefused("there is no such order")
    return [Paid(command.order)]


orders = Decider(
    "orders",
    initial=list,
    decide=no_order,
    evolve=lambda state, event: [*state, type(event).__name__],
    stream=lambda command: f"order-{command.order}",
)


def counting(decided, stream="seen-1"):
    """A decider whose events are those of `decided`, and whose state is what it was given."""
    return Decider(
        "seen",
        initial=list,
        decide=lambda command, _: decided(command),
        evolve=lambda seen, data: [*seen, data],
        stream=lambda _: stream,
        state_type=list,
    )


def test_the_state_of_a_handler_and_its_snapshot_are_what_a_fold_gives(url):
    decider = counting(lambda command: [Event("Seen", (command, {"n": (1, 2)}), tags=["a"])])
    with open_store(url) as store:
        handler = CommandHandler(store, decider, snapshot_every=2)
        for command in (1, 2, 3):
            handled = handler.handle(command)
            folded = CommandHandler(store, decider).state("seen-1")
            assert handled.state == folded == handler.state("seen-1")
        assert folded == [[number, {"n": [1, 2]}] for number in (1, 2, 3)]
    typed = counting(lambda order: [Event("Placed", Placed(order), tags=["vip"])], "order-7")
    with open_store(url, types=types) as store:
        handled = CommandHandler(store, typed).handle("7")
        assert handled.state[-1] == Placed("7")


def test_what_cannot_be_folded_is_not_appended(url):
    def evolve(state, data):
        raise KeyError("amount")

    decider = Decider(
        "broken", int, lambda command, _: [Event("A", {})], evolve, lambda _: "broken-1"
    )
    with open_store(url) as store:
        with pytest.raises(FoldFailed, match="raised KeyError"):
            CommandHandler(store, decider).handle("x")
        assert store.head() == 0


def test_upcast_events_have_what_json_cannot_tell(url):
    """Keys that are numbers are texts in JSON, for old versions as for current ones."""
    old, new = EventTypes(), EventTypes()

    @old.register(name="Counted")
    @dataclass
    class OldCounted:
        by_day: dict[int, int]

    @new.register(version=2)
    @dataclass
    class Counted:
        by_day: dict[int, int]
        at: datetime

    new.upcast("Counted", from_version=1)(lambda data: {**data, "at": "2026-01-01T00:00:00Z"})
    with open_store(url, types=old) as store:
        store.append("count-1", [OldCounted({1: 5, 2: 6})])
    with open_store(url, types=new) as store:
        store.append("count-1", [Counted({3: 7}, datetime(2026, 2, 1, tzinfo=UTC))])
        first, second = (event.data for event in store.read(stream="count-1"))
        assert first == Counted({1: 5, 2: 6}, datetime(2026, 1, 1, tzinfo=UTC))
        assert second.by_day == {3: 7}


def test_a_saga_whose_command_is_no_command_does_the_events_before_it(url):
    def react(event, transaction):
        yield Pay(event.data.order) if event.data.order != "3" else Unregistered("3")

    with open_store(url, types=types) as store:
        deciders = {Pay: orders, Unregistered: orders}
        refused = Decider("r", list, lambda *_: [Unregistered("3")], orders.evolve, orders.stream)
        deciders[Unregistered] = refused
        app = Application(store, commands, deciders, sagas=[Saga("payer", react, ["Placed"])])
        for number in range(5):
            store.append(f"order-{number}", [Placed(str(number))])
        for _ in range(2):
            with pytest.raises(EventStoreError, match="saga payer raised EventRefused") as raised:
                app.settle()
            assert "Placed at position 4" in raised.value.detail
        assert [event.data.order for event in store.read(types=["Paid"])] == ["0", "1", "2"]


def test_a_command_that_is_refused_twice_for_the_same_time(url):
    """A saga may schedule the same id for the same time again."""
    clock = FakeClock()
    due = datetime.fromtimestamp(clock.now_ms() / 1000 + 60, UTC)

    def react(event, transaction):
        yield Schedule("once", Pay("none"), at=due)

    with open_store(url, types=types, clock=clock) as store:
        app = Application(store, commands, {Pay: orders}, sagas=[Saga("s", react, ["Placed"])])
        for _ in range(2):
            store.append("order-1", [Placed("1")])
            app.settle()
            clock.advance(120)
            app.settle()
        stats = store.stats()
        assert (stats["scheduled"], stats["refused_commands"]) == (0, 1)


def test_timeouts_go_by_the_clock_that_events_have(url, monkeypatch):
    """In PostgreSQL the server's: a machine whose clock is ahead does not fire them early."""

    def react(event, transaction):
        yield Schedule("later", Pay("1"), after_s=600)

    with open_store(url, types=types) as store:
        app = Application(store, commands, {Pay: orders}, sagas=[Saga("s", react, ["Placed"])])
        store.append("order-1", [Placed("1")])
        app.settle()
        if url.startswith("postgres"):
            ahead_ns = time.time_ns() + 3600 * 10**9
            monkeypatch.setattr(time, "time_ns", lambda: ahead_ns)
        app.settle()
        assert store.stats()["scheduled"] == 1
        assert not list(store.read(types=["Paid"]))


def test_a_snapshot_that_cannot_be_stored_does_not_fail_the_command(url):
    decider = Decider(
        "odd",
        initial=object,  # nothing that JSON has
        decide=lambda command, _: [Event("A")],
        evolve=lambda state, _: state,
        stream=lambda _: "odd-1",
        state_type=str,
    )
    with open_store(url) as store:
        handler = CommandHandler(store, decider, snapshot_every=1)
        assert [handler.handle(n).appended.version for n in range(2)] == [1, 2]
        assert store.stats()["snapshots"] == 0


def test_timeouts_that_fail_do_not_keep_others_waiting(url, monkeypatch):
    """However many they are."""
    monkeypatch.setattr(schedule, "_BATCH", 3)
    clock = FakeClock()

    def react(event, transaction):
        for number in range(7):
            yield Schedule(f"bad-{number}", Pay("bad"), after_s=0)
        yield Schedule("good", Pay("good"), after_s=1)

    def decide(command, state):
        if command.order == "bad":
            raise RuntimeError("a mistake")
        return [Paid(command.order)]

    decider = Decider("d", list, decide, orders.evolve, orders.stream)
    with open_store(url, types=types, clock=clock) as store:
        app = Application(store, commands, {Pay: decider}, sagas=[Saga("s", react, ["Placed"])])
        store.append("order-1", [Placed("1")])
        for _ in range(2):
            clock.advance(60)
            with pytest.raises(RuntimeError, match="a mistake"):
                app.settle()
        assert [event.data.order for event in store.read(types=["Paid"])] == ["good"]
        assert store.stats()["scheduled"] == 7
