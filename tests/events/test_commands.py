"""Deciders, sagas, scheduled commands, views and types, on both databases."""

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest
from support.events.order_events import Cancelled, Paid, Placed

from headwater.errors import (
    AppendConflict,
    CommandRefused,
    ConfigError,
    EventRefused,
    EventStoreError,
    FoldFailed,
)
from headwater.events import (
    Application,
    Cancel,
    CommandHandler,
    Decider,
    Event,
    EventTypes,
    Query,
    Saga,
    Schedule,
    View,
    open_store,
)
from headwater.testing import FakeClock

types = EventTypes()
commands = EventTypes()


@types.register(tags=lambda event: [f"name:{event.name}"])
class UserRegistered(msgspec.Struct, frozen=True):
    name: str


for event in (Placed, Paid, Cancelled):
    types.register(event)


@dataclass(frozen=True)
class Register:
    user: str
    name: str


@commands.register
@dataclass(frozen=True)
class CancelOrder:
    order: str
    reason: str


@commands.register
@dataclass(frozen=True)
class PayOrder:
    order: str


def decide_registration(command, taken):
    if command.name in taken:
        raise CommandRefused(f"the user name {command.name} is taken")
    return [UserRegistered(command.name)]


registration = Decider(
    "registration",
    initial=frozenset,
    decide=decide_registration,
    evolve=lambda taken, event: taken | {event.name},
    stream=lambda command: f"user-{command.user}",
    query=lambda command: Query.of(types=["UserRegistered"], tags=[f"name:{command.name}"]),
)


class Orders:
    """The state of an order: placed, paid, cancelled, or nothing."""

    state_type = str

    def initial(self):
        return ""

    def stream(self, command):
        return f"order-{command.order}"

    def decide(self, command, state):
        if isinstance(command, Placed):
            return [command]
        if state != "Placed":
            raise CommandRefused(f"order {command.order} is {state}")
        if isinstance(command, PayOrder):
            return [Paid(command.order)]
        return [Cancelled(command.order, command.reason)]

    def evolve(self, state, event):
        return type(event).__name__


@pytest.fixture
def typed(url):
    with open_store(url, types=types) as store:
        yield store


def test_two_registrations_of_a_name_at_once(typed):
    handler = CommandHandler(typed, registration)
    outcomes = []

    def register(number):
        try:
            handler.handle(Register(str(number), "eva"))
            outcomes.append("registered")
        except CommandRefused as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=register, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert Counter(outcomes) == {"registered": 1, "the user name eva is taken": 15}
    assert typed.head() == 1


def test_conflicts_are_retried_up_to_a_bound(typed):
    pauses = []

    def decide(command, count):
        typed.append("counter-1", [UserRegistered("other")])  # always faster
        return [UserRegistered("mine")]

    counter = Decider(
        "counter", initial=int, decide=decide, evolve=lambda n, _: n + 1,
        stream=lambda _: "counter-1",
    )  # fmt: skip
    handler = CommandHandler(typed, counter, attempts=3, sleep=pauses.append)
    with pytest.raises(AppendConflict):
        handler.handle("go")
    assert len(pauses) == 2
    assert typed.version("counter-1") == 3


def test_a_command_is_handled_once(typed):
    handler = CommandHandler(typed, Orders)
    first = handler.handle(Placed("1"), command_id="place-1")
    again = handler.handle(Placed("1"), command_id="place-1")
    assert (again.state, again.appended.version) == (first.state, 1) == ("Placed", 1)
    assert again.appended.is_duplicate
    handler.handle(PayOrder("1"))
    with pytest.raises(CommandRefused, match="is Paid"):
        handler.handle(PayOrder("1"))


def test_states_as_of_a_version_a_position_and_a_time(url):
    clock = FakeClock()
    with open_store(url, types=types, clock=clock) as store:
        handler = CommandHandler(store, Orders, check_replay=True)
        handler.handle(Placed("1"))
        placed = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        clock.advance(60)
        handler.handle(Placed("2"))
        handler.handle(PayOrder("1"))
        assert handler.state("order-1") == "Paid"
        assert handler.state("order-1", version=1) == "Placed"
        assert handler.state("order-1", position=2) == "Placed"
        assert handler.state("order-1", at=placed) == "Placed"
        assert handler.state("order-2", at=placed) == ""


