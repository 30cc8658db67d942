"""Lists, counts and pages of a store: what they cost does not grow with what they do not show."""

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from headwater.errors import EventRefused
from headwater.events import (
    Event,
    Query,
    StreamWrite,
    listing,
    open_async_store,
    open_store,
    selecting,
)
from headwater.events.subscription import Subscription

TIMEOUT_S = 60


def test_streams_and_categories_in_order(store):
    names = ["b-2", "a.x-1", "a-1", "a-2", "a", "ab-1", "b-1"]
    store.append_all([StreamWrite(name, [Event("A"), Event("B")]) for name in names])
    ordered = ["a", "a-1", "a-2", "a.x-1", "ab-1", "b-1", "b-2"]
    assert sorted(store.categories()) == ["a", "a.x", "ab", "b"]
    paged, after = [], ""
    while page := store.streams(after=after, limit=2):
        paged += page
        after = page[-1][0]
    assert sorted(paged) == [(name, 2) for name in sorted(ordered)]
    assert len({name for name, _ in paged}) == len(names)
    assert [name for name, _ in store.streams(category="a")] == ["a", "a-1", "a-2"]
    assert store.streams(category="none") == []


def test_counts_are_counted_once(store, monkeypatch):
    monkeypatch.setattr(listing, "_COUNTS_STORED_AFTER", 5)
    monkeypatch.setattr(listing, "_COUNTED_AT_ONCE", 7)
    for number in range(1, 24):
        store.append(f"{'ab'[number % 2]}-{number % 5}", [Event("A")])
        assert sum(counts.events for counts in store.counts()) == number
    asked = []
    run = store.run
    monkeypatch.setattr(store, "run", lambda *args: asked.append(args) or run(*args))
    found = {counts.name: (counts.streams, counts.events) for counts in store.counts()}
    assert found == {"a": (5, 11), "b": (5, 12)}
    # Only what is behind the stored counts was looked at.
    assert [args[1] for args in asked if "GROUP BY" in args[0]] == [(20, 23)]
    stats = store.stats()
    assert (stats["streams"], stats["streams_by_category"]) == (10, {"a": 5, "b": 5})
    # The cache may be damaged or removed.
    for damage in ("UPDATE {} SET value = 'x'", "DELETE FROM {}"):
        run(damage.format("headwater_event_store") + " WHERE name = 'counts'")
        assert {counts.name: counts.events for counts in store.counts()} == {"a": 11, "b": 12}


def test_an_older_store_gets_the_index_of_streams(url):
    with open_store(url) as store:
        store.append("a-1", [Event("A")])
        store.run("DROP INDEX headwater_events_streams")
    with open_store(url) as store:
        assert store.streams() == [("a-1", 1)]
        store.run("DROP INDEX headwater_events_streams")  # it was there


def test_pages_are_bounded_by_bytes(store, monkeypatch):
    """However large events are that follow small ones, and in both directions."""
    monkeypatch.setattr(selecting, "PAGE_BYTES", 10_000)
    sizes = [1] * 70 + [4000] * 20 + [1] * 5 + [30_000] * 3
    for size in sizes:
        store.append("blob-1", [Event("A", "ä" * size, tags=["t"])])
    pages = []
    run_page = store.run_page

    def watched(page, max_bytes):
        rows, is_cut = run_page(page, max_bytes)
        pages.append(sum(len(row[6]) for row in rows))
        return rows, is_cut

    monkeypatch.setattr(store, "run_page", watched)
    for selection in ({}, {"stream": "blob-1"}, {"category": "blob"}, {"tags": ["t"]}):
        for backwards in (False, True):
            found = [event.version for event in store.read(**selection, backwards=backwards)]
            assert found == sorted(range(1, len(sizes) + 1), reverse=backwards)
    assert max(pages) <= 10_000 + 30_002


