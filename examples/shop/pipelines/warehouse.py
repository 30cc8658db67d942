"""The warehouse: copies of the tables for reports, to keep that load off the shop's database."""

import headwater as hw

KEYS = {"customers": ["id"], "orders": ["id"], "items": ["order_id", "line"]}


@hw.pipeline
def warehouse(flow: hw.Flow) -> None:
    for table, key in KEYS.items():
        flow.write(flow.changes(f"shop.public.{table}"), to="warehouse", table=table, key=key)
