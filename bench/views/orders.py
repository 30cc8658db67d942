"""The tables of the view: orders of customers of countries, as JSON by key in two partitions.

Each event is a change of one order; all orders take turns, in a scattered sequence. An amount is a
multiple of MOST_CHANGES, another one for each order, and how many times the order was changed. So
the sum of a country's amounts says how many changes of its orders a result has seen; and, since all
orders of a country are in one partition, which.
"""

import numpy as np
import numpy.typing as npt
import orjson

from bench.latency.events import PARTITIONS

COUNTRIES = 200
ORDERS_PER_CUSTOMER = 10
STEP = COUNTRIES * ORDERS_PER_CUSTOMER  # numbers of keys are multiples: all countries are alike
MOST_CHANGES = 10_000_000  # of a country
_SPREAD = 2_654_435_761  # prime, so that each order has its turn
_PAD = b"x" * 80  # a column that the view does not need


def order_record(event: int, keys: int) -> tuple[bytes, bytes, int]:
    """Key, value and partition."""
    number = event * _SPREAD % keys
    customer = number % (keys // ORDERS_PER_CUSTOMER)
    text = b'{"id":%d,"customer_id":%d,"amount":%d,"note":"%s"}' % (
        number, customer, number * MOST_CHANGES + event // keys + 1, _PAD,
    )  # fmt: skip
    return b'{"id":%d}' % number, text, number % PARTITIONS


def customer_record(number: int) -> tuple[bytes, bytes, int]:
    country = number % COUNTRIES
    text = b'{"id":%d,"country":"country %d"}' % (number, country)
    return b'{"id":%d}' % number, text, number % PARTITIONS


class Expected:
    """Which changes of orders a result of the view has seen."""

    def __init__(self, keys: int, events: int) -> None:
        orders = np.arange(events) * _SPREAD % keys
        countries = orders % (keys // ORDERS_PER_CUSTOMER) % COUNTRIES
        self._events = [np.flatnonzero(countries == number) for number in range(COUNTRIES)]
        self._orders = keys // COUNTRIES
        self._seen = [0] * COUNTRIES
        self.results = 0
        self.untrue = 0  # results with another number of orders than the country ever has

    def seen(self, value: bytes) -> npt.NDArray[np.int64]:
        """The changes that this result is the first one to contain."""
        row = orjson.loads(value)
        country = int(row["country"].rpartition(" ")[2])
        before = self._seen[country]
        now = max(before, row["total"] % MOST_CHANGES)
        self._seen[country] = now
        self.results += 1
        self.untrue += row["orders"] != self._orders
        return self._events[country][before:now]

    def count(self, values: list[bytes]) -> int:
        return sum(len(self.seen(value)) for value in values)
