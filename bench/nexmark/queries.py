"""The questions as DataFrames over the log. The frames given are `person`, `auction`, `bid`, with
`_position`: streams for those of STREAMED, and what is there for all of them.

q4 and q6 aggregate what is aggregated, over winning bids that are known when an auction has ended:
as a stream Spark has no way to say it, so they are asked of what is there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import headwater as hw

Frames = Mapping[str, Any]
IN_ORDER = {"delay": "0 seconds"}
STREAMED = ("q1", "q2", "q3", "q5", "q7", "q8")
MODES = {"q5": "update"}  # Spark's output mode; the others append


def q1(frames: Frames) -> Any:
    return frames["bid"].selectExpr(
        "auction", "bidder", "price * 908 DIV 1000 AS price", "date_time"
    )


def q2(frames: Frames) -> Any:
    return frames["bid"].where("auction % 123 = 0").select("auction", "price")


def q3(frames: Frames) -> Any:
    auctions = frames["auction"].where("category = 10").select("id", "seller", *_ADDED)
    persons = frames["person"].where("state IN ('OR', 'ID', 'CA')")
    persons = persons.selectExpr("id AS person", "name", "city", "state", *_ADDED)
    joined = hw.join_tables(
        auctions, persons, on=[("seller", "person")], left_key="id", right_key="person"
    )
    return joined.select("name", "city", "state", "id")


def q4(frames: Frames) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return _won(frames).groupBy("category").agg(F.avg("final").alias("average"))


def q5(frames: Frames) -> Any:
    """All results of a window come in one batch, for all buckets see time pass together."""
    from pyspark.sql import functions as F  # noqa: N812

    time = hw.event_time("date_time", **IN_ORDER)
    hot = hw.hopping(frames["bid"], time, "10 seconds", "2 seconds", by=["auction"])
    counted = hot.agg(bids=hw.agg.count())
    both = F.struct("auction", "bids")
    of_window = counted.groupBy("window_start").agg(F.collect_list(both).alias("all"))
    # The maximum stands beside the list, not within a condition on its elements: it would be
    # computed for each of them.
    most = of_window.select("window_start", "all", F.array_max("all.bids").alias("most"))
    chosen = most.select("window_start", "most", F.explode("all").alias("hot"))
    chosen = chosen.where("hot.bids = most")
    return chosen.select("window_start", "hot.auction", "hot.bids")


def q6(frames: Frames) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    last = Window.partitionBy("seller").orderBy("expires", "id").rowsBetween(-9, 0)
    return _won(frames).select("seller", "id", F.avg("final").over(last).alias("average"))


def q7(frames: Frames) -> Any:
    bids = frames["bid"]
    time = hw.event_time("date_time", **IN_ORDER)
    highest = hw.tumbling(bids, time, "10 seconds").agg(price=hw.agg.max("price"))
    highest = highest.select("window_start", "price")
    of_window = bids.selectExpr("auction", "bidder", "price", f"{_TEN_S} AS window_start")
    found = of_window.join(highest, ["window_start", "price"])
    return found.select("window_start", "auction", "bidder", "price")


def q8(frames: Frames) -> Any:
    persons = frames["person"].selectExpr(
        "id", "name", "date_time", f"{_TEN_S} AS window_start", *_ADDED
    )
    auctions = frames["auction"].selectExpr(
        "seller", "date_time AS offered", f"{_TEN_S} AS window_start", *_ADDED
    )
    joined = hw.join(
        persons,
        auctions,
        on=[("id", "seller"), "window_start"],
        within="10 seconds",
        left_time=hw.event_time("date_time", **IN_ORDER),
        right_time=hw.event_time("offered", **IN_ORDER),
    )
    return joined.select("id", "name", "window_start").dropDuplicates()


QUERIES: dict[str, Callable[[Frames], Any]] = {
    query.__name__: query for query in (q1, q2, q3, q4, q5, q6, q7, q8)
}
_ADDED = ("_op", "_at", "_position")
_TEN_S = "timestamp_seconds(unix_seconds(date_time) DIV 10 * 10)"


def _won(frames: Frames) -> Any:
    """Auctions and the highest bid while they lasted."""
    from pyspark.sql import functions as F  # noqa: N812

    auctions = frames["auction"].selectExpr(
        "id AS auction", "category", "seller", "date_time AS offered", "expires", *_ADDED
    )
    bids = frames["bid"].select("auction", "price", "date_time", *_ADDED)
    joined = hw.join(
        auctions,
        bids,
        on="auction",
        within=("0 seconds", "25 seconds"),
        left_time=hw.event_time("offered", **IN_ORDER),
        right_time=hw.event_time("date_time", **IN_ORDER),
    ).where("date_time <= expires")
    won = joined.groupBy("auction", "category", "seller", "expires").agg(
        F.max("price").alias("final")
    )
    return won.withColumnRenamed("auction", "id")
