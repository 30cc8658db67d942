"""Nexmark's questions q0 to q23 as views, for Spark and, where it writes them otherwise, DuckDB.

q12 asks for windows of processing time, which no query over tables can: it is not here.
DuckDB has no sessions: it numbers q11's by window functions.
"""

from typing import NamedTuple


class Query(NamedTuple):
    text: str
    key: tuple[str, ...] = ()  # where the query implies none
    of_duckdb: str = ""


_BID = ("date_time",)  # each has a time of its own
_WON = """won AS (
    SELECT a.id, a.category, a.seller, a.expires, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    GROUP BY a.id, a.category, a.seller, a.expires)"""
_EPOCH = "TIMESTAMPTZ '1970-01-01 00:00:00+00'"
_HOT = """
SELECT c.start, c.auction, c.bids FROM counted c
JOIN (SELECT start, max(bids) AS most FROM counted GROUP BY start) m
  ON c.start = m.start AND c.bids = m.most"""
_STATISTICS = """count(*) AS bids,
    count(*) FILTER (WHERE price < 10000) AS low,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS middle,
    count(DISTINCT bidder) AS bidders,
    count(DISTINCT bidder) FILTER (WHERE price < 10000) AS low_bidders,
    count(DISTINCT auction) AS auctions"""
_DAY = "CAST(date_time AS date)"

