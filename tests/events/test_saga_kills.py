"""Processes that run a saga are killed at any time: each command happens exactly once."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.events import saga_runner
from tiers import count, kills

import headwater
from headwater.events import open_store

TIMEOUT_S = 300


def start(url: str) -> subprocess.Popen[bytes]:
    source, tests = Path(headwater.__file__).parents[1], Path(__file__).parents[1]
    path = f"{source}:{tests}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, saga_runner.__file__, url], env=environment)


@pytest.mark.timeout(TIMEOUT_S * 2)
def test_commands_of_sagas_and_schedules_happen_once_over_kills(url):
    total = count(quick=150, full=2000)
    chance = random.Random(3)
    expected = {str(number): 1 for number in range(total)}
    with open_store(url, types=saga_runner.types) as store:
        runners = [start(url), start(url)]
        try:
            left = kills(quick=2, full=30)
            for number in range(total):
                store.append(f"order-{number}", [saga_runner.Placed(str(number))])
                if left and number % (total // (left + 1) + 1) == 10:
                    left -= 1
                    time.sleep(chance.uniform(0, 0.3))  # a kill comes at any time
                    victim = chance.randrange(2)
                    runners[victim].kill()
                    runners[victim].wait()
                    runners[victim] = start(url)
            deadline_s = time.monotonic() + TIMEOUT_S
            while store.head() < 3 * total and time.monotonic() < deadline_s:
                assert all(runner.poll() is None for runner in runners)
                time.sleep(0.05)
        finally:
            for runner in runners:
                runner.kill()
                runner.wait()
        for kind in ("Paid", "Reviewed"):
            assert Counter(event.data.order for event in store.read(types=[kind])) == expected
        assert [event.position for event in store.read()] == list(range(1, 3 * total + 1))
        assert store.stats()["scheduled"] == 0
