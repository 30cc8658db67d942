"""The pipelines of the shop, with rows of a test: what the stores of the demo are derived to."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw

PIPELINES = Path(__file__).parents[2] / "examples" / "shop" / "pipelines"
ORDER = "id bigint, customer_id bigint, total decimal(10,2), ordered_at timestamp"
CUSTOMER = "id bigint, name string, country string, email string, joined_at timestamp"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _shared(spark):
    """The session of the test run is the one that `run` finds."""


def after(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def shop(orders, customers):
    return {
        "shop.public.orders": (orders, ORDER),
        "shop.public.customers": hw.testing.topic(customers, CUSTOMER, key="id"),
    }


CUSTOMERS = [
    {"id": 1, "name": "Ada", "country": "GB", "_at": after(0)},
    {"id": 2, "name": "Emmy", "country": "DE", "_at": after(0)},
    {"id": 1, "name": "Ada L.", "country": "FR", "_at": after(60)},
]
ORDERS = [
    {"id": 10, "customer_id": 1, "total": "5.00", "ordered_at": after(5), "_at": after(5)},
    {"id": 11, "customer_id": 2, "total": "7.50", "ordered_at": after(6), "_at": after(6)},
    {"id": 12, "customer_id": 1, "total": "1.00", "ordered_at": after(70), "_at": after(70)},
    {"id": 11, "_op": "d", "_at": after(80)},
]


def test_an_order_has_its_customer_as_of_its_change():
    results = hw.testing.run(PIPELINES / "orders.py", shop(ORDERS, CUSTOMERS))
    found = [(row["id"], row["customer_name"], row["country"]) for row in results["orders"]]
    assert found == [(10, "Ada", "GB"), (12, "Ada L.", "FR")]


def test_a_timeline_follows_both_tables():
    results = hw.testing.run(PIPELINES / "timeline.py", shop(ORDERS, CUSTOMERS))
    found = [(row["customer_id"], row["order_id"], row["name"]) for row in results["timeline"]]
    assert found == [(1, 10, "Ada L."), (1, 12, "Ada L.")]


def test_revenue_is_by_minute_and_country():
    results = hw.testing.run(PIPELINES / "revenue.py", shop(ORDERS[:3], CUSTOMERS))
    found = [(row["minute"], row["country"], row["revenue"]) for row in results["revenue"]]
    assert found == [
        (after(0), "DE", Decimal("7.50")),
        (after(0), "GB", Decimal("5.00")),
        (after(60), "FR", Decimal("1.00")),
    ]


def test_searches_have_their_clicks_or_none():
    searches = [
        {"search_id": 1, "query": "kettle", "searched_at": after(0)},
        {"search_id": 2, "query": "lamp", "searched_at": after(1)},
        {"search_id": 3, "query": "-", "searched_at": after(600)},
    ]
    clicks = [
        {"click_id": 7, "search_id": 1, "clicked_at": after(10)},
        {"click_id": 8, "search_id": 2, "clicked_at": after(50)},  # too long after it
        {"click_id": 9, "search_id": 9, "clicked_at": after(600)},
    ]
    results = hw.testing.run(PIPELINES / "clicks.py", {"searches": searches, "clicks": clicks})
    found = sorted((row["query"], row["click_id"]) for row in results["search_clicks"])
    assert found == [("kettle", 7), ("lamp", None)]


def test_copies_and_the_index_have_the_newest_rows():
    products = [{"id": 1, "name": "kettle", "description": "old"}, {"id": 1, "name": "kettle",
                "description": "new", "_op": "u"}]  # fmt: skip
    results = hw.testing.run(PIPELINES / "products.py", {"shop.public.products": products})
    assert [row["description"] for row in results["products"]] == ["new"]
    items = hw.testing.topic([], "order_id bigint, line int, quantity int")
    tables = shop(ORDERS, CUSTOMERS) | {"shop.public.items": items}
    results = hw.testing.run(PIPELINES / "warehouse.py", tables)
    assert {name: len(rows) for name, rows in results.items()} == {
        "warehouse/customers": 2,
        "warehouse/orders": 2,
        "warehouse/items": 0,
    }
