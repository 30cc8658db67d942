"""The model of the demo's shop: the same for the same seed, and bounded in size."""

from collections import Counter

from headwater.demo.shop import CUSTOMERS, FIRST_ORDERS, MOST_OPEN_ORDERS, Shop


def happenings(shop, count):
    return [(shop.transaction(), shop.search()) for _ in range(count)]


def test_the_same_seed_does_the_same():
    first, second = Shop(), Shop()
    assert first.beginning() == second.beginning()
    assert happenings(first, 500) == happenings(second, 500)
    assert happenings(Shop(seed=8), 500) != happenings(Shop(), 500)


def test_a_shop_that_goes_on_does_something_else():
    """Otherwise a load that is started again would do what it did at first."""
    begun = Shop()
    begun.beginning()
    assert begun.next_order == FIRST_ORDERS + 1
    assert [happening.kind for happening, _ in happenings(Shop(next_order=201), 50)] != [
        happening.kind for happening, _ in happenings(Shop(next_order=202), 50)
    ]


def test_every_kind_of_transaction_happens():
    shop = Shop()
    shop.beginning()
    kinds = Counter(shop.transaction().kind for _ in range(2_000))
    assert set(kinds) == {
        "order placed", "status changed", "order cancelled", "order deleted", "customer moved",
        "customer joined", "price changed", "payment refused",
    }  # fmt: skip
    assert kinds["order placed"] > 400


def test_only_refused_payments_are_rolled_back_and_never_used_again():
    shop = Shop()
    refused = set()
    for _ in range(5_000):
        transaction = shop.transaction()
        ids = {
            statement.values[-1]
            for statement in transaction.statements
            if "SET status" in statement.sql
        }
        assert not ids & refused
        assert transaction.is_rolled_back == (transaction.kind == "payment refused")
        if transaction.is_rolled_back:
            refused.add(transaction.statements[0].values[0])
    assert refused


def test_an_order_costs_what_its_items_cost():
    shop = Shop()
    for _ in range(1_000):
        statements = shop.transaction().statements
        if statements[0].sql.startswith("INSERT INTO orders"):
            order, *items = (statement.values for statement in statements)
            assert order[2] == sum(quantity * price for *_, quantity, price in items)
            assert {item[0] for item in items} == {order[0]}
            assert 1 <= order[1] <= shop.customers


def test_what_it_remembers_is_bounded():
    shop = Shop()
    for _ in range(40_000):
        shop.transaction()
    assert len(shop.open_orders) <= MOST_OPEN_ORDERS + 1
    assert len(shop.cancelled) < 200
    assert shop.customers > CUSTOMERS


def test_phones_are_late_and_out_of_order():
    shop = Shop()
    searches, clicks = [], []
    for _ in range(3_000):
        search, *of_it = shop.search()
        searches.append(search)
        clicks += [(search, click) for click in of_it]
    assert all(click.value["search_id"] == search.value["search_id"] for search, click in clicks)
    assert any(click.sent_in_s < search.sent_in_s for search, click in clicks)
    assert any(click.happens_in_s < 0 for _, click in clicks)
    assert any(click.sent_in_s - click.happens_in_s > 12 for _, click in clicks)
    assert all(0 <= event.sent_in_s < 40 for event in (*searches, *(click for _, click in clicks)))
    assert 0.3 < len(clicks) / len(searches) < 0.8
