"""`python -m bench.event_streams`: an event store with a million streams, in a SQLite file (or in
PostgreSQL): the time to fill it, its size, and what single appends, reads and lists cost then,
beside a store of 1,000 streams.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.peers.postgres import postgres
from headwater.events import Event, EventStore, StreamWrite, open_store
from headwater.events.databases.sqlite import SqliteDatabase

BATCH = 1000
EVENTS_OF_STREAM = 2
REPEATS = 50
CATEGORIES = ("account", "order", "user", "zebra")  # the last one has a single stream


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--postgres", action="store_true", help="in PostgreSQL instead of SQLite")
    parser.add_argument("--directory", help="for the files, which are removed (a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as name, ExitStack() as stack:
        server = None
        if args.postgres:
            Path(name).chmod(0o755)  # PostgreSQL runs as another user
            server = stack.enter_context(postgres(Path(name) / "pg"))
        for streams in (1000, args.streams):
            url = f"sqlite:///{name}/{streams}.db"
            if server is not None:
                url = f"{server.url}?options=-csearch_path%3Dof{streams}"
                with open_store(server.url) as of_schema_public:
                    of_schema_public.query(f"CREATE SCHEMA of{streams}")
            with open_store(url) as store:
                measure(store, streams)


def measure(store: EventStore, streams: int) -> None:
    print(f"{streams:,} streams of {EVENTS_OF_STREAM} events")
    fill(store, streams)
    size_bytes = size_of(store)
    print(f"  tables {size_bytes / 1e6:,.0f} MB, {size_bytes / streams:,.0f} B per stream")
    for figure, value_ms in latencies(store, streams).items():
        print(f"  {figure:44} {value_ms:10.3f} ms", flush=True)


def size_of(store: EventStore) -> int:
    if isinstance(store.database, SqliteDatabase):
        store.query("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(store.database.path).stat().st_size
    tables = ("headwater_events", "headwater_event_tags")
    return sum(
        int(store.query("SELECT pg_total_relation_size(%s)", (table,))[0][0]) for table in tables
    )


def name_of(number: int) -> str:
    return f"{CATEGORIES[number % 3]}-{number:08d}"


def fill(store: EventStore, streams: int) -> None:
    """Each stream gets its events in two rounds, as streams grow over time."""
    began_s = time.perf_counter()
    store.append("zebra-1", [Event("Opened", {"owner": "eva"})])
    for version in range(EVENTS_OF_STREAM):
        for first in range(0, streams, BATCH):
            store.append_all(
                [
                    StreamWrite(name_of(number), [event_of(number, version)], version)
                    for number in range(first, min(first + BATCH, streams))
                ]
            )
    took_s = time.perf_counter() - began_s
    print(f"  filled in {took_s:,.1f} s, {streams * EVENTS_OF_STREAM / took_s:,.0f} events/s")


def event_of(number: int, version: int) -> Event:
    if version == 0:
        return Event("Opened", {"owner": f"owner {number}"}, tags=[f"owner:{number}"])
    return Event("Deposited", {"amount": number, "note": "a note of some length"})


def latencies(store: EventStore, streams: int) -> dict[str, float]:
    numbers = [(7919 * repeat) % streams for repeat in range(REPEATS)]
    middle = name_of(streams // 2)
    return {
        "append to a new stream": median_ms(
            lambda repeat: store.append(f"order-new{repeat}", [event_of(repeat, 1)], expected=0)
        ),
        "append to a stream": median_ms(
            lambda repeat: store.append(name_of(numbers[repeat]), [event_of(repeat, 1)], expected=2)
        ),
        "read a stream": median_ms(
            lambda repeat: list(store.read(stream=name_of(numbers[repeat] + 1)))
        ),
        "read by tag": median_ms(
            lambda repeat: list(store.read(tags=[f"owner:{numbers[repeat]}"]))
        ),
        "first 100 of a category": median_ms(
            lambda _: list(store.read(category="order", limit=100))
        ),
        "last 100 of all": median_ms(lambda _: list(store.read(backwards=True, limit=100))),
        "list 100 streams": median_ms(lambda _: store.streams(limit=100)),
        "list 100 streams from the middle": median_ms(lambda _: store.streams(after=middle)),
        "list 100 streams of a category": median_ms(
            lambda _: store.streams(category="user", limit=100), 5
        ),
        "list the streams of a small category": median_ms(
            lambda _: store.streams(category="zebra"), 5
        ),
        **subscriptions(store, name_of(numbers[1] + 1)),
        "stats, for the first time": median_ms(lambda _: store.stats(), 1),
        "stats": median_ms(lambda _: store.stats(), 5),
    }


def subscriptions(store: EventStore, stream: str) -> dict[str, float]:
    """An append as a subscription at the end sees it; and how long others take to catch up."""
    with store.subscribe(after=store.head()) as following:
        following.next_batch(0.5)

        def seen(repeat: int) -> None:
            store.append(f"zebra-{repeat}", [event_of(repeat, 1)])
            assert len(following.next_batch(60)) == 1

        append_and_see_ms = median_ms(seen, 20)

    def caught_up(count: int, **selection: Any) -> float:
        with store.subscribe(**selection) as subscription:
            return median_ms(lambda _: subscription.next_batch(60, count), 1)

    return {
        "append, until a subscription has it": append_and_see_ms,
        "subscribe to a stream": caught_up(10, stream=stream),
        "subscribe to all, first 100,000 events": caught_up(100_000),
        "subscribe to a category, first 100,000": caught_up(100_000, category="user"),
        "subscribe to a tag": caught_up(10, tags=["owner:1"]),
    }


def median_ms(action: Callable[[int], Any], repeats: int = REPEATS) -> float:
    times = []
    for repeat in range(repeats):
        began_s = time.perf_counter()
        action(repeat)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    os.nice(5)
    main()
