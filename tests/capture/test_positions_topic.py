"""What is stored of captures, and what another program may have written there."""

from dataclasses import replace

import pytest

from headwater.capture import positions
from headwater.capture.contract import Column, Lag, SourcePosition, Table
from headwater.capture.positions import CapturePosition, Failure, SnapshotState, TableState
from headwater.errors import CaptureError

TABLE = Table(
    "public", "orders", (Column("id", "int4", {"type": "int32"}, optional=False),), ("id",)
)


def test_what_is_stored_is_read_again():
    capture = CapturePosition(
        SourcePosition({"lsn": 7}, 3),
        ts_ms=1000,
        delay_ms=20,
        written_ms=1020,
        owner="me",
        has_ended=True,
        signals=5,
        counts={"public.orders": 2},
        lag=Lag(1, 2),
    )
    table = TableState(TABLE, SnapshotState("true", [5], 5, 10), Failure("odd", "why", "repair it"))
    people = TableState(replace(TABLE, schema="app", name="people", documents=True))
    records = {
        b"shop": positions.encode_capture(capture),
        b"shop/public.orders": positions.encode_table(table),
        b"shop/app.people": positions.encode_table(people),
        b"shop-2": b"not ours",
    }
    stored = positions.decode("shop", records)
    assert stored.capture == capture
    assert stored.tables == {"public.orders": table, "app.people": people}
    assert positions.captures_in(records) == ["shop", "shop-2"]
    assert positions.decode("elsewhere", records) == positions.Stored(None, {})


@pytest.mark.parametrize("value", [b"", b"\xff", b"7", b"{}", b"null", b'{"at": {}}', b"[1]"])
@pytest.mark.parametrize("key", [b"shop", b"shop/public.orders"])
def test_what_another_program_wrote(key, value):
    with pytest.raises(CaptureError, match="cannot be read") as caught:
        positions.decode("shop", {key: value})
    assert "headwater capture reset shop" in caught.value.hint
