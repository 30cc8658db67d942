"""Damage in `__consumer_offsets` costs what it hit, and is reported; nothing else."""

import asyncio
import os

import pytest

from headwater.broker.api import load_all
from headwater.broker.broker import OFFSETS_PARTITIONS, OFFSETS_TOPIC, Broker, BrokerOptions
from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey
from headwater.broker.internal_topics.records import partition_for
from headwater.clock import SystemClock
from headwater.log.disk.data_directory import CLEAN_SHUTDOWN
from headwater.log.store import LogStore
from headwater.protocol.error_codes import ApiError

load_all()
KEY = OffsetKey("orders", 0)


async def opened(path: str) -> Broker:
    store = LogStore(path, SystemClock())
    store.open()
    broker = Broker(store, SystemClock(), BrokerOptions())
    await broker.start()
    async with asyncio.timeout(60):
        while True:
            try:
                broker.groups.registry.verify_ready()
            except ApiError:
                await asyncio.sleep(0.005)
            else:
                return broker


async def commit(broker: Broker, group_id: str, offset: int) -> None:
    await broker.groups.offsets.commit(
        group_id,
        [(KEY, CommittedOffset(offset, committed_at_ms=broker.clock.now_ms()))],
        member_id="",
        instance_id=None,
        generation_or_epoch=-1,
        api_version=8,
    )


@pytest.mark.parametrize("at", [16, 80], ids=["header", "record"])
def test_groups_load_beside_a_damaged_batch(tmp_path, caplog, at: int):
    path = str(tmp_path / "data")
    damaged, other = "g-0", "g-1"
    index = partition_for(damaged, OFFSETS_PARTITIONS)
    assert index != partition_for(other, OFFSETS_PARTITIONS)

    async def fill() -> tuple[str, int]:
        broker = await opened(path)
        await broker.create_topic("orders", 1, {})
        await commit(broker, damaged, 10)
        segment = broker.store.partitions[OFFSETS_TOPIC, index].segments[-1]
        second_batch = segment.size_bytes
        await commit(broker, damaged, 20)
        await commit(broker, other, 30)
        await broker.close()
        return segment.log_path, second_batch

    async def look() -> list[int]:
        broker = await opened(path)
        found = [
            broker.groups.offsets.committed(group_id, *KEY).offset for group_id in (damaged, other)
        ]
        await commit(broker, damaged, 40)
        await broker.close()
        return found

    log_path, second_batch = asyncio.run(fill())
    with open(log_path, "r+b") as file:
        file.seek(second_batch + at)
        byte = file.read(1)
        file.seek(second_batch + at)
        file.write(bytes([byte[0] ^ 0xFF]))
    assert asyncio.run(look()) == [10, 30]
    assert asyncio.run(look()) == [40, 30]
    assert "a segment is out of service" in caplog.text
    assert os.path.exists(f"{path}/{CLEAN_SHUTDOWN}")
