"""The demo's orders: made up, plausible, and the same in every run."""

import random
from collections.abc import Iterator
from typing import Any, Final

_COUNTRIES: Final = ("BR", "CL", "CZ", "DE", "DE", "DK", "FR", "GB", "IN", "IT", "JP", "KR", "NG")
_CUSTOMERS: Final = 400
_PRODUCTS: Final = (
    ("espresso beans 1 kg", 1890), ("pour-over kettle", 5400), ("paper filters", 450),
    ("hand grinder", 8900), ("oat milk 6-pack", 1170), ("travel mug", 2450),
    ("cold-brew jar", 3200), ("scale 0.1 g", 2900), ("cleaning tablets", 720),
)  # fmt: skip


def orders(seed: int = 7) -> Iterator[dict[str, Any]]:
    """An endless stream of orders, numbered from 1001."""
    chance = random.Random(seed)  # noqa: S311 - a demo, not a secret
    order_id = 1000
    while True:
        order_id += 1
        customer_id = chance.randrange(1, _CUSTOMERS)
        items: list[dict[str, Any]] = [
            {"product": product, "quantity": chance.choice((1, 1, 1, 2, 3)), "price_cents": cents}
            for product, cents in chance.sample(_PRODUCTS, chance.choice((1, 1, 2, 3)))
        ]
        yield {
            "order_id": order_id,
            "customer_id": customer_id,
            "country": _COUNTRIES[customer_id % len(_COUNTRIES)],
            "items": items,
            "total_cents": sum(item["quantity"] * item["price_cents"] for item in items),
        }
