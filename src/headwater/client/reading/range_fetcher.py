"""Fetches one offset range of a partition to its end, through lost connections and new leaders.

While a response is being decoded the next one is requested, so at most two are in memory, and the
broker reads while we compute. A response that is lost is requested again, from the offset behind
the last batch that has arrived whole, from the broker that leads the partition then.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from headwater.client.cluster import LOST, RETRIABLE, Cluster, Patience
from headwater.client.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    UNCOMMITTED,
    check_partition,
    list_offsets,
)
from headwater.client.reading.fetched import Fetched, counting_batches, one_partition, refuse
from headwater.client.refusals import error_name, reason_of
from headwater.errors import BrokerUnreachable, DataLost
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestDescribeConfigsResource,
    DescribeConfigsResponse,
)
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponsePartitionData,
)

if TYPE_CHECKING:
    from headwater.client.connection import Connection

_MAX_WAIT_MS: Final = 500
_MAX_BYTES: Final = 8 << 20  # of one response; a batch that is larger comes alone (KIP-74)
_MIN_BYTES: Final = 64 << 10
_FIRST_GUESS_BYTES: Final = 256  # per offset
_TOPIC: Final = 2  # kind of resource


class RangeFetcher:
    """The batches with the offsets from `start` to `end` (exclusive), and perhaps around them."""

    def __init__(
        self, cluster: Cluster, topic: str, partition: int, start: int, end: int, isolation: int
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._name = f"{topic}-{partition}"
        self._at = start
        self._end = end
        self._isolation = isolation
        self._bytes_per_offset: float = _FIRST_GUESS_BYTES
        self._least_bytes = _MIN_BYTES
        self._connection: Connection | None = None  # to the leader, used by nothing else
        self._is_requested = False  # the range from `_at` on

    def fetch(self) -> Iterator[Fetched]:
        """In order, each batch once. Ends when the log has passed `end`, with or without a record
        there. Raises DataLost if the log no longer has, or never had, a part of the range,
        MalformedMessage if it holds what are no batches, BrokerUnreachable if there is nothing new
        for as long as the cluster's patience is.
        """
        patience = self._cluster.patience(f"{self._name} cannot be read")
        check_partition(self._cluster, self._topic, self._partition)
        try:
            while self._at < self._end:
                data = self._response(patience)
                fetched, behind = counting_batches(
                    data,
                    self._at,
                    end=self._end,
                    committed=self._isolation == COMMITTED,
                    name=self._name,
                )
                if behind > self._at:
                    patience.progressed()
                    self._bytes_per_offset = len(fetched.data) / (behind - self._at)
                    self._at = behind
                    if behind < self._end:
                        self._request_ahead()
                    yield fetched
                elif data.records:  # a part of a batch: brokers before KIP-74 send no more
                    self._least_bytes = min(self._least_bytes * 4, 1 << 27)
                    patience.wait(f"the batch at offset {self._at} does not come whole")
                elif self._is_hole(data):
                    return
                else:
                    self._wait(data, patience)
        finally:
            self._release()

    # Requests

    def _response(self, patience: Patience) -> FetchResponsePartitionData:
        while True:
            try:
                if not self._is_requested:
                    self._request()
                assert self._connection is not None
                answer: FetchResponse = self._connection.receive()
                self._is_requested = False
                if answer.throttle_time_ms > 0 and not answer.responses:
                    patience.wait("the broker's quota for reading is used up")
                    continue
                data = one_partition(answer)
            except LOST as error:
                self._lose()
                reason = reason_of(error)
            else:
                code = answer.error_code or data.error_code
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._refuse_lost()
                elif code not in RETRIABLE:
                    refuse(code, self._topic)
                    return data
                reason = error_name(code)
                self._release()  # another broker may lead
            patience.wait(f"{self._name}: {reason}")
            self._cluster.refresh([self._topic])

    def _request(self) -> None:
        """Raises what LOST has."""
        if self._connection is None:
            address = self._cluster.leader(self._topic, self._partition)
            if address is None:
                raise ConnectionError("the partition has no leader")
            self._connection = self._cluster.borrow(address)
        # Little more than what is left of the range: a short one does not cost a long response.
        guess_bytes = int((self._end - self._at) * self._bytes_per_offset)
        size_bytes = max(min(guess_bytes, _MAX_BYTES), self._least_bytes)
        wanted = FetchRequestFetchPartition(
            partition=self._partition, fetch_offset=self._at, partition_max_bytes=size_bytes
        )
        request = FetchRequest(
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=size_bytes,
            isolation_level=self._isolation,
            topics=[FetchRequestFetchTopic(topic=self._topic, partitions=[wanted])],
        )
        version = self._connection.version(FetchRequest, 4, 12)
        self._connection.send(request, FetchResponse, version)
        self._is_requested = True

    def _request_ahead(self) -> None:
        try:
            self._request()
        except LOST:  # what has arrived is good; the next response will be requested again
            self._lose()

    def _lose(self) -> None:
        if self._connection is not None:
            self._cluster.lose(self._connection)
        self._connection = None
        self._is_requested = False

    def _release(self) -> None:
        if self._connection is not None and not self._is_requested:
            self._cluster.give_back(self._connection)
            self._connection = None
        self._lose()

    # Empty responses

    def _is_hole(self, data: FetchResponsePartitionData) -> bool:
        """Whether compaction has left nothing up to `end`, which lies at the end of the log.

        The only other reason for an empty response is a fetch from an archive that is under way,
        and compacted topics are in none (KIP-405).
        """
        return self._readable_end(data) >= self._end and self._is_compacted()

    def _readable_end(self, data: FetchResponsePartitionData) -> int:
        is_committed = self._isolation == COMMITTED
        return data.last_stable_offset if is_committed else data.high_watermark

    def _is_compacted(self) -> bool:
        resource = DescribeConfigsRequestDescribeConfigsResource(
            resource_type=_TOPIC, resource_name=self._topic, configuration_keys=["cleanup.policy"]
        )
        answer = self._cluster.ask_any(
            DescribeConfigsRequest(resources=[resource]),
            DescribeConfigsResponse,
            self._cluster.patience(f"the settings of topic {self._topic} cannot be read"),
            first=1,
            last=4,
        )
        return any(
            "compact" in (config.value or "")
            for result in answer.results
            for config in result.configs
        )

    def _wait(self, data: FetchResponsePartitionData, patience: Patience) -> None:
        try:
            patience.wait(f"nothing has come behind offset {self._at} of {self._end}")
        except BrokerUnreachable:
            if data.high_watermark < self._end:
                self._refuse_lost(data.high_watermark)
            raise

    def _refuse_lost(self, end: int | None = None) -> None:
        """Raises DataLost unless the offset is there; then it was a leader that had just begun."""
        partition = (self._topic, self._partition)
        first = list_offsets(self._cluster, [partition], EARLIEST, UNCOMMITTED)[partition]
        if end is None:
            end = list_offsets(self._cluster, [partition], LATEST, UNCOMMITTED)[partition]
            if first <= self._at <= end:
                return
        raise DataLost(self._topic, self._partition, self._at, first, end)
