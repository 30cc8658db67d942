"""A process that writes batches into a store, and is killed again and again.

Processes are forked from one that has imported everything and used nothing (delta-rs's threads do
not survive a fork), so that each begins within milliseconds.
"""

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import forkserver

import pyarrow as pa
import pytest

from headwater.settings import Secret
from headwater.sinks.contract import Log, Store, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from support.sinks.sink_rows import batch, table

ID_N = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])


def added(number: int) -> pa.Table:
    """Rows of a batch that are added: some of their own."""
    return table(ID_N, [{"id": number * 10 + at, "v": "x" * at, "n": number} for at in range(5)])


def changed(number: int) -> pa.Table:
    """Rows of a batch that change others: upserts, deletes, now and then all of it."""
    rng = random.Random(number)
    rows = [{"id": rng.randrange(30), "v": "x", "n": number} for _ in range(20)]
    ops = ["d" if rng.random() < 0.3 else "u" for _ in rows]
    if number % 17 == 5:
        rows[3], ops[3] = {}, "t"
    return table(ID_N, rows, ops)


ROWS: dict[str, Callable[[int], pa.Table]] = {"added": added, "changed": changed}


@dataclass(frozen=True)
class Work:
    kind: str
    url: str
    options: dict[str, str]  # of the sink
    target: Target
    log: Log
    rows: str  # of ROWS
    batches: int = 1_000_000

    def store(self) -> Store:
        settings = SinkSettings("s", kind=self.kind, url=Secret(self.url), options=self.options)
        return store_of(settings, self.target, self.log)


def write(work: Work, on_applied: Callable[[], None]) -> None:
    """All batches behind the store's position."""
    store = work.store()
    with store.writer(1, ID_N) as writer:
        first = 0 if writer.position is None else writer.position.batch + 1
        for number in range(first, work.batches):
            made = batch(number, ROWS[work.rows](number))
            if number % 3 == 1 and writer.position is not None:  # Spark runs one again
                writer.apply(batch(number - 1, ROWS[work.rows](number - 1)))
            writer.apply(made)
            on_applied()
    store.close()


def write_and_be_killed(work: Work, kills: int, seed: int = 1) -> int:
    """Kills that many writers, then lets one write ten batches more. Every second one is killed at
    a random moment of its first steps, the others a moment behind one of their batches. Returns how
    many batches there are.
    """
    context = _forkserver()
    rng = random.Random(seed)
    for kill in range(kills):
        process, progress = _start(context, work)
        if kill % 2:
            time.sleep(rng.uniform(0.02, 0.15))
        else:
            for _ in range(rng.randint(1, 3)):
                assert progress.poll(30), "it does not get on"
                progress.recv()
            time.sleep(rng.uniform(0, 0.04))
        assert process.exitcode is None, "it failed by itself"
        process.kill()
        _end(process, progress)
    with closing(work.store()) as store:
        stored = [version.position for version in store.versions()]
    batches = 10 + max((position.batch + 1 for position in stored if position), default=0)
    process, progress = _start(context, replace(work, batches=batches))
    process.join(60)
    assert process.exitcode == 0
    _end(process, progress)
    return batches


def _forkserver():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.sinks.kill_preload"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # it has no other way to learn it
        forkserver.ensure_running()
    return context


def _start(context, work: Work):
    progress, reports = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, list(sys.path), reports))
    process.start()
    reports.close()
    return process, progress


def _end(process, progress) -> None:
    process.join()
    process.close()
    progress.close()


def _run(work: Work, path: list[str], reports) -> None:
    sys.path[:] = path
    write(work, lambda: reports.send(None))
