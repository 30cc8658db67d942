"""Orders with their totals, derived from the table `orders` of shop.db."""

from pyspark.sql.functions import col

import headwater as hw


@hw.pipeline
def orders(flow: hw.Flow) -> None:
    # Every insert, update and delete, in order. The columns are those of the captured table.
    changes = flow.changes("shop.main.orders")

    # Any operation of Spark goes here.
    priced = changes.withColumn("total_cents", col("price_cents") * col("quantity"))

    # Each change is applied exactly once; a deleted order is deleted from the store.
    flow.write(priced, to="reports", table="orders", key="id")
