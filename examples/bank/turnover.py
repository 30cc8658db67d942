"""The asynchronous view: what has moved on each account by day, from the published events."""

import headwater as hw


@hw.pipeline
def turnover(flow: hw.Flow) -> None:
    movements = flow.changes("outbox.event.account", "account string, amount bigint")
    by_day = hw.tumbling(
        movements.where("amount is not null"),  # not of Opened and WithdrawalFailed
        "_at",
        "1 day",
        by="account",
        early=True,  # also the current day
        late="correct",
        allowed_lateness="1 day",
    ).agg(movements=hw.agg.count(), amount=hw.agg.sum("amount"))
    result = by_day.withColumnRenamed("window_start", "day").drop("window_end", "_mark")
    flow.write(result, to="reports", table="turnover", key=["account", "day"])
