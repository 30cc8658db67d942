"""What a store promises, on every database."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import (
    ConditionFailed,
    ConfigError,
    EventRefused,
    EventStoreError,
    EventStoreRefused,
    EventStoreUnreachable,
    VersionConflict,
)
from headwater.events import (
    ANY,
    NO_STREAM,
    Condition,
    Event,
    Limits,
    Query,
    QueryItem,
    StreamWrite,
    View,
    open_async_store,
    open_store,
)
from headwater.events.erasing import is_rewriting, replace_payloads, rewrite_files
from headwater.testing import FakeClock


def events(*names, **options):
    return [Event(name, {"name": name}, **options) for name in names]


def types_of(found):
    return [event.type for event in found]


def test_appended_events_are_read_as_they_were(store):
    data = {"amount": 12.5, "note": "naïve \U0001f30a\x00", "list": [1, None, True]}
    event = Event("Paid", data, tags=["user:eva", "order:7"], metadata={"ip": "::1"})
    result = store.append("account-1", [event], expected=NO_STREAM, command_id="c1")
    (read,) = store.read(stream="account-1")
    assert (result.first_position, result.last_position, result.version) == (1, 1, 1)
    assert (read.position, read.version, read.stream, read.category) == (
        1, 1, "account-1", "account",
    )  # fmt: skip
    assert (read.id, read.type, read.data, read.command_id) == (event.id, "Paid", data, "c1")
    assert (read.tags, read.metadata) == (("user:eva", "order:7"), {"ip": "::1"})
    assert abs(read.at_ms / 1000 - time.time()) < 600


def test_a_wrong_version_names_both_and_appends_nothing(store):
    store.append("account-1", events("A", "B"), expected=NO_STREAM)
    with pytest.raises(VersionConflict, match=r"account-1.*expected version 1, .* at version 2"):
        store.append("account-1", events("C"), expected=1)
    with pytest.raises(VersionConflict, match="expected no such stream"):
        store.append("account-1", events("C"), expected=NO_STREAM)
    with pytest.raises(VersionConflict, match="there is no such stream"):
        store.append("account-9", events("C"), expected=4)
    store.append("account-1", events("C"), expected=2)
    assert store.append("account-1", events("D"), expected=ANY).version == 4
    assert store.head() == store.version("account-1") == 4


def test_an_append_to_several_streams_is_atomic(store):
    store.append("account-1", events("A"))
    writes = [StreamWrite("account-2", events("B", "C"), NO_STREAM)]
    with pytest.raises(VersionConflict, match="account-1"):
        store.append_all([*writes, StreamWrite("account-1", events("D"), 7)])
    assert store.head() == 1
    result = store.append_all([*writes, StreamWrite("account-1", events("D"), 1)])
    assert result.versions == {"account-2": 2, "account-1": 2}
    assert types_of(store.read()) == ["A", "B", "C", "D"]


def test_an_append_conditional_on_a_query(store):
    store.append("user-1", events("Registered", tags=["name:eva"]))
    store.append("user-2", events("Renamed", tags=["name:eva", "by:admin"]))
    taken = Query.of(types=["Registered", "Renamed"], tags=["name:eva"])
    with pytest.raises(ConditionFailed, match="one is at 2"):
        store.append("user-3", events("Registered"), condition=Condition(taken, after=1))
    store.append("user-3", events("Registered"), condition=Condition(taken, after=2))
    both = Query((QueryItem(("Absent",), ()), QueryItem((), ("name:eva", "by:admin"))))
    with pytest.raises(ConditionFailed):
        store.append("user-4", events("Registered"), condition=Condition(both))
    for query in (
        Query.of(types=["Registered"], tags=["name:eva", "by:admin"]),
        Query.of(tags=["name:otto"]),
        Query.of(types=["Absent"]),
    ):
        store.append("user-5", events("Registered"), condition=Condition(query))


def test_repeated_appends_change_nothing(store):
    first = events("A", "B")
    result = store.append("account-1", first, expected=NO_STREAM)
    store.append("account-1", events("C"), expected=2)
    again = store.append("account-1", first, expected=NO_STREAM)
    assert again.is_duplicate
    assert not result.is_duplicate
    assert (again.first_position, again.last_position, again.version) == (1, 2, 2)
    with pytest.raises(EventRefused, match="ids of events are used"):
        store.append("account-1", [first[0], *events("D")])
    with pytest.raises(EventRefused, match="ids of events are used"):
        store.append("account-2", first)
    with pytest.raises(EventRefused, match="the same id"):
        store.append("account-2", [Event("A", id="x"), Event("B", id="x")])
    assert store.head() == 3


def test_a_command_id_is_used_once(store):
    result = store.append("account-1", events("A"), command_id="pay-1")
    again = store.append("account-1", events("B"), command_id="pay-1")
    assert again.is_duplicate
    assert again.versions == result.versions
    assert store.append("account-1", [], command_id="nothing").last_position == 1
    assert store.append("account-1", events("C"), command_id="nothing").is_duplicate
    assert types_of(store.read()) == ["A"]


def test_reads_by_stream_category_type_tag_direction_and_bounds(store):
    for number in range(1, 31):
        kind = "Even" if number % 2 == 0 else "Odd"
        store.append(
            f"{'order' if number % 3 else 'account'}-{number % 4}",
            [Event(kind, number, tags=[f"mod5:{number % 5}", "all"])],
        )

    def numbers(**selection):
        return [event.data for event in store.read(**selection)]

    everything = list(range(1, 31))
    assert numbers() == everything
    assert numbers(backwards=True, limit=3) == [30, 29, 28]
    assert numbers(from_position=5, until_position=8) == [5, 6, 7, 8]
    assert numbers(from_position=5, until_position=8, backwards=True) == [8, 7, 6, 5]
    assert numbers(category="account") == [n for n in everything if n % 3 == 0]
    assert numbers(category="acc") == []
    assert numbers(types=["Even"], tags=["mod5:1", "all"]) == [6, 16, 26]
    assert numbers(tags=["mod5:0"], from_position=10, limit=2) == [10, 15]
    either = Query.of(tags=["mod5:0"]) | Query.of(types=["Odd"], tags=["mod5:1"])
    expected = [n for n in everything if n % 5 == 0 or (n % 5 == 1 and n % 2)]
    assert numbers(query=either) == expected
    assert numbers(query=either, backwards=True, limit=4) == expected[::-1][:4]
    stream = [n for n in everything if n % 3 and n % 4 == 1]
    assert numbers(stream="order-1") == stream
    assert numbers(stream="order-1", from_version=2, until_version=3) == stream[1:3]
    assert numbers(stream="order-1", backwards=True, limit=2) == stream[:-3:-1]
    assert numbers(stream="order-1", tags=["mod5:0"]) == [n for n in stream if n % 5 == 0]
    assert numbers(stream="order-1", until_position=9) == [n for n in stream if n <= 9]
    assert numbers(stream="nobody-1") == []
    assert store.streams(category="account", limit=2) == [("account-0", 2), ("account-1", 2)]
    assert store.streams(category="account", after="account-1")[0][0] == "account-2"


def test_long_reads_come_in_pages(store):
    for first in range(0, 3000, 1000):
        store.append("account-1", [Event("N", n) for n in range(first, first + 1000)])
    assert [event.data for event in store.read()] == list(range(3000))
    backwards = store.read(stream="account-1", backwards=True, limit=2500)
    assert [event.data for event in backwards] == list(range(2999, 499, -1))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE headwater_events SET payload = '{}'",
        "DELETE FROM headwater_events WHERE position = 1",
        "DELETE FROM headwater_event_tags",
    ],
)
def test_the_database_refuses_changes_of_events(store, statement):
    store.append("account-1", events("A", tags=["t"]))
    with pytest.raises(EventStoreRefused, match="immutable"), store.transaction() as transaction:
        transaction.execute(statement)
    assert types_of(store.read(tags=["t"])) == ["A"]


def test_a_transaction_is_all_or_nothing_and_leaves_no_gap(store):
    with pytest.raises(RuntimeError), store.transaction() as transaction:
        transaction.append("account-1", events("A"))
        assert transaction.head() == 1
        raise RuntimeError
    with store.transaction() as transaction:
        transaction.append("account-1", events("B"), expected=NO_STREAM)
        transaction.append("account-2", events("C"))
        assert types_of(transaction.read(stream="account-1")) == ["B"]
        with pytest.raises(EventStoreRefused, match="COMMIT is refused"):
            transaction.execute("COMMIT")
    assert [(event.position, event.type) for event in store.read()] == [(1, "B"), (2, "C")]


def test_a_subscription_has_old_and_new_events_without_a_gap(store, url):
    store.append("account-1", events("A"))
    seen = []
    subscription = store.subscribe(category="account")

    def follow():
        with subscription:
            for event in subscription:
                seen.append(event.position)
                if len(seen) == 201:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    with open_store(url) as other:
        for number in range(100):
            store.append("account-1", events("B"))
            other.append_all(
                [StreamWrite("noise-1", events("N")), StreamWrite("account-2", events("C"))]
            )
            if number == 50:
                with pytest.raises(VersionConflict):
                    store.append("account-1", events("X"), expected=1)
    thread.join(120)
    assert not thread.is_alive()
    assert seen == [event.position for event in store.read(category="account")]


def test_a_subscription_is_closed_from_another_thread(store):
    subscription = store.subscribe()
    thread = threading.Thread(target=lambda: list(subscription))
    thread.start()
    subscription.close()
    thread.join(60)
    assert not thread.is_alive()
    with store.subscribe(after=0) as waiting:
        assert waiting.next_batch(0.05) == []


def test_threads_share_commits_and_each_gets_its_own_result(store):
    outcomes = []

    def write(number):
        try:
            outcomes.append(store.append("account-1", events(f"E{number}"), expected=0).version)
        except VersionConflict:
            outcomes.append("conflict")
        for _ in range(5):
            store.append(f"own-{number}", events("E"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(map(str, outcomes)) == ["1"] + ["conflict"] * 15
    assert [event.position for event in store.read()] == list(range(1, 82))
    assert all(store.version(f"own-{number}") == 5 for number in range(16))


def test_asyncio(url):
    async def scenario():
        async with await open_async_store(url) as store:
            results = await asyncio.gather(
                *(store.append(f"account-{n % 5}", events("A")) for n in range(40))
            )
            assert sorted(r.last_position for r in results) == list(range(1, 41))
            assert len([event async for event in store.read(category="account")]) == 40
            positions = []
            async for event in store.subscribe(after=30):
                positions.append(event.position)
                if event.position == 40:
                    await store.append("account-1", events("B"))
                if event.position == 41:
                    break
            assert positions == list(range(31, 42))
            assert await store.head() == 41
            assert await store.version("account-1") == 9

    asyncio.run(scenario())


def test_reads_as_of_a_time(url):
    clock = FakeClock()
    with open_store(url, clock=clock) as store:
        begin = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        for number in range(5):
            store.append("account-1", [Event("N", number)])
            clock.advance(60)
        for minutes, last in ((-1, 0), (0, 1), (2.5, 3), (60, 5)):
            at = begin + timedelta(minutes=minutes)
            assert store.position_at(at) == last
            assert len(list(store.read(until=at))) == last
        with pytest.raises(EventRefused, match="time zone"):
            store.position_at(datetime(2024, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("stream", "event", "what"),
    [
        ("", Event("A"), "stream"),
        ("-1", Event("A"), "category"),
        ("a b-1", Event("A"), "category"),
        ("account-\n", Event("A"), "control characters"),
        ("account-1", Event(""), "type of an event"),
        ("account-1", Event("A", tags=["x" * 300]), "a tag"),
        ("account-1", Event("A", tags=[str(n) for n in range(65)]), "too many tags"),
        ("account-1", Event("A", object()), "cannot be written as JSON"),
        ("account-1", Event("A", "\ud800"), "cannot be written as JSON"),
        ("account-1", Event("A", "x" * 2000), "too large"),
        ("account-1", {"type": "A"}, "no event"),
    ],
)
def test_bad_input_is_refused(tmp_path, stream, event, what):
    limits = Limits(event_bytes=1000)
    with open_store(f"sqlite:///{tmp_path}/e.db", limits=limits) as store:
        with pytest.raises(EventRefused, match=what):
            store.append(stream, [event])
        assert store.head() == 0


def test_an_oversize_append_is_refused(tmp_path):
    limits = Limits(append_bytes=1000)
    with open_store(f"sqlite:///{tmp_path}/e.db", limits=limits) as store:
        with pytest.raises(EventRefused, match="an append is too large"):
            store.append("account-1", [Event("A", "x" * 100) for _ in range(11)])
        with pytest.raises(EventRefused, match="at least one event"):
            store.append("account-1", [])


def test_addresses_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="no address of an event store"):
        open_store("mysql://u:secret@h/db")
    with pytest.raises(EventStoreRefused, match="directory"):
        open_store(f"sqlite:///{tmp_path}/absent/e.db")
    (tmp_path / "text.db").write_text("no database, " * 100)
    with pytest.raises(EventStoreRefused, match="no SQLite database"):
        open_store(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(EventStoreError) as caught:
        open_store("postgresql://u:geheim@127.0.0.1:1/db")
    assert "geheim" not in str(caught.value)


def test_sqlite_refuses_replaced_events_and_gaps(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/e.db") as store:
        store.append("account-1", [Event("A", id="x")])
        for position, event_id, version in ((1, "y", 2), (2, "x", 2), (2, "y", 1), (3, "y", 2)):
            with pytest.raises(EventStoreRefused, match="has the next position"):
                store.query(
                    "INSERT OR REPLACE INTO headwater_events VALUES"
                    " (?, ?, 'account', 'account-1', ?, 'A', 1, '{}', '[]', NULL, NULL, 0)",
                    (position, event_id, version),
                )


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(EventStoreRefused, match="closed"):
        store.head()


def test_one_that_fails_in_a_group_does_not_harm_the_others(url):
    def apply(new, statements):
        if any(event.type == "Bad" for event in new):
            raise ZeroDivisionError

    outcomes = []

    def write(kind):
        try:
            store.append("account-1", events(kind))
            outcomes.append("appended")
        except ZeroDivisionError:
            outcomes.append("failed")

    with open_store(url, views=[View("picky", apply)]) as store:
        kinds = ["Good", "Bad"] * 8
        threads = [threading.Thread(target=write, args=(kind,)) for kind in kinds]
        with store.transaction():  # so that they wait together
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(outcomes) == ["appended"] * 8 + ["failed"] * 8
        assert [event.position for event in store.read(types=["Good"])] == list(range(1, 9))
        assert store.head() == 8


def test_a_process_with_more_than_a_thousand_open_files_subscribes(many_open_files, store):
    store.append("account-1", events("A"))
    with store.subscribe() as subscription:
        assert len(subscription.next_batch(60)) == 1
        assert subscription.next_batch(0.5) == []
        store.append("account-1", events("B"))
        assert types_of(subscription.next_batch(60)) == ["B"]


def test_a_restarted_server_is_connected_to_again(postgres):
    with open_store(postgres.url) as store, store.subscribe() as subscription:
        store.append("account-1", events("A"))
        assert len(subscription.next_batch(60)) == 1
        assert subscription.next_batch(0.01) == []  # it waits on a connection now
        for _ in range(2):
            postgres.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'headwater events' AND datname = current_database()"
            )
            store.append("account-1", events("B"))
        assert store.version("account-1") == 3
        store.append("account-1", events("C"))
        seen = []
        while len(seen) < 3:
            seen += types_of(subscription.next_batch(60))
        assert seen == ["B", "B", "C"]


@pytest.mark.parametrize(
    "of_another_session", ["DEALLOCATE ALL", "PREPARE headwater_0 AS SELECT 1"]
)
def test_a_pooler_that_mixes_sessions_is_borne(postgres, of_another_session):
    """Prepared statements of ours may be missing there, or be another session's."""
    with open_store(postgres.url) as store:
        if of_another_session == "DEALLOCATE ALL":
            store.append("account-1", events("A"))
        store.query(of_another_session)  # on the connection that the next append takes
        before = store.head()
        for name in "BCD":
            store.append("account-1", events(name))
        assert store.head() == before + 3


