"""The load: a process that is the shop's application, its customers and their phones.

    python -m headwater.demo.load [--rate N]        in a directory with the shop's headwater.toml

Runs transactions one after another at a steady rate, and writes searches and clicks as they
happen. It waits for a database or a broker that does not answer. SIGTERM or SIGINT ends it behind a
transaction; it then writes what it did to stdout, as JSON.
"""

import argparse
import heapq
import json
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import psycopg2
from confluent_kafka import Producer

from headwater import config
from headwater.capture.settings import with_password
from headwater.demo.shop import Event, Shop, Statement, Transaction
from headwater.terminal.interrupt import Interrupt

CAPTURE: Final = "shop"
DEFAULT_RATE: Final = 25
_SEARCHES_PER_TRANSACTION: Final = 0.5
_BEHIND_S: Final = 1.0  # what could not be done by then is not made up for
_AWAY_S: Final = 0.5
_FLUSH_S: Final = 5.0
_MOST_BUFFERED: Final = 10_000  # events while the broker does not answer; then none are made


def open_shop(connection: Any) -> Shop:
    """The shop as its database has it: so the load continues after any end."""
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM customers")
        customers = cursor.fetchone()[0]
        cursor.execute("SELECT coalesce(max(id), 0) FROM orders")
        next_order = cursor.fetchone()[0] + 1
        cursor.execute(
            "SELECT id, status FROM orders"
            " WHERE status IN ('placed', 'paid', 'shipped') ORDER BY id"
        )
        open_orders = cursor.fetchall()
        cursor.execute("SELECT id FROM orders WHERE status = 'cancelled' ORDER BY id")
        cancelled = [order_id for (order_id,) in cursor]
        cursor.execute("SELECT id, price FROM products ORDER BY id")
        prices = dict(cursor.fetchall())
    return Shop(
        customers=customers,
        next_order=next_order,
        next_search=10 * next_order,  # there are fewer than ten for each order
        next_click=10 * next_order,
        open_orders=open_orders,
        cancelled=cancelled,
        prices=prices,
    )


def run(connection: Any, transaction: Transaction) -> None:
    try:
        with connection.cursor() as cursor:
            execute(cursor, transaction.statements)
    except BaseException:
        if not connection.closed:
            connection.rollback()
        raise
    if transaction.is_rolled_back:
        connection.rollback()
    else:
        connection.commit()


def execute(cursor: Any, statements: list[Statement] | tuple[Statement, ...]) -> None:
    for statement in statements:
        cursor.execute(statement.sql, statement.values)


class Phones:
    """Searches and clicks that are still to be sent, and the producer that sends them."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer: Any = Producer({**settings, "log_level": 2})
        self._due: list[tuple[float, int, Event, float]] = []
        self._number = 0
        self.counts: Counter[str] = Counter()

    def happen(self, events: list[Event], now_s: float) -> None:
        for event in events if len(self._producer) < _MOST_BUFFERED else ():
            self._number += 1  # of two that are due at the same time the first one goes first
            heapq.heappush(self._due, (now_s + event.sent_in_s, self._number, event, time.time()))

    def send(self, now_s: float) -> None:
        """Those that are due."""
        while self._due and self._due[0][0] <= now_s:
            _, _, event, began_s = heapq.heappop(self._due)
            happened_at = datetime.fromtimestamp(began_s + event.happens_in_s, UTC)
            value = {**event.value, event.time_column: happened_at.isoformat()}
            self._producer.produce(event.topic, orjson.dumps(value), event.key)
            self.counts[event.topic] += 1
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(_FLUSH_S)


def _load(database: str, bootstrap: str, rate: float, stop: Interrupt) -> dict[str, int]:
    counts: Counter[str] = Counter()
    phones = Phones(bootstrap)
    connection: Any = None
    shop: Shop | None = None
    due_s = time.monotonic()
    while not stop:
        now_s = time.monotonic()
        if now_s < due_s:
            time.sleep(due_s - now_s)
        due_s = max(due_s + 1 / rate, now_s - _BEHIND_S)
        phones.send(time.monotonic())
        try:
            if shop is None:
                connection = psycopg2.connect(database)
                shop = open_shop(connection)
            transaction = shop.transaction()
            run(connection, transaction)
        except psycopg2.Error as error:
            # Whether the last one was committed is uncertain: the database is queried again.
            _close(connection)
            shop = None
            sys.stderr.write(f"the database does not answer: {str(error).strip()}\n")
            time.sleep(_AWAY_S)
            continue
        counts["rolled back" if transaction.is_rolled_back else "transactions"] += 1
        if shop.chance() < _SEARCHES_PER_TRANSACTION:
            phones.happen(shop.search(), time.monotonic())
    _close(connection)
    phones.close()
    return dict(counts + phones.counts)


def _close(connection: Any) -> None:
    if connection is not None and not connection.closed:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headwater.demo.load")
    parser.add_argument("--rate", type=float, default=DEFAULT_RATE, help="transactions a second")
    args = parser.parse_args()
    loaded = config.load()
    database = with_password(loaded.captures[CAPTURE]).source.reveal()
    did = _load(database, loaded.bootstrap(), args.rate, Interrupt())
    sys.stdout.write(json.dumps(did) + "\n")


if __name__ == "__main__":
    main()
