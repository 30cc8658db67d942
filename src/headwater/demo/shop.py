"""What happens in the shop: transactions of its database, searches and clicks of its customers.

Nothing here knows a clock or a connection. A shop with the same seed and the same beginning does
the same things in the same order, on every machine.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

SEED: Final = 7
CUSTOMERS: Final = 400
FIRST_ORDERS: Final = 200
MOST_OPEN_ORDERS: Final = 2_000  # from here on more are finished than placed

_NAMES: Final = (
    "Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ines", "Jan", "Kim", "Lea", "Max",
    "Nora", "Otto", "Pia", "Rosa", "Sam", "Tom", "Uma",
)  # fmt: skip
_COUNTRIES: Final = ("BR", "CL", "CZ", "DE", "DE", "DK", "FR", "GB", "IN", "IT", "JP", "KR", "NG")
_GOODS: Final = {
    "beans": "whole coffee beans", "kettle": "a kettle with a long spout",
    "grinder": "grinds coffee evenly", "filter": "holds the grounds back",
    "mug": "keeps coffee warm", "scale": "weighs to a tenth of a gram",
    "jar": "closes tightly", "press": "presses coffee by hand",
}  # fmt: skip
_KINDS: Final = {
    "classic": "as it always was", "small": "for one", "large": "for many",
    "travel": "light, for the road", "steel": "of steel", "glass": "of glass",
    "quiet": "hardly to be heard",
}  # fmt: skip
_AFTER: Final = {"placed": "paid", "paid": "shipped", "shipped": "delivered"}
_PLACE, _ADVANCE, _CANCEL, _DELETE, _MOVE, _JOIN, _PRICE, _REFUSED = (
    "order placed", "status changed", "order cancelled", "order deleted", "customer moved",
    "customer joined", "price changed", "payment refused",
)  # fmt: skip
_OFTEN: Final = {
    _PLACE: 30, _ADVANCE: 50, _CANCEL: 3, _DELETE: 4, _MOVE: 4, _JOIN: 2, _PRICE: 5, _REFUSED: 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    kind: str
    statements: tuple[Statement, ...]
    is_rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A record for a topic. Times are from now; one that is sent later than another may have
    happened earlier, as with phones.
    """

    topic: str
    key: str
    value: dict[str, Any]
    time_column: str  # of `value`, to be filled in with the time at which it happened
    happens_in_s: float
    sent_in_s: float


