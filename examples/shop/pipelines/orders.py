"""The order page: each order with the customer's name and country, by its id, from the cache."""

import headwater as hw


@hw.pipeline
def orders(flow: hw.Flow) -> None:
    orders = flow.changes("shop.public.orders")
    customers = flow.table("shop.public.customers")
    # The customer as of the order's change: a later change of the customer does not update it.
    rich = hw.enrich(
        orders,
        customers,
        on=[("customer_id", "id")],
        columns={"name": "customer_name", "country": "country"},
    )
    flow.write(rich, to="cache", table="orders", key="id")
