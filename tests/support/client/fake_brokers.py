"""Two brokers that answer as a test says: one partition, whose leader may change."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
)
from headwater.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResponseDescribeConfigsResourceResult,
    DescribeConfigsResponseDescribeConfigsResult,
)
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headwater.protocol.primitives import Reader
from headwater.protocol.records import Record, build_batch, read_header
from headwater.protocol.schema import Message

TOPIC = "t"
SERVED = (
    ApiVersionsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
)


class Cut(Exception):
    """Ends the connection instead of an answer."""


class FakeCluster:
    """`on_fetch` may change an answer, or raise Cut; `fetches` are the offsets asked for."""

    def __init__(self, batches: int = 30, records: int = 10, value_bytes: int = 1000) -> None:
        self.log = [
            bytes(
                build_batch(
                    [Record(0, 5, None, b"%d " % n * (value_bytes // 3)) for n in range(records)],
                    base_offset=number * records,
                )
            )
            for number in range(batches)
        ]
        self.start = 0
        self.end = batches * records
        self.leader = 0
        self.fetches: list[int] = []
        self.cleanup_policy = "delete"
        self.limit_bytes = 50_000
        self.on_fetch: Callable[[FetchResponsePartitionData], None] = lambda data: None
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self._peers: list[socket.socket] = []
        self._threads = [
            threading.Thread(target=self._accept, args=(node,), daemon=True) for node in range(2)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listeners[0].getsockname()[1]}"

    def stop(self) -> None:
        for opened in [*self._listeners, *self._peers]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        for thread in self._threads:
            thread.join()

    def _accept(self, node: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listeners[node].accept()
                self._peers.append(peer)
                thread = threading.Thread(target=self._serve, args=(node, peer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, node: int, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as requests, contextlib.suppress(OSError, Cut):
            while size := requests.read(4):
                reader = Reader(requests.read(*struct.unpack(">i", size)))
                key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
                reader.string()
                kind = next(request for request in SERVED if request.api_key == key)
                if version >= kind.flexible:
                    reader.skip_tagged_fields()
                answer = self._answer(node, kind.read(reader, version))
                tags = version >= kind.flexible and kind is not ApiVersionsRequest
                body = struct.pack(">i", correlation_id) + bytes(tags) + answer.encode(version)
                peer.sendall(struct.pack(">i", len(body)) + body)

    def _answer(self, node: int, request: Message) -> Message:
        if isinstance(request, FetchRequest):
            return self._fetch(node, request)
        if isinstance(request, ListOffsetsRequest):
            asked = request.topics[0].partitions[0].timestamp
            result = ListOffsetsResponseListOffsetsPartitionResponse(
                offset=self.start if asked == -2 else self.end
            )
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsResponseListOffsetsTopicResponse(name=TOPIC, partitions=[result])
                ]
            )
        if isinstance(request, MetadataRequest):
            ports = [listener.getsockname()[1] for listener in self._listeners]
            return MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=n, host="127.0.0.1", port=port)
                    for n, port in enumerate(ports)
                ],
                topics=[
                    MetadataResponseTopic(
                        name=TOPIC, partitions=[MetadataResponsePartition(leader_id=self.leader)]
                    )
                ],
            )
        if isinstance(request, DescribeConfigsRequest):
            config = DescribeConfigsResponseDescribeConfigsResourceResult(
                name="cleanup.policy", value=self.cleanup_policy
            )
            return DescribeConfigsResponse(
                results=[DescribeConfigsResponseDescribeConfigsResult(configs=[config])]
            )
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponseApiVersion(key=request.api_key, min_version=0, max_version=12)
                for request in SERVED
            ]
        )

    def _fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        wanted = request.topics[0].partitions[0]
        self.fetches.append(wanted.fetch_offset)
        data = FetchResponsePartitionData(
            high_watermark=self.end, last_stable_offset=self.end, log_start_offset=self.start
        )
        if node != self.leader:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not self.start <= wanted.fetch_offset <= self.end:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            found = [
                batch for batch in self.log if read_header(batch).last_offset >= wanted.fetch_offset
            ]
            # Cut in the middle of a batch, as brokers before KIP-74 did.
            data.records = b"".join(found)[: min(wanted.partition_max_bytes, self.limit_bytes)]
        answer = FetchResponse(
            responses=[FetchResponseFetchableTopicResponse(topic=TOPIC, partitions=[data])]
        )
        self.on_fetch(data)
        if data.partition_index < 0:  # throttled
            return FetchResponse(throttle_time_ms=5)
        return answer


@contextmanager
def fake_cluster(**options: int) -> Iterator[FakeCluster]:
    cluster = FakeCluster(**options)
    try:
        yield cluster
    finally:
        cluster.stop()
