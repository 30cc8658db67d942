"""The customer's page: all orders of a customer, updated by changes of both tables.

A new name or country of a customer changes all their orders here; a deleted order is removed.
"""

import headwater as hw


@hw.pipeline
def timeline(flow: hw.Flow) -> None:
    customers = flow.changes("shop.public.customers").drop("email", "joined_at")
    customers = customers.withColumnRenamed("id", "customer_id")
    orders = flow.changes("shop.public.orders").withColumnRenamed("id", "order_id")
    joined = hw.join_tables(
        customers, orders, on="customer_id", left_key="customer_id", right_key="order_id"
    )
    flow.write(joined, to="cache", table="timeline", key=["customer_id", "order_id"])
