"""Kills of who writes to a store, at random and at every step of `apply`, and of its server.

A store plugs in beside its contract, in tests/sinks/<store>/test_<store>_kills.py:

    class TestPostgresKills(KillContract):
        drivers = ("psycopg2",)                  # what its module calls: a step is such a call

        @pytest.fixture
        def backend(self, …): return Postgres(…)   # the same as the contract's
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tiers import count, kills, representative

from headwater.sinks.contract import Store, Target
from support.sinks.sink_contract import Backend
from support.sinks.sink_process import FENCED, FEW, FIELDS, MANY, Checkpoint, made_batch
from support.sinks.sink_rows import applied_to, comparable, contents, position

RANDOM_KILLS = kills(quick=2, full=100)
SERVER_KILLS = count(quick=1, full=10)
TIMEOUT_S = 60
NEVER = 1_000_000
BATCHES = 8  # among so many in a row there are all kinds


class Drivers:
    """Starts the processes that are killed, one at a time."""

    def __init__(self, backend: Backend, modules: tuple[str, ...], folder: Path) -> None:
        self.backend = backend
        self.name = "killed"
        self._modules = modules
        self._path = folder / "checkpoint.json"
        self._log = (folder / "stderr").open("w+")
        child = str(Path(__file__).with_name("sink_process.py"))
        self._parent = subprocess.Popen(
            [sys.executable, child, backend.settings.kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self._path)

    @property
    def steps(self) -> int:
        """Of the last `apply` that came to its end."""
        return int(self._path.with_suffix(".steps").read_text())

    def start(
        self,
        batches: int,
        *,
        die_in: str | None = None,
        die_at: int | None = None,
        how: int = signal.SIGKILL,
    ) -> int:
        """The process's id. It ends by itself after so many batches more."""
        settings = self.backend.settings
        task: dict[str, Any] = {
            "kind": settings.kind, "url": settings.url.reveal() if settings.url else None,
            "options": dict(settings.options), "bootstrap": self.backend.log.bootstrap,
            "name": self.name, "has_keys": self.backend.has_keys, "checkpoint": str(self._path),
            "until": self.checkpoint.committed + 1 + batches, "die_at": die_at, "how": how,
            "drivers": self._modules, "die_in": die_in, "is_staged": self.backend.is_staged,
        }  # fmt: skip
        self._parent.stdin.write(json.dumps(task) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def wait(self) -> int:
        """How it ended."""
        return int(self._parent.stdout.readline())

    def said(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-3000:]

    def close(self) -> None:
        self._parent.stdin.close()
        self._parent.wait(TIMEOUT_S)
        self._parent.stdout.close()
        self._log.close()


class Model:
    """What the store has to have at each position."""

    def __init__(self, *, has_keys: bool) -> None:
        self._has_keys = has_keys
        self._at = -1
        self._state: dict[Any, dict[str, Any]] = {}

    def rows(self, number: int) -> list[dict[str, Any]]:
        """Behind the batch of that number; numbers are asked for in their order."""
        assert number >= self._at, "the store went back"
        while self._at < number:
            self._at += 1
            batch = made_batch(self._at, has_keys=self._has_keys)
            applied_to(self._state, batch.rows, ("id",))
        return comparable(self._state.values())


class KillContract:
    """Subclass it with a fixture `backend`, see above."""

    drivers: tuple[str, ...]
    has_all_of_it = False  # in the quick tier; see conftest.py
    # For small batches, and for large ones: at all steps, or so many of them.
    chosen_kills = count(quick=5, full=30)

    @pytest.fixture
    def killing(self, backend: Backend, tmp_path: Path) -> Iterator[Drivers]:
        drivers = Drivers(backend, self.drivers, tmp_path)
        yield drivers
        drivers.close()

    @pytest.fixture
    def store(self, backend: Backend) -> Iterator[Store]:
        target = Target("kills", "killed", ("id",) if backend.has_keys else ())
        with closing(backend.store(target)) as store:
            yield store

    def _check(self, store: Store, model: Model, killing: Drivers) -> None:
        """The store is at one of two positions, and has what belongs to it."""
        found = store.versions()
        if not found:
            assert killing.checkpoint.committed == -1
            return
        at, rows = contents(store)
        number = -1 if at is None else at.batch
        assert killing.checkpoint.committed <= number <= killing.checkpoint.intended
        assert at is None or at == position(number)
        assert comparable(rows.to_pylist()) == model.rows(number)

    @representative
    @pytest.mark.parametrize("die_in", [FEW, MANY])
    def test_kills_at_every_step(self, backend, killing, store, die_in):
        """The driver dies in front of a call into the store, or behind it."""
        if backend.is_staged and die_in == FEW:
            pytest.skip("staged batches have the same steps, whatever their size")
        model, dead = Model(has_keys=backend.has_keys), 0
        for step in _spread(self._steps(killing, die_in), self.chosen_kills):
            killing.start(BATCHES, die_in=die_in, die_at=step)
            code = killing.wait()
            assert code in (0, -signal.SIGKILL), killing.said()
            dead += code != 0
            self._check(store, model, killing)
        assert dead, "no step was killed at"
        killing.start(3)
        assert killing.wait() == 0, killing.said()
        assert contents(store)[0] == position(killing.checkpoint.committed)
        self._check(store, model, killing)

    def _steps(self, killing: Drivers, die_in: str) -> int:
        """How many an `apply` has."""
        killing.start(BATCHES, die_in=die_in, die_at=NEVER)
        assert killing.wait() == 0, killing.said()
        assert killing.steps > 0, "no call into the driver was seen"
        return killing.steps

    def test_kills_at_random(self, backend, killing, store):
        model, rng = Model(has_keys=backend.has_keys), random.Random(2)
        killing.start(5)
        assert killing.wait() == 0, killing.said()
        began_s = time.monotonic()
        killing.start(5)
        assert killing.wait() == 0, killing.said()
        typical_s = time.monotonic() - began_s
        for n in range(RANDOM_KILLS):
            victim = killing.start(NEVER)
            time.sleep(rng.uniform(0, typical_s))
            if backend.can_restart and n % max(2, RANDOM_KILLS // SERVER_KILLS) == 1:
                backend.restart()
                time.sleep(rng.uniform(0, typical_s))
            os.kill(victim, signal.SIGKILL)
            assert killing.wait() == -signal.SIGKILL, killing.said()
            self._check(store, model, killing)
        killing.start(3)
        assert killing.wait() == 0, killing.said()
        assert contents(store)[0] == position(killing.checkpoint.committed)
        self._check(store, model, killing)

    def test_a_writer_that_was_stopped_and_wakes_up(self, backend, killing, store):
        """It may hold whatever it likes: its successor takes over, and it writes nothing more."""
        model = Model(has_keys=backend.has_keys)
        steps = self._steps(killing, MANY)
        for step in (1, steps - 1):
            victim = killing.start(NEVER, die_in=MANY, die_at=step, how=signal.SIGSTOP)
            _wait_until_stopped(victim)
            number = killing.checkpoint.intended
            with store.writer(1, FIELDS) as writer:
                for again in range(number, number + 3):
                    writer.apply(made_batch(again, has_keys=backend.has_keys))
                os.kill(victim, signal.SIGCONT)
                assert killing.wait() == FENCED, killing.said()
                writer.apply(made_batch(number + 3, has_keys=backend.has_keys))
            at, rows = contents(store)
            assert at == position(number + 3)
            assert comparable(rows.to_pylist()) == model.rows(number + 3)
            checkpoint = killing.checkpoint
            checkpoint.intended = checkpoint.committed = number + 3
            checkpoint.write()


def _spread(steps: int, most: int) -> list[int]:
    """All of them, or as many as may be, from the first to the last."""
    count = min(steps, most)
    return sorted({round(n * (steps - 1) / max(1, count - 1)) for n in range(count)})


def _wait_until_stopped(process: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
