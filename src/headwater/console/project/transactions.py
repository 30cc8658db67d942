"""The transactional ids of a cluster and what they have under way, asked of every broker."""

import time
from collections.abc import Iterable
from typing import Any, Final

from headwater.client.cluster import LOST, Cluster
from headwater.client.refusals import error_name
from headwater.errors import HeadwaterError, RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from headwater.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_AT_ONCE: Final = 1000  # transactional ids of one request
MOST_DESCRIBED: Final = 5000
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


def read_transactions(cluster: Cluster, addresses: Iterable[str]) -> list[dict[str, Any]]:
    """Those under way first, the oldest at the top. A broker that does not answer is left out.
    Raises RequestRefused if the user may not see them.
    """
    found: list[dict[str, Any]] = []
    for address in addresses:
        try:
            found += _of_broker(cluster, address)
        except RequestRefused:
            raise
        except (HeadwaterError, *LOST):
            continue
    found.sort(key=lambda one: (-(one["open_s"] or -1), one["transactional_id"]))
    return found


def _of_broker(cluster: Cluster, address: str) -> list[dict[str, Any]]:
    connection = cluster.connection(address)
    listed = connection.ask(ListTransactionsRequest(), ListTransactionsResponse, first=0, last=0)
    if listed.error_code:
        raise RequestRefused("transactions cannot be listed", detail=error_name(listed.error_code))
    states = sorted(
        listed.transaction_states, key=lambda state: state.transaction_state not in _OPEN
    )
    found: dict[str, dict[str, Any]] = {
        state.transactional_id: {
            "transactional_id": state.transactional_id,
            "producer_id": state.producer_id,
            "state": state.transaction_state,
            "epoch": None,
            "timeout_s": None,
            "open_s": None,
            "topics": {},
        }
        for state in states
    }
    ids = list(found)[:MOST_DESCRIBED]
    now_ms = time.time() * 1000
    for first in range(0, len(ids), _AT_ONCE):
        request = DescribeTransactionsRequest(transactional_ids=ids[first : first + _AT_ONCE])
        answer = connection.ask(request, DescribeTransactionsResponse, first=0, last=0)
        for state in answer.transaction_states:
            one = found.get(state.transactional_id)
            if one is None or state.error_code != ErrorCode.NONE:
                continue
            is_open = state.transaction_state in _OPEN and state.transaction_start_time_ms > 0
            one |= {
                "state": state.transaction_state,
                "epoch": state.producer_epoch,
                "timeout_s": state.transaction_timeout_ms / 1000,
                "open_s": max(0.0, now_ms - state.transaction_start_time_ms) / 1000
                if is_open
                else None,
                "topics": {topic.topic: list(topic.partitions) for topic in state.topics},
            }
    return list(found.values())
