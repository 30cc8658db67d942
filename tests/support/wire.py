"""A Kafka client of a plain socket, for tests that need to choose every byte."""

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Self

from headwater.protocol import records
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsRequestCreatableTopicConfig,
)
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
)
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.produce import (
    ProduceRequest,
    ProduceRequestPartitionProduceData,
    ProduceRequestTopicProduceData,
)
from headwater.protocol.primitives import Out, Reader, write_string
from headwater.protocol.records import Record
from headwater.protocol.schema import Message
from support.polling import polled

TIMEOUT_S = 60.0


class LoneConnection:
    """For a handler that is called without a connection; `end` is the client going away."""

    def __init__(self, number: int = 0) -> None:
        self.id = number
        self._when_lost = []

    def when_lost(self, callback) -> None:
        self._when_lost.append(callback)

    def end(self) -> None:
        for callback in self._when_lost:
            callback()


def payload(request: Message, version: int, correlation_id: int = 1, client_id="wire") -> bytearray:
    """A request without the size in front."""
    out = Out(struct.pack(">hhi", request.api_key, version, correlation_id))
    write_string(out, client_id)
    if version >= request.flexible:
        out.append(0)
    request.write(out, version)
    return out


def framed(data: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(data)) + data


def response_of(request: type[Message]) -> type[Message]:
    name = request.__name__.removesuffix("Request") + "Response"
    return getattr(sys.modules[request.__module__], name)


class Wire:
    """One connection. Answers are read when the test asks for them, in the order of sending."""

    def __init__(self, address: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self._sent: list[tuple[type[Message], int, int]] = []
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def raw(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def send(self, request: Message, version: int, *, is_answered: bool = True) -> None:
        self._correlation_id += 1
        if is_answered:
            self._sent.append((type(request), version, self._correlation_id))
        self.raw(framed(payload(request, version, self._correlation_id)))

    def receive(self):
        """The answer to the oldest request that has none yet."""
        request, version, correlation_id = self._sent.pop(0)
        reader = Reader(self.receive_frame())
        assert reader.int32() == correlation_id
        response = response_of(request)
        if version >= response.flexible and request is not ApiVersionsRequest:
            reader.skip_tagged_fields()
        answer = response.read(reader, version)
        assert reader.remaining() == 0
        return answer

    def ask(self, request: Message, version: int):
        self.send(request, version)
        return self.receive()

    def receive_frame(self) -> bytes:
        (size_bytes,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size_bytes)

    def _exactly(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            part = self.socket.recv(min(size_bytes - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            data += part
        return bytes(data)

    def is_ended(self) -> bool:
        """Whether the broker ends the connection, without an answer, before the time is over."""
        # Less than the 30 s after which the broker ends a silent connection in any case.
        self.socket.settimeout(min(self.socket.gettimeout() or TIMEOUT_S, 25.0))
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    # ── what most tests need ──────────────────────────────────────────────────────────────────

    def create_topic(self, name: str):
        """With the broker's default number of partitions."""
        answer = self.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
        assert answer.topics[0].error_code == 0
        return answer.topics[0]

    def create_configured(self, name: str, configs: Mapping[str, str], *, partitions=1):
        """The answer for the one topic."""
        answer = self.ask(create_request(name, configs, partitions=partitions), 7)
        return answer.topics[0]

    def produce(self, topic: str, batch: bytes | bytearray, *, partition=0, acks=-1, version=9):
        """The answer for the one partition."""
        answer = self.ask(produce_request(topic, batch, partition=partition, acks=acks), version)
        return answer.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, version=12, **wanted):
        """The answer for partition 0."""
        answer = self.ask(fetch_request(topic, offset, **wanted), version)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]


def batch_of(*values: bytes, timestamp_ms: int | None = None, **fields) -> bytearray:
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return records.build_batch([Record(0, now_ms, None, value) for value in values], **fields)


def create_request(name: str, configs: Mapping[str, str], *, partitions=1) -> CreateTopicsRequest:
    given = [
        CreateTopicsRequestCreatableTopicConfig(name=key, value=value)
        for key, value in configs.items()
    ]
    topic = CreateTopicsRequestCreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=given
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


def produce_request(topic: str, batch, *, partition=0, acks=-1, topic_id=None) -> ProduceRequest:
    named = {"name": topic} if topic_id is None else {"topic_id": topic_id}
    data = ProduceRequestPartitionProduceData(index=partition, records=batch)
    topics = [ProduceRequestTopicProduceData(**named, partition_data=[data])]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def fetch_request(
    topic: str, offset: int, *, partition=0, partition_max_bytes=1 << 20, epoch=-1, **fields
) -> FetchRequest:
    wanted = FetchRequestFetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=epoch,
    )
    topics = [FetchRequestFetchTopic(topic=topic, partitions=[wanted])]
    return FetchRequest(**{"max_bytes": 50 << 20, **fields}, topics=topics)


def records_in(data: bytes | memoryview | None) -> list[Record]:
    """The records of all batches in a fetched answer."""
    found: list[Record] = []
    at = 0
    while data is not None and at < len(data):
        size_bytes = records.read_header(data, at).size_bytes
        found += records.records_of(data[at : at + size_bytes])
        at += size_bytes
    return found


@contextlib.contextmanager
def many(address: str, count: int, **options) -> Iterator[list[Wire]]:
    """That many connections at a time."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(address, **options)) for _ in range(count)]


def wait_until(condition, timeout_s: float = TIMEOUT_S, what: str = "the condition") -> None:
    """Returns as soon as the condition holds; fails when it does not come to hold."""
    assert polled(condition, timeout_s), f"{what} did not come to hold"
