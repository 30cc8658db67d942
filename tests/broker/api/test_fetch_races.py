"""Fetch, when something happens between two of its steps."""

import asyncio

from support.wire import LoneConnection

from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.network.connection import Connection
from headwater.broker.network.server import Server
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponsePartitionData,
)
from headwater.protocol.primitives import Out
from headwater.protocol.records import Record

VERSION = 12


def wanting(*topics: str, offset: int = 0, min_bytes: int = 1) -> FetchRequest:
    wanted = FetchRequestFetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    return FetchRequest(
        max_bytes=1 << 20,
        min_bytes=min_bytes,
        max_wait_ms=20_000,
        session_epoch=-1,
        topics=[FetchRequestFetchTopic(topic=topic, partitions=[wanted]) for topic in topics],
    )


def begin(asked, request: FetchRequest):
    """What the handler returns: it has looked, and done nothing else."""
    context = RequestContext(VERSION, 1, "test", "127.0.0.1", LoneConnection())
    return APIS[FetchRequest.api_key].handle(asked.broker, request, context)


async def answers(work) -> list[FetchResponsePartitionData]:
    async with asyncio.timeout(60):
        response = await work
    found = [data for topic in response.responses for data in topic.partitions]
    for data in found:
        if data.records:
            data.records.release()
    return found


async def append(asked, topic: str) -> None:
    done = asyncio.Event()
    batch = records.build_batch([Record(0, asked.broker.clock.now_ms(), b"k", b"v")])
    log = asked.store.partitions[topic, 0]
    log.append(memoryview(batch), records.read_header(batch), lambda _: done.set())
    await done.wait()


def test_a_record_that_comes_just_before_the_wait_ends_it(asked):
    asked.topic("t")

    async def check() -> None:
        work = begin(asked, wanting("t"))
        await append(asked, "t")
        (answer,) = await answers(work)
        assert (answer.error_code, answer.high_watermark) == (0, 1)
        assert answer.records

    asked.runner.run(check())


def test_a_topic_deleted_just_before_the_search_is_only_its_own_problem(asked):
    for topic in ("gone", "here"):
        asked.topic(topic)
        asked.append(topic, 3)

    async def check() -> None:
        work = begin(asked, wanting("gone", "here", offset=2))
        await asked.broker.delete_topic("gone")
        gone, here = await answers(work)
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert here.error_code == 0
        assert here.records

    asked.runner.run(check())


class LosingTransport:
    """The socket has failed: `connection_lost` is on its way, but not here yet."""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return True


def test_a_lost_connection_pins_nothing(asked):
    for topic in ("a", "b"):
        asked.topic(topic)
        asked.append(topic, 2)
    segment = asked.store.partitions["a", 0].segments[-1]

    async def check() -> None:
        server = Server(
            asked.broker, max_connections=9, max_request_bytes=1 << 20, max_buffered_bytes=1 << 20
        )
        connection = Connection(server)
        connection.connection_made(LosingTransport())
        frame = Out()
        frame += FetchRequest.api_key.to_bytes(2) + VERSION.to_bytes(2) + bytes(4) + b"\xff\xff\0"
        request = wanting("a", "b", min_bytes=1 << 20)  # it waits, with both pinned
        frame += request.encode(VERSION)
        data = len(frame).to_bytes(4) + frame
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert segment.pins == 0
        assert server.buffered_bytes == 0

    asked.runner.run(check())