@dataclass(slots=True)
class Shop:
    """Where the shop stands, as far as the next transactions depend on it."""

    seed: int = SEED
    customers: int = CUSTOMERS
    next_order: int = 1
    next_search: int = 1
    next_click: int = 1
    open_orders: list[tuple[int, str]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    prices: dict[int, Decimal] = field(default_factory=dict)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed}/{self.next_order}")  # noqa: S311 - no secret
        if not self.prices:
            self.prices = {row[0]: row[3] for row in products()}

    def beginning(self) -> list[Statement]:
        """The rows that the tables have at the start."""
        people = [
            Statement(_INSERT_CUSTOMER, self._customer(id_)) for id_ in range(1, CUSTOMERS + 1)
        ]
        goods = [Statement(_INSERT_PRODUCT, row) for row in products()]
        placed = [
            statement
            for _ in range(FIRST_ORDERS)
            for statement in self._order(self._chance.uniform(60, 900))
        ]
        return [*people, *goods, *placed]

    def transaction(self) -> Transaction:
        """The next one."""
        (kind,) = self._chance.choices(list(_OFTEN), list(_OFTEN.values()))
        if kind == _PLACE and len(self.open_orders) > MOST_OPEN_ORDERS:
            kind = _ADVANCE
        if (kind in (_ADVANCE, _CANCEL) and not self.open_orders) or (
            kind == _DELETE and not self.cancelled
        ):
            kind = _PLACE
        return Transaction(kind, tuple(self._statements(kind)), kind == _REFUSED)

    def chance(self) -> float:
        """From 0 to 1, as the seed has it."""
        return self._chance.random()

    def search(self) -> list[Event]:
        """A search, and the clicks that follow it. Some clicks are sent before their search, and a
        few so late that their windows are closed.
        """
        chance, search_id = self._chance, self.next_search
        self.next_search += 1
        customer_id = chance.randint(1, self.customers)
        value = {
            "search_id": search_id,
            "customer_id": customer_id,
            "query": f"{chance.choice(list(_KINDS))} {chance.choice(list(_GOODS))}",
        }
        slow = chance.random() < 0.08
        sent_in_s = chance.uniform(1, 4) if slow else chance.uniform(0.02, 0.2)
        found = [Event("searches", str(customer_id), value, "searched_at", 0.0, sent_in_s)]
        for _ in range(chance.choices((0, 1, 2), (55, 38, 7))[0]):
            is_ahead, is_late = chance.random() < 0.02, chance.random() < 0.02
            happens_in_s = chance.uniform(-1.5, 0) if is_ahead else chance.uniform(0.5, 6)
            delay_s = chance.uniform(15, 25) if is_late else chance.uniform(0.02, 0.2)
            value = {
                "click_id": self.next_click,
                "search_id": search_id,
                "product_id": chance.choice(list(self.prices)),
            }
            self.next_click += 1
            sent_in_s = max(0.0, happens_in_s) + delay_s
            found.append(
                Event("clicks", str(customer_id), value, "clicked_at", happens_in_s, sent_in_s)
            )
        return found

    def _statements(self, kind: str) -> Sequence[Statement]:
        chance = self._chance
        if kind in (_PLACE, _REFUSED):
            is_late = chance.random() < 0.04  # a till that was offline
            return self._order(chance.uniform(20, 300) if is_late else 0.0, kind == _REFUSED)
        if kind == _ADVANCE:
            order_id, status = self._take_open()
            status = _AFTER[status]
            if status in _AFTER:
                self.open_orders.append((order_id, status))
            return [Statement(_SET_STATUS, (status, order_id))]
        if kind == _CANCEL:
            order_id, _ = self._take_open()
            self.cancelled.append(order_id)
            return [Statement(_SET_STATUS, ("cancelled", order_id))]
        if kind == _DELETE:
            order_id = self.cancelled.pop(0)
            return [Statement("DELETE FROM orders WHERE id = %s", (order_id,))]
        if kind == _MOVE:
            moved = (chance.choice(_COUNTRIES), chance.randint(1, self.customers))
            return [Statement("UPDATE customers SET country = %s WHERE id = %s", moved)]
        if kind == _JOIN:
            self.customers += 1
            return [Statement(_INSERT_CUSTOMER, self._customer(self.customers))]
        product_id = chance.choice(list(self.prices))
        price = max(Decimal(1), self.prices[product_id] * chance.randint(90, 111) / 100)
        self.prices[product_id] = price.quantize(Decimal("0.01"))
        values = (self.prices[product_id], product_id)
        return [Statement("UPDATE products SET price = %s WHERE id = %s", values)]

    def _order(self, age_s: float, is_refused: bool = False) -> list[Statement]:
        """The statements that place one, with its items."""
        chance, order_id = self._chance, self.next_order
        self.next_order += 1
        lines = [
            (order_id, line, product_id, chance.choice((1, 1, 1, 2, 3)), self.prices[product_id])
            for line, product_id in enumerate(
                chance.sample(list(self.prices), chance.choice((1, 1, 2, 3))), 1
            )
        ]
        total = sum(quantity * price for *_, quantity, price in lines)
        placed = (order_id, chance.randint(1, self.customers), total, round(age_s, 1))
        if not is_refused:
            self.open_orders.append((order_id, "placed"))
        return [
            Statement(_INSERT_ORDER, placed),
            *(Statement(_INSERT_ITEM, line) for line in lines),
        ]

    def _take_open(self) -> tuple[int, str]:
        chosen = self._chance.randrange(len(self.open_orders))
        self.open_orders[chosen], last = self.open_orders[-1], self.open_orders[chosen]
        self.open_orders.pop()
        return last

    def _customer(self, customer_id: int) -> tuple[int, str, str, str]:
        name = f"{_NAMES[customer_id % len(_NAMES)]} {customer_id}"
        email = f"{name.lower().replace(' ', '.')}@example.org"
        return customer_id, name, email, self._chance.choice(_COUNTRIES)


def products() -> list[tuple[int, str, str, Decimal]]:
    """What the shop sells at first."""
    sold = [(f"{kind} {good}", f"{text}, {how}") for good, text in _GOODS.items()
            for kind, how in _KINDS.items()]  # fmt: skip
    return [
        (number, name, description, Decimal(350 + 137 * number % 9_000) / 100)
        for number, (name, description) in enumerate(sold, 1)
    ]


_INSERT_CUSTOMER: Final = "INSERT INTO customers (id, name, email, country) VALUES (%s, %s, %s, %s)"
_INSERT_PRODUCT: Final = (
    "INSERT INTO products (id, name, description, price) VALUES (%s, %s, %s, %s)"
)
_INSERT_ORDER: Final = (
    "INSERT INTO orders (id, customer_id, total, ordered_at)"
    " VALUES (%s, %s, %s, now() - make_interval(secs => %s))"
)
_INSERT_ITEM: Final = (
    "INSERT INTO items (order_id, line, product_id, quantity, price) VALUES (%s, %s, %s, %s, %s)"
)
_SET_STATUS: Final = "UPDATE orders SET status = %s WHERE id = %s"