def test_snapshots_are_a_cache(typed):
    folded = []

    def evolve(state, event):
        folded.append(event)
        return [*state, event.order]

    def decider(version=1):
        return Decider(
            "list", initial=list, decide=lambda command, _: [command], evolve=evolve,
            stream=lambda _: "list-1", state_type=list[str], version=version,
        )  # fmt: skip

    handler = CommandHandler(typed, decider(), snapshot_every=10)
    expected = [str(number) for number in range(25)]
    for order in expected:
        handler.handle(Placed(order))
    folded.clear()
    assert handler.state("list-1") == expected
    assert len(folded) == 5
    folded.clear()
    assert CommandHandler(typed, decider(2), snapshot_every=10).state("list-1") == expected
    assert len(folded) == 25
    for damage in ("UPDATE headwater_snapshots SET state = '{'", "DELETE FROM headwater_snapshots"):
        typed.run(damage)
        assert handler.state("list-1") == expected
    with pytest.raises(ConfigError, match="snapshots"):
        CommandHandler(typed, registration, snapshot_every=5)


def test_folds_that_raise_or_differ_are_reported(typed):
    typed.append("order-1", [Placed("1")])
    calls = iter(range(100))
    unequal = Decider("unequal", int, lambda *_: [], lambda *_: next(calls), lambda _: "order-1")
    with pytest.raises(FoldFailed, match="two replays of unequal differ"):
        CommandHandler(typed, unequal, check_replay=True).handle("go")
    broken = Decider("broken", int, lambda *_: [], lambda *_: 1 / 0, lambda _: "order-1")
    with pytest.raises(FoldFailed, match="Placed at position 1"):
        CommandHandler(typed, broken).handle("go")
    with pytest.raises(ConfigError, match="no function initial"):
        CommandHandler(typed, object())


def test_a_saga_and_a_timeout_that_survives_a_restart(url):
    """Orders that are not paid within an hour are cancelled."""
    clock = FakeClock()

    def react(event, transaction):
        order = event.data.order
        if event.type == "Placed":
            yield Schedule(f"unpaid-{order}", CancelOrder(order, "not paid"), after_s=3600)
        else:
            yield Cancel(f"unpaid-{order}")

    def app(store):
        deciders = dict.fromkeys((Placed, PayOrder, CancelOrder), Orders)
        saga = Saga("timeouts", react, types=["Placed", "Paid"])
        return Application(store, commands, deciders, sagas=[saga])

    with open_store(url, types=types, clock=clock) as store:
        running = app(store)
        for order in ("paid", "late", "unpaid"):
            running.handle(Placed(order))
        running.handle(PayOrder("paid"))
        running.settle()
        clock.advance(3599)
        running.settle()
        assert store.head() == 4
        running.handle(PayOrder("late"))  # the saga has no time to cancel the timeout
    clock.advance(2)
    with open_store(url, types=types, clock=clock) as store:
        running = app(store)
        running.settle()
        running.settle()
        assert [(event.stream, event.data.reason) for event in store.read(types=["Cancelled"])] == [
            ("order-unpaid", "not paid")
        ]
        assert running.step() == 0


def test_a_saga_reacts_exactly_once(typed, url):
    """Several runners at once; the saga's command for each event is handled once."""
    for number in range(60):
        typed.append(f"order-{number}", [Placed(str(number))])

    def react(event, transaction):
        yield PayOrder(event.data.order)
        if event.position % 10 == 0:
            yield PayOrder(event.data.order)  # refused

    def run():
        with open_store(url, types=types) as store:
            saga = Saga("payer", react, types=["Placed"])
            Application(store, commands, {PayOrder: Orders}, sagas=[saga]).settle()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    paid = Counter(event.data.order for event in typed.read(types=["Paid"]))
    assert paid == {str(number): 1 for number in range(60)}
    refused = typed.run("SELECT origin, reason FROM headwater_refused_commands")
    assert len(refused) == 6
    assert all(row[0] == "saga:payer" and row[1].endswith("is Paid") for row in refused)


