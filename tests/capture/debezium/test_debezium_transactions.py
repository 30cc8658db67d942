"""From a connector's records to transactions and their positions, without a connector."""

from dataclasses import dataclass

import pytest

from headwater.capture.contract import (
    Begin,
    Commit,
    Event,
    PositionAdvanced,
    Record,
    SourcePosition,
)
from headwater.capture.debezium import transactions
from headwater.capture.debezium.records import Batch
from headwater.capture.debezium.transactions import QUIET_S, Transactions
from headwater.errors import PositionLost

PARTITION = {"server": "legacy"}
START = SourcePosition({"offsets": []})


class Value(dict):
    """A Struct, as far as it is looked at."""

    def schema(self) -> None:
        return None


@dataclass
class Sent:
    """A record of Kafka Connect."""

    name: str
    offset: dict
    text: bytes = b"{}"
    partition: str = "legacy"

    def topic(self) -> str:
        return self.name

    def value(self) -> Value:
        return Value(status="BEGIN" if "begin" in self.offset else "END", ts_ms=7)

    def sourceOffset(self) -> dict:  # noqa: N802
        return self.offset

    def sourcePartition(self) -> dict:  # noqa: N802
        return {"server": self.partition}


def begin(transaction: str, at: int) -> Sent:
    return Sent("legacy.transaction", {"lsn": at, "transaction_id": transaction, "begin": True})


def change(transaction: str, at: int, text: bytes = b"{}") -> Sent:
    offset = {"lsn": at, "transaction_id": transaction, "transaction_data_collection_order_t": 1}
    return Sent("legacy.public.t", offset, text)


def end(transaction: str, at: int) -> Sent:
    offset = {"lsn": at, "transaction_id": transaction, "transaction_data_collection_order_t": 1}
    return Sent("legacy.transaction", offset)


def read(at: int) -> Sent:
    return Sent("legacy.public.t", {"lsn": at, "snapshot": "INITIAL"}, b"read")


def heartbeat(at: int) -> Sent:
    return Sent("__debezium-heartbeat.legacy", {"lsn": at})


def batch(*sent: Sent) -> Batch:
    return Batch(
        sent, [record.name for record in sent], [b"k"] * len(sent), [record.text for record in sent]
    )


def fresh(
    after: SourcePosition = START, *, published: bool = False, ended: bool = True
) -> Transactions:
    return Transactions(
        "legacy",
        after,
        transaction_topic="legacy.transaction",
        heartbeat_topic="__debezium-heartbeat.legacy",
        are_published=published,
        are_ended=ended,
    )


def position(at: int, **more: object) -> dict:
    return {"offsets": [[PARTITION, {"lsn": at, **more}]]}


def kinds(events: list[Event]) -> str:
    letters = {Begin: "B", Record: "r", Commit: "C", PositionAdvanced: "P"}
    return "".join(letters[type(event)] for event in events)


def test_a_transaction_is_held_until_its_end_and_stands_there() -> None:
    source = fresh()
    assert list(source.feed(batch(begin("1", 10), change("1", 11)), 0)) == []
    events = list(source.feed(batch(change("1", 12), end("1", 13), begin("2", 20)), 0))
    assert kinds(events) == "BrrC"
    # What says that the transaction is in progress is not part of the log_position behind it.
    assert events[0] == Begin(position(13), "1", 7, {})
    assert [event.ordinal for event in events if isinstance(event, Record)] == [1, 2]
    assert events[-1] == Commit(3)


def test_snapshot_records_form_a_group_as_they_come() -> None:
    events = list(fresh().feed(batch(read(1), read(1)), 0))
    assert kinds(events) == "BrrC"
    assert events[0].at == position(1, snapshot="INITIAL")


def test_snapshot_records_are_not_mixed_with_a_transaction() -> None:
    events = list(fresh().feed(batch(read(1), begin("1", 10), change("1", 11), end("1", 12)), 0))
    assert kinds(events) == "BrCBrC"
    assert events[0].at == position(1, snapshot="INITIAL")


def test_heartbeats_are_progress_between_transactions_only() -> None:
    source = fresh()
    assert list(source.feed(batch(heartbeat(5)), 0)) == [PositionAdvanced(position(5))]
    sent = batch(begin("1", 10), change("1", 11), heartbeat(12), end("1", 12))
    assert kinds(list(source.feed(sent, 0))) == "BrC"


