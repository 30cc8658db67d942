"""Nexmark's queries as views over events that arrive, against DuckDB after every batch."""

from random import Random

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.nexmark_queries import QUERIES
from support.pipelines.view_driver import Table, ViewDriver

from bench.nexmark.events import Events
from headwater.errors import PipelineError

TABLES = {
    "person": Table("id bigint, name string, city string, state string, date_time timestamp"),
    "auction": Table(
        "id bigint, item string, seller bigint, category bigint, reserve bigint,"
        " date_time timestamp, expires timestamp"
    ),
    "bid": Table(
        "auction bigint, bidder bigint, price bigint, date_time timestamp, channel string,"
        " url string"
    ),
    "side": Table("id bigint, value string", ("id",)),
}
QUICK = ("q5", "q11")
_CHANNELS = ("Apple", "Google", "channel-7", "channel-8")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in QUERIES],
)
def test_nexmark(spark, tmp_path, name):
    query = QUERIES[name]
    tables = {name: table for name, table in TABLES.items() if f" {name}" in query.text}
    with (
        ViewDriver(spark, tmp_path, query.text, tables, query.key) as view,
        Oracle(tables) as oracle,
    ):
        for changes in _batches():
            view.batch(changes)
            oracle.apply(changes)
            wanted = oracle.rows(query.of_duckdb or query.text)
            assert not (found := difference(view.rows, wanted)), found
        assert wanted


def _batches():
    """The events in their order, those of some tables later than those of others."""
    chance = Random(0)
    events = Events(1200, per_s=40).tables()
    rows = {name: table.to_pylist() for name, table in events.items()}
    for number, bid in enumerate(rows["bid"]):
        bid["channel"] = _CHANNELS[number % 4]
        ending = f"&channel_id={number % 9}" if number % 3 else ""
        bid["url"] = f"https://nexmark.test/c{number % 5}/d{number % 7}/item.htm?query=1{ending}"
    rows["side"] = [{"id": chance.randrange(20), "value": f"v{at}"} for at in range(60)]
    cuts = {name: sorted(chance.sample(range(len(of)), 3)) for name, of in rows.items()}
    for at in range(4):
        yield {
            name: of[([0, *cuts[name]])[at] : ([*cuts[name], len(of)])[at]]
            for name, of in rows.items()
        }


def test_windows_of_processing_time_are_refused(spark, tmp_path):
    query = "SELECT bidder, count(*) AS bids FROM bid GROUP BY bidder, window(now(), '10 seconds')"
    with pytest.raises(PipelineError, match="although no record arrives"):
        ViewDriver(spark, tmp_path, query, {"bid": TABLES["bid"]}, ("bidder",))
