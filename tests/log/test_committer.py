"""Many partitions written at the same moment are synced together."""

import errno

import pytest
from support.log.log_harness import Log, batch_of

from headwater.log.disk.syncing import SYNC_TOGETHER
from headwater.protocol import records
from headwater.testing.files import FaultyFiles

PARTITIONS = 2 * SYNC_TOGETHER


class CountingFiles(FaultyFiles):
    """Counts how many files were synced in each way; the joint way can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []
        self.fails_together = False

    def sync_together(self, root_fd, paths):
        self.together.append(len(paths))
        if self.fails_together:
            raise OSError(errno.EIO, "the disk is away for a moment")
        super().sync_together(root_fd, paths)


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path, files=CountingFiles()) as log:
        log.create(partitions=PARTITIONS)
        yield log


def append_to_all(log, value):
    """One batch to every partition, all at one moment; what became of each."""
    outcomes: list[list] = [[] for _ in range(PARTITIONS)]

    async def begin():
        for index, outcome in enumerate(outcomes):
            batch = batch_of(value)
            header = records.check_produced(memoryview(batch))
            log.partition("t", index).append(memoryview(batch), header, outcome.append)

    log.run(begin())
    log.settle()
    return outcomes


def test_one_sync_serves_many_partitions_and_survives_a_power_cut(log):
    assert append_to_all(log, b"first") == [[None]] * PARTITIONS
    assert append_to_all(log, b"second") == [[None]] * PARTITIONS
    assert sum(log.files.together) >= SYNC_TOGETHER

    log.power_cut(seed=1)
    for index in range(PARTITIONS):
        assert log.partition("t", index).high_watermark == 2


def test_if_the_joint_sync_fails_each_partition_is_synced_by_itself(log):
    append_to_all(log, b"first")
    log.files.fails_together = True
    assert append_to_all(log, b"second") == [[None]] * PARTITIONS
    assert log.files.together

    log.power_cut(seed=2)
    for index in range(PARTITIONS):
        assert log.partition("t", index).high_watermark == 2


def test_a_disk_that_takes_nothing_fails_every_partition_and_loses_nothing(log):
    append_to_all(log, b"first")
    log.files.fail_syncs(count=10_000)
    for outcome in append_to_all(log, b"second"):
        assert str(outcome[0]).startswith("the disk refused a write")
    log.files.repair()
    assert append_to_all(log, b"third") == [[None]] * PARTITIONS
    for index in range(PARTITIONS):
        assert log.partition("t", index).high_watermark == 2
