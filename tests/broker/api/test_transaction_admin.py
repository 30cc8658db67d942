"""What administrators see of transactions, and how they end one that hangs."""

import asyncio

import pytest

from headwater.broker.transactions import State
from headwater.broker.transactions.transaction import Transaction
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headwater.protocol.messages.list_transactions import ListTransactionsRequest
from headwater.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersRequestWritableTxnMarkerTopic,
)


def put(asked, transactional_id, **fields) -> Transaction:
    """A transactional id in any state."""

    async def wait() -> None:
        while asked.broker.transactions._refusal is not None:
            await asyncio.sleep(0)

    asked.runner.run(wait())
    fields = {"producer_id": 7, "timeout_ms": 60_000, "updated_ms": 0, "epoch": 3, **fields}
    transaction = Transaction(transactional_id, **fields)
    asked.broker.transactions._by_id[transactional_id] = transaction
    return transaction


class TestList:
    @pytest.fixture(autouse=True)
    def _states(self, asked):
        now_ms = asked.broker.clock.now_ms()
        put(asked, "orders-1", producer_id=1, state=State.ONGOING, started_ms=now_ms - 60_000)
        put(asked, "orders-2", producer_id=2, state=State.COMPLETE_COMMIT, started_ms=now_ms)
        put(asked, "payments", producer_id=3, state=State.PREPARE_ABORT, started_ms=now_ms - 9_000)

    def _ids(self, asked, version=2, **filters):
        answer = asked.ask(ListTransactionsRequest(**filters), version)
        assert answer.error_code == 0
        return {
            state.transactional_id: state.transaction_state for state in answer.transaction_states
        }

    def test_all(self, asked):
        assert self._ids(asked, 0) == {
            "orders-1": "Ongoing",
            "orders-2": "CompleteCommit",
            "payments": "PrepareAbort",
        }

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({"state_filters": ["Ongoing", "Empty"]}, {"orders-1"}),
            ({"producer_id_filters": [2, 3, 99]}, {"orders-2", "payments"}),
            ({"duration_filter": 8_000}, {"orders-1", "payments"}),
            ({"duration_filter": 30_000, "state_filters": ["PrepareAbort"]}, set()),
            ({"transactional_id_pattern": "orders-.*"}, {"orders-1", "orders-2"}),
            ({"transactional_id_pattern": "orders"}, set()),  # the whole name has to match
            ({"transactional_id_pattern": ""}, {"orders-1", "orders-2", "payments"}),
        ],
    )
    def test_some(self, asked, filters, expected):
        assert set(self._ids(asked, **filters)) == expected

    def test_what_is_no_state_and_what_is_no_pattern(self, asked):
        answer = asked.ask(ListTransactionsRequest(state_filters=["Odd", "Ongoing"]), 1)
        assert answer.unknown_state_filters == ["Odd"]
        assert [state.transactional_id for state in answer.transaction_states] == ["orders-1"]
        answer = asked.ask(ListTransactionsRequest(state_filters=["Odd"]), 1)
        assert answer.transaction_states == []
        for pattern in ("((", "(?:){30000000}", "(?:){2000000000}", "x" * 5000):
            answer = asked.ask(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
            assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_describe(asked):
    put(
        asked,
        "payments",
        state=State.ONGOING,
        started_ms=123,
        partitions={("t", 2), ("t", 0), ("u", 1)},
    )
    answer = asked.ask(DescribeTransactionsRequest(transactional_ids=["payments", "none", ""]), 0)
    found, unknown, empty = answer.transaction_states
    assert found.error_code == 0
    assert (found.producer_id, found.producer_epoch, found.transaction_state) == (7, 3, "Ongoing")
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (60_000, 123)
    assert {topic.topic: topic.partitions for topic in found.topics} == {"t": [0, 2], "u": [1]}
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_written_by_hand(asked, version):
    asked.topic("t", 2)
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequestWritableTxnMarker(
                producer_id=5,
                producer_epoch=1,
                transaction_result=False,
                coordinator_epoch=0,
                topics=[
                    WriteTxnMarkersRequestWritableTxnMarkerTopic(
                        name="t", partition_indexes=[0, 1, 2]
                    )
                ],
            )
        ]
    )
    answer = asked.ask(request, version)
    codes = [partition.error_code for partition in answer.markers[0].topics[0].partitions]
    assert codes == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert asked.store.partitions["t", 1].high_watermark == 1
    request.markers[0].producer_epoch = 0  # a zombie's
    answer = asked.ask(request, version)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
