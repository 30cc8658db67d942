"""What a store promises of which some rows can be read (sinks/selection.py)."""

from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headwater.errors import UsageError
from headwater.sinks.contract import Target
from headwater.sinks.selection import Condition, Selection
from support.sinks.sink_rows import batch, position

FIELDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("total", pa.float64()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("paid", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
ROWS = [
    {
        "id": number,
        "city": [None, "Wien", "Graz", "O'Brien; DROP TABLE t --", "ünì%_"][number % 5],
        "total": number * 1.5,
        "price": Decimal(number) / 4,
        "paid": number % 2 == 0,
        "day": date(2026, 1, 1 + number),
        "at": datetime(2026, 1, 1, number, tzinfo=UTC),
        "tags": ["a"],
    }
    for number in range(10)
]


def where(column, operator, value):
    return Condition(column, operator, value)


class SelectionContract:
    @pytest.fixture
    def selected(self, backend):
        """The ids that a selection finds, in its order."""
        with closing(backend.store(Target("p/s/t", "selected", ("id",)))) as store:
            with store.writer(1, FIELDS) as writer:
                writer.apply(batch(0, pa.Table.from_pylist(ROWS, FIELDS)))

            def select(*conditions, order=(), limit=100):
                with store.select(1, Selection(conditions, order, limit)) as found:
                    assert found.position == position(0)
                    return [row["id"] for rows in found.rows for row in rows.to_pylist()]

            yield select

    def test_selections(self, selected):
        assert selected() == list(range(10))
        assert selected(limit=3) == [0, 1, 2]
        assert selected(where("id", ">=", "8")) == [8, 9]
        assert selected(where("id", ">", "2"), where("id", "<", "5")) == [3, 4]
        assert selected(where("id", "!=", "0"), limit=1) == [1]
        assert selected(where("city", "=", "Wien")) == [1, 6]
        assert selected(where("city", "=", "wien")) == []
        assert selected(where("city", "=", ROWS[3]["city"])) == [3, 8]
        assert selected(where("city", "=", ROWS[4]["city"])) == [4, 9]
        assert selected(where("city", "=", None)) == [0, 5]
        assert selected(where("city", "!=", None), limit=2) == [1, 2]
        assert selected(where("total", "<=", "1.5")) == [0, 1]
        assert selected(where("price", "=", "0.5")) == [2]
        assert selected(where("paid", "=", "true")) == [0, 2, 4, 6, 8]
        assert selected(where("day", ">", "2026-01-08")) == [8, 9]
        assert selected(where("at", ">=", "2026-01-01T08:00:00Z")) == [8, 9]

    def test_orders(self, selected):
        assert selected(order=(("id", True),), limit=2) == [9, 8]
        assert selected(order=(("city", False), ("id", True)), limit=2) == [7, 2]
        by_city = selected(order=(("city", True), ("id", False)))
        assert by_city[-2:] == [0, 5]  # nulls are the last, either way
        assert selected(order=(("paid", False), ("total", True)), limit=2) == [9, 7]

    @pytest.mark.parametrize(
        "condition",
        [
            where("nothing", "=", "1"),
            where('id" = 1 OR 1 = 1 --', "=", "1"),
            where("id", "=", "1 OR 1 = 1"),
            where("id", "=", "99999999999999999999"),
            where("id", "LIKE", "1"),
            where("day", "=", "yesterday"),
            where("paid", "=", "perhaps"),
            where("tags", "=", "a"),
            where("city", "<", None),
        ],
    )
    def test_what_is_no_selection(self, selected, condition):
        with pytest.raises(UsageError):
            selected(condition)

    def test_what_is_no_order(self, selected):
        for column in ("nothing", "tags", "id DESC"):
            with pytest.raises(UsageError):
                selected(order=((column, False),))