def test_reads_by_tags_of_several_items_in_pages(store, monkeypatch):
    monkeypatch.setattr(selecting, "_FIRST_PAGE_ROWS", 3)
    monkeypatch.setattr(selecting, "_PAGE_ROWS", 4)
    expected = {"plain": [], "category": []}
    for number in range(1, 61):
        every = {"two": 2, "three": 3, "five": 5}
        tags = [tag for tag, divisor in every.items() if number % divisor == 0]
        category = "ab"[number % 7 == 0]
        store.append(f"{category}-1", [Event("AB"[number % 4 == 0], tags=tags)])
        matches = (number % 6 == 0) or (number % 5 == 0 and number % 4 == 0)
        if matches:
            expected["plain"].append(number)
            if category == "a":
                expected["category"].append(number)
    query = Query.of(tags=["two", "three"]) | Query.of(types=["B"], tags=["five"])
    for backwards in (False, True):
        for selection, wanted in (({}, "plain"), ({"category": "a"}, "category")):
            found = [e.position for e in store.read(query=query, backwards=backwards, **selection)]
            assert found == sorted(expected[wanted], reverse=backwards)
    bounded = store.read(query=query, from_position=10, until_position=40, limit=5)
    assert [event.position for event in bounded] == [
        number for number in expected["plain"] if 10 <= number <= 40
    ][:5]


def test_a_store_is_opened_while_another_process_writes(url, store):
    store.append("a-1", [Event("A")])
    with ThreadPoolExecutor(1) as other, store.transaction() as transaction:
        transaction.append("a-1", [Event("A")])
        opened = other.submit(open_store, url).result(TIMEOUT_S / 2)
        assert opened.head() == 1
        opened.close()


def test_a_subscription_of_one_stream(store):
    for number in range(10):
        store.append(f"a-{number % 2}", [Event("A", number)])
    with store.subscribe(stream="a-1", after=3) as subscription:
        assert [event.data for event in subscription.next_batch(TIMEOUT_S, 2)] == [3, 5]
        assert [event.data for event in subscription.next_batch(TIMEOUT_S)] == [7, 9]
        store.append("a-0", [Event("A", 10)])
        store.append("a-1", [Event("A", 11)])
        assert [event.data for event in subscription.next_batch(TIMEOUT_S)] == [11]
    with pytest.raises(EventRefused, match="either a query, or types"):
        store.subscribe(types=["A"], query=Query.of(types=["B"]))


def test_the_event_loop_does_not_wait_for_the_database(url):
    async def main():
        async with await open_async_store(url) as store:
            await store.append("a-1", [Event("A")])
            threads = set()
            run = store.store.run

            def watched(*args):
                threads.add(threading.current_thread())
                return run(*args)

            store.store.run = watched
            found = [event async for event in store.read(until=datetime.now(UTC))]
            assert threads
            assert threading.main_thread() not in threads
            return len(found)

    assert asyncio.run(main()) in (0, 1)


def test_many_subscriptions_do_not_hold_up_appends(url, monkeypatch):
    is_over = threading.Event()

    def waits(subscription, timeout_s, limit):
        is_over.wait(TIMEOUT_S)
        return []

    monkeypatch.setattr(Subscription, "next_batch", waits)

    async def follow(store):
        async for _ in store.subscribe():
            pass

    async def main():
        async with await open_async_store(url) as store:
            followers = [asyncio.create_task(follow(store)) for _ in range(80)]
            await asyncio.sleep(0)
            try:
                appended = store.append("a-1", [Event("A")])
                assert (await asyncio.wait_for(appended, TIMEOUT_S / 2)).last_position == 1
            finally:
                is_over.set()
                for follower in followers:
                    follower.cancel()
                await asyncio.gather(*followers, return_exceptions=True)

    asyncio.run(main())


def test_users_with_other_search_paths_share_one_order(postgres_database):
    """The lock of appends is that of the schema that has the tables, not of the first one that a
    user's search path names.
    """
    own, other = (f"test_{uuid.uuid4().hex[:12]}" for _ in range(2))
    for schema in (own, other):
        postgres_database.run(f"CREATE SCHEMA {schema}")
    url = f"{postgres_database.url}?options=-csearch_path%3D"
    with (
        open_store(url + own) as first,
        open_store(f"{url}{other},{own}") as second,
        ThreadPoolExecutor(1) as thread,
    ):
        with first.transaction() as transaction:
            transaction.append("a-1", [Event("A")])
            appended = thread.submit(second.append, "a-1", [Event("B")])
            with pytest.raises(TimeoutError):
                appended.result(0.5)
        assert appended.result(TIMEOUT_S).last_position == 2
        assert [event.type for event in first.read()] == ["A", "B"]