def test_a_transaction_of_other_tables_is_progress() -> None:
    events = list(fresh().feed(batch(begin("1", 10), end("1", 13)), 0))
    assert events == [PositionAdvanced(position(13))]


def test_begin_and_end_are_records_if_they_shall_be_published() -> None:
    source = fresh(published=True)
    events = list(source.feed(batch(begin("1", 10), change("1", 11), end("1", 12)), 0))
    assert kinds(events) == "BrrrC"
    assert [event.ordinal for event in events if isinstance(event, Record)] == [0, 1, 2]
    assert events[-1] == Commit(3)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """A transaction that is too large to be held, behind a small one."""
    monkeypatch.setattr(transactions, "HELD_BYTES", 2_000)
    body = [change("2", 20 + number, b"x" * 500) for number in range(1, 7)]
    return [begin("2", 20), *body, end("2", 30)]


def test_a_large_transaction_is_not_held_and_names_itself(large: list[Sent]) -> None:
    source = fresh()
    list(source.feed(batch(begin("1", 10), change("1", 11), end("1", 13)), 0))
    first = list(source.feed(batch(*large[:4]), 0))
    assert kinds(first) == "Brrr"
    assert first[0].at == {**position(13), "transaction": "2"}
    # Whoever has seen all of it stands behind it; until then its log_position is that in front of
    # it.
    assert list(source.feed(batch(*large[4:]), 0))[-2:] == [
        Commit(7),
        PositionAdvanced(position(30)),
    ]


@pytest.mark.parametrize("has", [1, 2, 4, 6])
def test_a_large_transaction_goes_on_in_the_middle(large: list[Sent], has: int) -> None:
    after = SourcePosition({**position(13), "transaction": "2"}, has)
    events = list(fresh(after).feed(batch(*large), 0))
    records = [event for event in events if isinstance(event, Record)]
    assert [record.ordinal for record in records] == list(range(has, 7))
    assert Commit(7) in events


def test_a_large_transaction_that_was_whole_is_left_out(large: list[Sent]) -> None:
    after = SourcePosition({**position(13), "transaction": "2"})
    following = [begin("3", 40), change("3", 41), end("3", 42)]
    events = list(fresh(after).feed(batch(*large, *following), 0))
    assert kinds(events) == "PBrC"
    assert events[0] == PositionAdvanced(position(30))
    assert events[1].id == "3"


def test_one_that_was_not_whole_and_is_not_sent_again_is_an_error() -> None:
    after = SourcePosition({**position(13), "transaction": "2"}, 3)
    with pytest.raises(PositionLost, match="transaction 2"):
        list(fresh(after).feed(batch(begin("3", 40)), 0))


def test_the_first_transaction_of_all_can_be_large(large: list[Sent]) -> None:
    events = list(fresh().feed(batch(*large), 0))
    # There is nothing in front of it to begin at, but its own BEGIN.
    assert events[0].at["offsets"] == [[PARTITION, large[0].offset]]
    assert events[-1] == PositionAdvanced(position(30))


def test_positions_hold_all_databases_of_a_connector() -> None:
    source = fresh()
    other = [begin("9", 1), change("9", 2), end("9", 3)]
    for record in other:
        record.partition = "other"
    list(source.feed(batch(begin("1", 10), change("1", 11), end("1", 13)), 0))
    events = list(source.feed(batch(*other), 0))
    assert events[0].at["offsets"] == [
        [PARTITION, {"lsn": 13}],
        [{"server": "other"}, {"lsn": 3}],
    ]


def test_without_a_promise_of_an_end_silence_is_one() -> None:
    source = fresh(ended=False)
    assert list(source.feed(batch(begin("1", 10), change("1", 11)), 100.0)) == []
    assert list(source.feed(batch(), 100.0 + QUIET_S / 2)) == []
    assert kinds(list(source.feed(batch(), 100.0 + QUIET_S * 2))) == "BrC"


def test_a_record_that_a_transform_dropped_has_its_ordinal() -> None:
    sent = [begin("1", 10), change("1", 11), change("1", 12), end("1", 13)]
    dropped = Batch(sent, ["legacy.transaction", None, "legacy.public.t", "legacy.transaction"],
                    [b"k"] * 4, [b"v"] * 4)  # fmt: skip
    events = list(fresh().feed(dropped, 0))
    assert [event.ordinal for event in events if isinstance(event, Record)] == [2]
    assert events[-1] == Commit(3)
