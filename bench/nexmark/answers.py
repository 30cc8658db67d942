"""What DuckDB says over all events at once."""

import duckdb
import pyarrow as pa

TEN_S = "time_bucket(INTERVAL 10 SECONDS, {}, TIMESTAMPTZ '1970-01-01 00:00:00+00')"
_WON = """
    won AS (
        SELECT a.id, a.category, a.seller, a.expires, max(b.price) AS final
        FROM auction a JOIN bid b ON a.id = b.auction
        AND b.date_time BETWEEN a.date_time AND a.expires
        GROUP BY ALL)"""

SQL = {
    # prices in another currency
    "q1": "SELECT auction, bidder, price * 908 // 1000 AS price, date_time FROM bid",
    # bids for chosen auctions
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    # who sells in some states
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    # the average of what auctions of a category were sold for
    "q4": f"WITH {_WON} SELECT category, avg(final) AS average FROM won GROUP BY category",
    # the auctions with most bids, each 2 s over the last 10 s
    "q5": """
        WITH hops AS (SELECT unnest(range(5)) AS hop),
        counted AS (
            SELECT time_bucket(INTERVAL 2 SECONDS, date_time, TIMESTAMPTZ '1970-01-01 00:00:00+00')
                   - hop * INTERVAL 2 SECONDS AS window_start, auction, count(*) AS bids
            FROM bid, hops GROUP BY ALL),
        most AS (SELECT window_start, max(bids) AS bids FROM counted GROUP BY ALL)
        SELECT c.window_start, c.auction, c.bids FROM counted c NATURAL JOIN most""",
    # the average of a seller's last ten sales
    "q6": f"""
        WITH {_WON}
        SELECT seller, id, avg(final) OVER (
            PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS average FROM won""",
    # the highest bids of each 10 s
    "q7": f"""
        WITH highest AS (
            SELECT {TEN_S.format("date_time")} AS window_start, max(price) AS price
            FROM bid GROUP BY ALL)
        SELECT h.window_start, b.auction, b.bidder, b.price FROM bid b JOIN highest h
        ON b.price = h.price AND {TEN_S.format("b.date_time")} = h.window_start""",
    # who sells within the 10 s in which he came
    "q8": f"""
        SELECT DISTINCT p.id, p.name, {TEN_S.format("p.date_time")} AS window_start
        FROM person p JOIN auction a
        ON p.id = a.seller AND {TEN_S.format("p.date_time")} = {TEN_S.format("a.date_time")}""",
}


def answer(query: str, tables: dict[str, pa.Table]) -> list[tuple]:
    """Sorted."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return in_order(connection.sql(SQL[query]).to_arrow_table())


def in_order(rows: pa.Table) -> list[tuple]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())
