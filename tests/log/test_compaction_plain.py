"""Compaction without numba: the loops in plain Python leave the same bytes as the compiled ones."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from support.log.compaction_harness import CompactedLog

from headwater.log.compaction import cleaning, kernels, plain_loops
from headwater.log.compaction.compactor import Child, CompactionLimits, Compactor
from headwater.protocol.records import TRANSACTIONAL, Record, build_batch

KEYS = [None, b"", b"a", b"b", b"key-c", b"a longer key of some bytes", b"\x00" * 9]
TIMES_MS = (-1, 0, 1_700_000_000_000, 1_700_000_100_000, 2**63 - 1)
DAY_S = 86_400


@contextmanager
def loops(module: ModuleType) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "kernels", module)
        yield


def files_after(path: Path, module: ModuleType, seed: int, slots: int) -> dict[str, bytes]:
    """The partition's files after a random workload with passes in between."""
    rng = Random(seed)
    sequences: dict[int, int] = {}
    with loops(module), CompactedLog(path) as log:
        log.limits = CompactionLimits(memory_bytes=module.BYTES_PER_SLOT * slots)
        log.create(segment_bytes=4096, index_interval_bytes=128, delete_retention_ms=50_000)
        for _ in range(6):
            for _ in range(30):
                rows = [
                    Record(0, rng.choice(TIMES_MS), rng.choice(KEYS), _value(rng))
                    for _ in range(rng.randrange(1, 6))
                ]
                producer = rng.choice([-1, -1, 1, 2])
                if producer < 0:
                    log.append(build_batch(rows, codec=rng.randrange(5)))
                    continue
                sequence = sequences.get(producer, 0)
                sequences[producer] = sequence + len(rows)
                log.append(
                    build_batch(
                        rows,
                        codec=rng.randrange(5),
                        producer_id=producer,
                        producer_epoch=0,
                        base_sequence=sequence,
                        attributes=TRANSACTIONAL,
                    )
                )
                if rng.random() < 0.5:
                    log.end(producer, commit=rng.random() < 0.5)
            for producer in sequences:
                log.end(producer, commit=True)
            log.compact()
            log.check_indexes()
            log.clock.advance(DAY_S)
        directory = Path(log.partition().directory)
        suffixes = (".log", ".index", ".timeindex", ".txnindex")
        return {
            found.name: found.read_bytes()
            for found in sorted(directory.iterdir())
            if found.suffix in suffixes
        }


def _value(rng: Random) -> bytes | None:
    return rng.choice([None, rng.randbytes(rng.randrange(60))])


@pytest.mark.parametrize(("seed", "slots"), [(1, 10_000), (2, 10_000), (3, 4), (4, 4)])
def test_both_leave_the_same_bytes(tmp_path: Path, seed: int, slots: int) -> None:
    compiled = files_after(tmp_path / "compiled", kernels, seed, slots)
    plain = files_after(tmp_path / "plain", plain_loops, seed, slots)
    assert any(name.endswith(".log") for name in compiled)
    assert plain == compiled


def test_a_damaged_segment_is_left_alone(tmp_path: Path) -> None:
    with loops(plain_loops), CompactedLog(tmp_path) as log:
        log.create(segment_bytes=1024)
        for number in range(40):
            log.put((b"key-%d" % (number % 4), b"value" * 20))
        assert log.roll() is None
        damaged = log.partition().segments[1]
        path = Path(log.partition().directory) / f"{damaged.base_offset:020d}.log"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        compactor = log.compact(roll=False)
        assert path.name in compactor.numbers.last_error
        assert path.read_bytes() == data


def test_the_child_compacts_where_numba_is_not_installed(tmp_path: Path) -> None:
    """In a process that cannot import numba or numpy, as in a light installation."""
    with CompactedLog(tmp_path) as log:
        log.create()
        for number in range(20):
            log.put((b"key-%d" % (number % 3), b"%d" % number))
        assert log.roll() is None
        script = tmp_path / "worker.py"
        script.write_text(
            "import sys\n"
            "sys.modules.update(numba=None, numpy=None)\n"
            "from headwater.log.compaction.worker import main\n"
            "main()\n"
        )
        compactor = Compactor(log.store, log.limits)
        child = Child(log.store.path)
        child.command = (sys.executable, "-P", str(script))
        compactor._child, compactor._cleaner = child, child.run
        log.run(compactor.run())
        log.settle()
        assert compactor.numbers.passes == 1, compactor.numbers.last_error
        assert log.pairs() == [(b"key-2", b"17"), (b"key-0", b"18"), (b"key-1", b"19")]
