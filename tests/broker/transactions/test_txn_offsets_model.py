"""Offsets, plain and in transactions, beside a model of them: what a group has committed, and what
is pending, is the same whatever happens to `__consumer_offsets` meanwhile.
"""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from support.broker.txn_harness import Producer, TransactionCluster
from support.log.compaction_harness import cleaning

from headwater.broker.broker import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headwater.log.compaction.compactor import CompactionLimits, Compactor
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

GROUPS = ("g", "h")
PRODUCERS = 3
STEPS = 60
KEY = ("t", 0)


class Model:
    """The offsets count up, so that the one further back in the log is the larger one."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.deleted_at = dict.fromkeys(GROUPS, 0)
        self.open: list[list[tuple[str, int]]] = [[] for _ in range(PRODUCERS)]

    def commit(self, group: str, offset: int) -> None:
        if offset > self.deleted_at[group]:
            self.committed[group] = max(offset, self.committed.get(group, -1))

    def end(self, producer: int, *, commit: bool) -> None:
        for group, offset in self.open[producer] if commit else ():
            self.commit(group, offset)
        self.open[producer] = []

    def delete(self, group: str, offset: int) -> None:
        self.committed.pop(group, None)
        self.deleted_at[group] = offset

    def expected(self, group: str, *, require_stable: bool) -> int | ErrorCode:
        pending = [offset for commits in self.open for of, offset in commits if of == group]
        if require_stable and any(offset > self.deleted_at[group] for offset in pending):
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        return self.committed.get(group, -1)


def commit_plainly(cluster: TransactionCluster, group: str, offset: int) -> None:
    wanted = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[wanted])]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    assert cluster.ask(request, 8).topics[0].partitions[0].error_code == 0


def compact(cluster: TransactionCluster) -> int:
    """Both coordinators' topics; returns how many bytes went."""

    async def clean(job):
        reports = []
        cleaning.clean(job, cluster.files, reports.append)
        for report in reports:
            yield report

    async def run() -> Compactor:
        for (topic, _), partition in cluster.store.partitions.items():
            if topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) and partition.next_offset:
                sealed = asyncio.get_running_loop().create_future()
                partition.roll(sealed.set_result)
                assert await sealed is None
                partition.config = replace(partition.config, min_cleanable_dirty_ratio=0)
        compactor = Compactor(cluster.store, CompactionLimits(), cleaner=clean)
        await compactor.run()
        return compactor

    numbers = cluster.runner.run(run()).numbers
    assert not numbers.failures
    return numbers.bytes_read - numbers.bytes_written


@pytest.mark.parametrize("seed", range(4))
def test_offsets_over_restarts_and_compaction(tmp_path, seed):
    rng, model = Random(seed), Model()
    cluster = TransactionCluster(tmp_path / "log")
    cluster.topic("t")
    producers = [
        Producer(cluster, f"p{n}", has_kip_890=n != seed % PRODUCERS) for n in range(PRODUCERS)
    ]
    assert [producer.init() for producer in producers] == [0] * PRODUCERS
    compacted_bytes = 0
    for step in range(1, STEPS):
        group, number, chance = rng.choice(GROUPS), rng.randrange(PRODUCERS), rng.random()
        if chance < 0.15:
            commit_plainly(cluster, group, step)
            model.commit(group, step)
        elif chance < 0.5:
            assert producers[number].send_offsets(group, {KEY: step}) == 0
            model.open[number].append((group, step))
        elif chance < 0.7:
            if model.open[number]:
                commit = rng.random() < 0.6
                assert producers[number].end(commit=commit) == 0
                model.end(number, commit=commit)
        elif chance < 0.8:
            compacted_bytes += compact(cluster)
        elif chance < 0.9:
            cluster.restart(crash=rng.random() < 0.5)
        elif cluster.broker.groups.registry.get(group) is not None:
            cluster.runner.run(cluster.broker.groups.deletion.delete(group))
            model.delete(group, step)
        for name in GROUPS:
            for stable in (True, False):
                found = cluster.offsets(name, KEY, require_stable=stable)[KEY]
                assert found == model.expected(name, require_stable=stable), (step, name)
    assert compacted_bytes > 0
    cluster.stop()
    cluster.runner.close()
