import json
import logging

import pytest

from headwater.capture.contract import Begin, Change, Column, Table
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import TableRefused
from headwater.settings import Secret

COLUMNS = (
    Column("id", "uuid", {"type": "string", "name": "io.debezium.data.Uuid", "version": 1}),
    Column("aggregatetype", "text"),
    Column("aggregateid", "text"),
    Column("type", "text"),
    Column("payload", "jsonb", {"type": "string", "name": "io.debezium.data.Json", "version": 1}),
)
OUTBOX = Table("public", "outbox", COLUMNS, ("id",))
EVENT = {
    "id": "e1",
    "aggregatetype": "order",
    "aggregateid": "17",
    "type": "OrderPlaced",
    "payload": '{"total": 1.50}',
}
RECORD = (
    "outbox.event.order",
    b"17",
    b'{"total": 1.50}',
    (("id", b"e1"), ("eventType", b"OrderPlaced")),
)


def make(**settings):
    chosen = CaptureSettings("shop", Secret("x"), outbox="public.outbox", **settings)
    return Shaper(chosen, "postgresql", "db")


def shape(shaper, op, before=None, after=None, table=OUTBOX):
    shaper.begin(Begin({}, "1", 0, {}))
    return shaper.change(Change(table, op, before, after, 0, {"lsn": 1}))


def test_an_inserted_row_is_an_event():
    assert shape(make(), "c", None, EVENT) == [RECORD]


def test_rows_that_were_there_before_are_events_too():
    assert list(make().rows(OUTBOX, [EVENT], "true")) == [RECORD]


@pytest.mark.parametrize("settings", [{"schemas": True}, {"transactions": True}])
def test_an_event_has_no_envelope_whatever_the_others_have(settings):
    assert shape(make(**settings), "c", None, EVENT) == [RECORD]


def test_deletes_and_truncates_are_ignored_and_an_update_is_warned_of_once(caplog):
    shaper = make()
    assert shape(shaper, "d", {"id": "e1"}) == shape(shaper, "t") == []
    with caplog.at_level(logging.WARNING):
        assert shape(shaper, "u", None, EVENT) == shape(shaper, "u", None, EVENT) == []
    assert [record.getMessage() for record in caplog.records] == [
        "public.outbox: a row was updated; an outbox's rows are events, updates are ignored"
    ]


def test_further_columns_are_headers():
    table = Table(
        "public",
        "outbox",
        (*COLUMNS, Column("tenant", "integer", {"type": "int32"}), Column("trace", "text")),
        ("id",),
    )
    ((_, _, _, headers),) = shape(
        make(), "c", None, EVENT | {"tenant": 5, "trace": None}, table=table
    )
    assert headers[2:] == (("tenant", b"5"), ("trace", None))


def test_payloads_are_as_they_are():
    columns = (*COLUMNS[:4], Column("payload", "bytea", {"type": "bytes"}))
    binary = Table("public", "outbox", columns, ("id",))
    assert shape(make(), "c", None, EVENT | {"payload": "AAEC"}, table=binary)[0][2] == b"\0\1\2"
    assert shape(make(), "c", None, EVENT | {"payload": None})[0][2] is None
    numbers = EVENT | {"aggregateid": 17, "id": 3}
    assert shape(make(), "c", None, numbers)[0][1] == b"17"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", None),
        ("aggregatetype", None),
        ("aggregateid", None),
        ("aggregatetype", ""),
        ("aggregatetype", "a b"),
        ("aggregatetype", "x" * 240),
    ],
)
def test_a_row_that_can_be_no_event_names_itself_and_its_column(column, value):
    with pytest.raises(TableRefused, match=f"is no event: {column}") as raised:
        shape(make(), "c", None, EVENT | {column: value})
    assert "id " in raised.value.detail


def test_a_table_that_is_no_outbox_is_reported_before_the_start():
    table = Table("public", "outbox", COLUMNS[:4], ("id",))
    (error,) = make().check([table])
    assert error.what == "public.outbox is no outbox: it has no column payload"
    (error,) = make().check([Table("public", "other", (), ())])
    assert "the outbox public.outbox is none of its tables" in error.what


def test_other_tables_go_their_way():
    table = Table("public", "orders", (Column("id", "integer"),), ("id",))
    ((topic, _, value, _),) = shape(make(), "c", None, {"id": 1}, table=table)
    assert topic == "shop.public.orders"
    assert json.loads(value)["after"] == {"id": 1}


def test_an_outbox_needs_no_key_of_its_own():
    """Its events have one, also in a compacted topic."""
    table = Table("public", "outbox", COLUMNS, ())
    shaper = make(topic_config={"cleanup.policy": "compact"})
    assert shape(shaper, "c", None, EVENT, table) == [RECORD]