QUERIES = {
    # everything, as it is
    "q0": Query("SELECT auction, bidder, price, date_time FROM bid", _BID),
    # prices in another currency
    "q1": Query("SELECT auction, bidder, 0.908 * price AS price, date_time FROM bid", _BID),
    # bids for chosen auctions
    "q2": Query("SELECT auction, price, date_time FROM bid WHERE auction % 7 = 0", _BID),
    # who sells in some states
    "q3": Query(
        """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
           WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
        ("id",),
    ),
    # the average of what auctions of a category were sold for
    "q4": Query(f"WITH {_WON} SELECT category, avg(final) AS average FROM won GROUP BY category"),
    # the auctions with most bids, each 2 s over the last 10 s
    "q5": Query(
        f"""WITH counted AS (
                SELECT window.start AS start, auction, count(*) AS bids FROM bid
                GROUP BY window(date_time, '10 seconds', '2 seconds'), auction) {_HOT}""",
        ("start", "auction"),
        f"""WITH counted AS (
                SELECT time_bucket(INTERVAL 2 SECONDS, date_time, {_EPOCH})
                       - hop * INTERVAL 2 SECONDS AS start, auction, count(*) AS bids
                FROM bid, (SELECT unnest(range(5)) AS hop) GROUP BY ALL) {_HOT}""",
    ),
    # the average of a seller's last ten sales
    "q6": Query(
        f"""WITH {_WON} SELECT id, seller, avg(final) OVER (
                PARTITION BY seller ORDER BY expires, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
            ) AS average FROM won""",
        ("id",),
    ),
    # the highest bids of each 10 s
    "q7": Query(
        """SELECT h.start, b.auction, b.bidder, b.price, b.date_time FROM bid b
           JOIN (SELECT window.start AS start, window.end AS finish, max(price) AS price
                 FROM bid GROUP BY window(date_time, '10 seconds')) h
             ON b.price = h.price AND b.date_time >= h.start AND b.date_time < h.finish""",
        _BID,
        f"""WITH h AS (SELECT time_bucket(INTERVAL 10 SECONDS, date_time, {_EPOCH}) AS start,
                              max(price) AS price FROM bid GROUP BY ALL)
            SELECT h.start, b.auction, b.bidder, b.price, b.date_time FROM bid b JOIN h
              ON b.price = h.price AND time_bucket(INTERVAL 10 SECONDS, b.date_time, {_EPOCH})
                 = h.start""",
    ),
    # who sells within the 10 s in which he came
    "q8": Query(
        """SELECT p.id, p.name, p.start FROM
           (SELECT id, name, window.start AS start FROM person
            GROUP BY id, name, window(date_time, '10 seconds')) p
           JOIN (SELECT seller, window.start AS start FROM auction
                 GROUP BY seller, window(date_time, '10 seconds')) a
             ON p.id = a.seller AND p.start = a.start""",
        ("id",),
        f"""SELECT DISTINCT p.id, p.name,
                   time_bucket(INTERVAL 10 SECONDS, p.date_time, {_EPOCH}) AS start
            FROM person p JOIN auction a ON p.id = a.seller
             AND time_bucket(INTERVAL 10 SECONDS, p.date_time, {_EPOCH})
                 = time_bucket(INTERVAL 10 SECONDS, a.date_time, {_EPOCH})""",
    ),
    # the bid that wins each auction
    "q9": Query(
        """SELECT id, item, seller, bidder, price, bid_at FROM (
               SELECT a.id, a.item, a.seller, b.bidder, b.price, b.date_time AS bid_at,
                      row_number() OVER (PARTITION BY a.id
                                         ORDER BY b.price DESC, b.date_time) AS place
               FROM auction a JOIN bid b ON a.id = b.auction
                AND b.date_time BETWEEN a.date_time AND a.expires) AS ranked
           WHERE place <= 1""",
        ("id",),
    ),
    # every bid with its day and minute, as texts
    "q10": Query(
        """SELECT auction, bidder, price, date_time, date_format(date_time, 'yyyy-MM-dd') AS dt,
                  date_format(date_time, 'HH:mm') AS hm FROM bid""",
        _BID,
        """SELECT auction, bidder, price, date_time, strftime(date_time, '%Y-%m-%d') AS dt,
                  strftime(date_time, '%H:%M') AS hm FROM bid""",
    ),
    # how many bids a person makes without a pause of a second
    "q11": Query(
        """SELECT bidder, session_window.start AS start, session_window.end AS end,
                  count(*) AS bids, max(date_time) AS last
           FROM bid GROUP BY bidder, session_window(date_time, '1 second')""",
        of_duckdb="""WITH begun AS (
               SELECT bidder, date_time, CASE WHEN date_time > interval '1' second + lag(date_time)
                          OVER (PARTITION BY bidder ORDER BY date_time) THEN 1 ELSE 0 END AS is_new
               FROM bid),
           numbered AS (
               SELECT bidder, date_time,
                      sum(is_new) OVER (PARTITION BY bidder ORDER BY date_time) AS session
               FROM begun)
           SELECT bidder, min(date_time), max(date_time) + interval '1' second, count(*),
                  max(date_time)
           FROM numbered GROUP BY bidder, session""",
    ),
    # bids with the value of a table that is looked up
    "q13": Query(
        """SELECT b.auction, b.bidder, b.price, b.date_time, s.value
           FROM bid b JOIN side s ON b.auction % 20 = s.id""",
        _BID,
    ),
    # calculations on each bid
    "q14": Query(
        """SELECT auction, bidder, 0.908 * price AS price, date_time,
                  CASE WHEN extract(HOUR FROM date_time) BETWEEN 8 AND 18 THEN 'day'
                       WHEN extract(HOUR FROM date_time) BETWEEN 6 AND 20 THEN 'other'
                       ELSE 'night' END AS part,
                  length(url) - length(replace(url, 'c', '')) AS letters
           FROM bid WHERE 0.908 * price > 10000 AND 0.908 * price < 50000""",
        _BID,
    ),
    # statistics of each day
    "q15": Query(f"SELECT {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY {_DAY}"),
    # and of each channel
    "q16": Query(
        f"SELECT channel, {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY channel, {_DAY}"
    ),
    # and of each auction
    "q17": Query(
        f"""SELECT auction, {_DAY} AS day, count(*) AS bids,
                   count(*) FILTER (WHERE price < 10000) AS low, min(price) AS least,
                   max(price) AS most, avg(price) AS average, sum(price) AS total
            FROM bid GROUP BY auction, {_DAY}"""
    ),
    # the last bid of a person for an auction
    "q18": Query(
        """SELECT auction, bidder, price, date_time FROM bid
           QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC) <= 1""",
        ("bidder", "auction"),
    ),
    # the ten highest bids of each auction
    "q19": Query(
        """SELECT *, row_number() OVER (
                  PARTITION BY auction ORDER BY price DESC, date_time) AS place
           FROM bid QUALIFY place <= 10""",
        ("auction", "place"),
    ),
    # bids with their auction
    "q20": Query(
        """SELECT b.auction, b.bidder, b.price, b.channel, b.date_time, a.item, a.seller, a.expires
           FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
        _BID,
    ),
    # the number of the channel, by its name or from the address
    "q21": Query(
        """SELECT auction, bidder, price, channel, date_time,
                  CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                       ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
           FROM bid WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> ''
                       OR lower(channel) IN ('apple', 'google')""",
        _BID,
    ),
    # parts of the address
    "q22": Query(
        """SELECT auction, bidder, price, channel, date_time, split_part(url, '/', 4) AS dir1,
                  split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
        _BID,
    ),
    # bids with their auction and its seller
    "q23": Query(
        """SELECT b.bidder, b.price, b.date_time, a.item, a.category, p.name, p.state
           FROM bid b JOIN auction a ON b.auction = a.id JOIN person p ON a.seller = p.id""",
        _BID,
    ),
}  # fmt: skip
