"""The dashboard: revenue of each minute by country. Late orders correct their minute."""

import headwater as hw


@hw.pipeline
def revenue(flow: hw.Flow) -> None:
    orders = flow.changes("shop.public.orders").where("_op in ('c', 'r')")  # once, as placed
    customers = flow.table("shop.public.customers")
    placed = hw.enrich(
        orders, customers, on=[("customer_id", "id")], columns=["country"], how="inner"
    )
    per_minute = hw.tumbling(
        placed,
        "ordered_at",
        "1 minute",
        by="country",
        early=True,  # also the current minute
        late="correct",
        allowed_lateness="1 hour",
    ).agg(orders=hw.agg.count(), revenue=hw.agg.sum("total"), largest=hw.agg.max("total"))
    result = per_minute.withColumnRenamed("window_start", "minute").drop("window_end", "_mark")
    flow.write(result, to="warehouse", table="revenue", key=["minute", "country"])