def test_a_saga_that_raises_stands_before_the_event_and_leaves_nothing_half(typed):
    for number in range(5):
        typed.append(f"order-{number}", [Placed(str(number))])
    broken = [True]

    def react(event, transaction):
        yield PayOrder(event.data.order)
        if event.data.order == "3" and broken[0]:
            raise RuntimeError("no such thing")

    app = Application(
        typed, commands, {PayOrder: Orders}, sagas=[Saga("payer", react, types=["Placed"])]
    )
    app.step()
    with pytest.raises(
        EventStoreError, match=r"saga payer raised RuntimeError: Placed at posi.* 4"
    ):
        app.step()
    assert [event.data.order for event in typed.read(types=["Paid"])] == ["0", "1", "2"]
    broken[0] = False
    app.settle()
    assert len(list(typed.read(types=["Paid"]))) == 5


def test_a_synchronous_view_is_complete_in_the_transaction(url, request):
    mark = "%s" if url.startswith("postgres") else "?"

    def create(statements):
        statements.execute("CREATE TABLE order_states (id TEXT PRIMARY KEY, state TEXT)")

    def apply(events, statements):
        for event in events:
            if event.type == "Cancelled":
                raise ZeroDivisionError
            statements.execute(
                f"INSERT INTO order_states VALUES ({mark}, {mark})"
                " ON CONFLICT (id) DO UPDATE SET state = excluded.state",
                (event.data.order, event.type),
            )

    with open_store(url, types=types) as without:
        without.append("order-1", [Placed("1"), Paid("1")])  # before there is a view
        view = View("states", apply, create)
        with open_store(url, types=types, views=[view]) as store:
            rows = "SELECT id, state FROM order_states ORDER BY id"
            assert store.query(rows) == [("1", "Paid")]
            without.append("order-2", [Placed("2")])  # by a process that does not have it
            store.append("order-3", [Placed("3")])
            assert store.query(rows) == [("1", "Paid"), ("2", "Placed"), ("3", "Placed")]
            with pytest.raises(ZeroDivisionError):
                store.append("order-3", [Cancelled("3", "")])
            assert store.head() == 4
            with store.transaction() as transaction:
                transaction.append("order-3", [Paid("3")])
            assert store.query(rows)[2] == ("3", "Paid")


def test_types_that_are_not_registered_or_do_not_fit(typed, url):
    with pytest.raises(EventRefused, match="type Payed is not registered"):
        typed.append("order-1", [Event("Payed", {"order": "1"})])
    with pytest.raises(EventRefused, match="do not fit its type Paid"):
        typed.append("order-1", [Event("Paid", {"order": 1})])
    with pytest.raises(EventRefused, match="do not fit its type Paid"):
        typed.append("order-1", [Paid(7)])
    typed.append("order-1", [Event("Paid", {"order": "1"})])
    with open_store(url) as untyped:
        untyped.append("order-1", [Event("Legacy", {"x": 1}), Event("Paid", [])])
    paid, legacy, misfit = typed.read()
    assert paid.data == Paid("1")
    with pytest.raises(EventRefused, match="Legacy is not registered"):
        legacy.data  # noqa: B018
    with pytest.raises(EventRefused, match="does not fit"):
        misfit.data  # noqa: B018


def test_old_versions_are_upcast(url):
    old = EventTypes()
    old.register(dataclass(type("Moved", (), {"__annotations__": {"to": str}})))
    with open_store(url, types=old) as store:
        store.append("person-1", [Event("Moved", {"to": "Main Street 5, Springfield"})])
    new = EventTypes()

    @new.register(name="Moved", version=3)
    @dataclass
    class Moved:
        street: str
        city: str
        country: str

    with open_store(url, types=new) as store:
        (event,) = store.read()
        with pytest.raises(EventRefused, match="no upcaster from version 1"):
            event.data  # noqa: B018

        @new.upcast("Moved", from_version=1)
        def split(data):
            street, _, city = data["to"].partition(", ")
            return {"street": street, "city": city}

        @new.upcast("Moved", from_version=2)
        def with_country(data):
            return {**data, "country": "?"}

        assert event.data == Moved("Main Street 5", "Springfield", "?")
        store.append("person-1", [Moved("a", "b", "c")])
        assert [event.schema_version for event in store.read()] == [1, 3]
    with open_store(url, types=old) as store, pytest.raises(EventRefused, match="newer"):
        list(store.read())[1].data  # noqa: B018
