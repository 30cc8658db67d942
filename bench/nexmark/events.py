"""The events, as columns: of 50 in a row, 1 is a person, 3 are auctions, 46 are bids."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_PERSONS, _AUCTIONS, _BIDS = 1, 3, 46
_ROUND = _PERSONS + _AUCTIONS + _BIDS
_FIRST_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
_HOT = 4  # of so many bids, all but one are for recent auctions
_CATEGORIES = 5
_FIRST_CATEGORY = 10
_STATES = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = np.array(["Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne"])

TIME = pa.timestamp("us", "UTC")
SCHEMAS = {
    "person": pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("city", pa.string()),
            ("state", pa.string()),
            ("date_time", TIME),
        ]
    ),
    "auction": pa.schema(
        [
            ("id", pa.int64()),
            ("item", pa.string()),
            ("seller", pa.int64()),
            ("category", pa.int64()),
            ("reserve", pa.int64()),
            ("date_time", TIME),
            ("expires", TIME),
        ]
    ),
    "bid": pa.schema(
        [
            ("auction", pa.int64()),
            ("bidder", pa.int64()),
            ("price", pa.int64()),
            ("date_time", TIME),
        ]
    ),
}


@dataclass(frozen=True)
class Events:
    """Those with the numbers 0 to `count`, `per_s` of them in a second of their own time."""

    count: int
    per_s: int = 1000
    seed: int = 11

    def tables(self) -> dict[str, pa.Table]:
        number = np.arange(self.count)
        place = number % _ROUND
        return {
            "person": self._persons(number[place < _PERSONS]),
            "auction": self._auctions(number[(place >= _PERSONS) & (place < _PERSONS + _AUCTIONS)]),
            "bid": self._bids(number[place >= _PERSONS + _AUCTIONS]),
        }

    def _at(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return _FIRST_US + number * 1_000_000 // self.per_s

    def _random(
        self, number: npt.NDArray[np.int64], what: int, below: int
    ) -> npt.NDArray[np.int64]:
        """By the number alone (splitmix64)."""
        mixed = number.astype(np.uint64) * np.uint64(64) + np.uint64(what + self.seed * 7919)
        mixed = (mixed + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(below)).astype(np.int64)

    def _persons(self, number: npt.NDArray[np.int64]) -> pa.Table:
        home = self._random(number, 1, len(_STATES))
        ids = number // _ROUND
        return _table(
            "person",
            ids,
            np.char.add("person ", ids.astype(str)),
            _CITIES[home],
            _STATES[home],
            self._at(number),
        )

    def _auctions(self, number: npt.NDArray[np.int64]) -> pa.Table:
        ids = number // _ROUND * _AUCTIONS + number % _ROUND - _PERSONS
        persons = number // _ROUND + 1  # that are there by then
        seller = persons - 1 - self._random(number, 2, 1000) % persons
        at = self._at(number)
        return _table(
            "auction",
            ids,
            np.char.add("item ", ids.astype(str)),
            seller,
            _FIRST_CATEGORY + self._random(number, 3, _CATEGORIES),
            100 + self._random(number, 4, 10_000),
            at,
            at + 1_000_000 * (5 + self._random(number, 5, 20)),
        )

    def _bids(self, number: npt.NDArray[np.int64]) -> pa.Table:
        auctions = (number // _ROUND + 1) * _AUCTIONS
        persons = number // _ROUND + 1
        is_hot = self._random(number, 6, _HOT) > 0
        spread = np.where(is_hot, 10, 1000)
        auction = auctions - 1 - self._random(number, 7, 1000) % np.minimum(spread, auctions)
        bidder = persons - 1 - self._random(number, 8, 1000) % persons
        return _table(
            "bid", auction, bidder, 100 + self._random(number, 9, 100_000), self._at(number)
        )


def _table(name: str, *columns: npt.NDArray[np.generic]) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = [
        pa.array(values).cast(field.type) for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
