"""What the pipeline `orders` derives from rows given here. Needs no broker; `pytest` runs it."""

from pathlib import Path

import headwater as hw

PIPELINE = Path(__file__).parent.parent / "pipelines" / "orders.py"


def test_an_order_has_its_total() -> None:
    # In the order of the log. "u" is an update, "d" a delete; the others are inserts.
    changes = [
        {"id": 1, "product": "lamp", "quantity": 2, "price_cents": 4900},
        {"id": 2, "product": "desk", "quantity": 1, "price_cents": 24900},
        {"id": 1, "product": "lamp", "quantity": 3, "price_cents": 4900, "_op": "u"},
        {"id": 2, "_op": "d"},
    ]

    results = hw.testing.run(PIPELINE, {"shop.main.orders": changes})

    # The rows that the store has then.
    assert results["reports/orders"] == [
        {"id": 1, "product": "lamp", "quantity": 3, "price_cents": 4900, "total_cents": 14700}
    ]
