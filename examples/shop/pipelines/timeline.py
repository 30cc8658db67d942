"""The customer's page: all orders of a customer, in step with both tables.

A customer who moves or changes the name has it on all of them; an order that is deleted is gone.
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
