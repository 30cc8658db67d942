"""Click-through: each search with the clicks that followed it, or with none.

SELECT query, count(DISTINCT search_id) AS searches, count(click_id) AS clicks
FROM search_clicks GROUP BY query
"""

import headwater as hw


@hw.pipeline
def clicks(flow: hw.Flow) -> None:
    searches = flow.changes(
        "searches", "search_id bigint, customer_id bigint, query string, searched_at timestamp"
    )
    clicks = flow.changes(
        "clicks", "click_id bigint, search_id bigint, product_id bigint, clicked_at timestamp"
    )
    # Either may arrive first. A search without clicks is emitted when no click can follow any more.
    joined = hw.join(
        searches,
        clicks,
        on="search_id",
        within=("2 seconds", "30 seconds"),  # a phone's clock may be ahead of the server's
        left_time="searched_at",
        right_time="clicked_at",
        how="left",
        late="side",  # late rows go to the topic clicks.late
    )
    flow.write(joined, to="warehouse", table="search_clicks")
