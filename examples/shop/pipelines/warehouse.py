"""The warehouse: the tables that people report on, so that the shop's database need not bear it."""

import headwater as hw

KEYS = {"customers": ["id"], "orders": ["id"], "items": ["order_id", "line"]}


@hw.pipeline
def warehouse(flow: hw.Flow) -> None:
    for table, key in KEYS.items():
        flow.write(flow.changes(f"shop.public.{table}"), to="warehouse", table=table, key=key)