def test_a_server_that_is_gone_is_unreachable(postgres_server):
    server = type(postgres_server)()  # one of its own, to stop it
    try:
        server.start()
        store = open_store(server.url("postgres"))
        store.append("account-1", events("A"))
        server.stop()
        with pytest.raises(EventStoreUnreachable, match="does not answer"):
            store.append("account-1", events("B"))
        server.start()
        assert store.append("account-1", events("C")).version == 2
        store.close()
    finally:
        server.remove()


def test_contents_are_replaced_for_an_erasure_only(store):
    """Position, version, id and tags stay; then the store refuses changes again."""
    first = store.append("account-1", [Event("Opened", {"name": "Eva"}, tags=["a"])], expected=0)
    store.append("account-1", [Event("Opened", {"name": 'Bob "B" \\'})])
    before = list(store.read())
    replace_payloads(store, {first.first_position: '{"name": null}'})
    assert is_rewriting(store)
    rewrite_files(store)
    assert not is_rewriting(store)
    after = list(store.read())
    assert [event.data for event in after] == [{"name": None}, {"name": 'Bob "B" \\'}]
    assert [event.id for event in after] == [event.id for event in before]
    assert [event.position for event in store.read(tags=["a"])] == [first.first_position]
    with pytest.raises(EventStoreRefused, match="immutable"):
        store.run("UPDATE headwater_events SET payload = '{}'")
    assert store.append("account-1", [Event("Closed")], expected=2).version == 3


def test_a_repeated_append_is_recognised_in_every_way(store):
    """Whether nothing else stops it, its version is outdated, or only some of its ids exist."""
    events = [Event("A"), Event("B")]
    first = store.append("account-1", events, expected=NO_STREAM)
    for expected in (ANY, NO_STREAM):
        again = store.append("account-1", events, expected=expected)
        assert (again.is_duplicate, again.first_position) == (True, first.first_position)
    for expected in (ANY, NO_STREAM, 2):
        with pytest.raises(EventRefused, match="ids of events are used already"):
            store.append("account-1", [events[1], Event("C")], expected=expected)
    assert store.head() == 2
    with store.transaction() as transaction:
        assert transaction.append("account-1", events).is_duplicate


def test_texts_of_any_kind_come_back_from_batches(store):
    """A batch is written another way than a single event."""
    texts = ['"', "\\", "{a,b}", "NULL", "", "\n\t\r", "🏦é", "'; --", "$1 %s ?"]
    events = [
        Event("T", text, tags=[text] if text.isprintable() and text else (), metadata={"t": text})
        for text in texts
    ]
    store.append("account-1", events)
    read = list(store.read(stream="account-1"))
    assert [(event.data, event.metadata["t"]) for event in read] == [(t, t) for t in texts]
    assert [event.position for event in store.read(tags=["{a,b}"])] == [3]
    assert [event.tags for event in read] == [tuple(event.tags) for event in events]
