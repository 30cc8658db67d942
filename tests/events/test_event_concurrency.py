"""Several processes append, and are killed: no event is lost, doubled or gapped."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiers import count, kills

import headwater
from headwater.events import open_store

WRITER = Path(__file__).parents[1] / "support" / "events" / "event_writer.py"
TIMEOUT_S = 400


def start(url: str, writer: int, appends: int) -> subprocess.Popen[str]:
    source = str(Path(headwater.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, str(WRITER), url, str(writer), str(appends)],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


class Watched(threading.Thread):
    """A reader that follows from the beginning: position n + 1 is never seen before n."""

    def __init__(self, url: str, total: int) -> None:
        super().__init__()
        self.url, self.total, self.seen = url, total, []
        self.failure: Exception | None = None
        self.is_over = threading.Event()

    def run(self) -> None:
        try:
            with open_store(self.url) as store, store.subscribe() as subscription:
                while len(self.seen) < self.total and not self.is_over.is_set():
                    self.seen += (event.position for event in subscription.next_batch(1))
        except Exception as error:
            self.failure = error


@pytest.mark.timeout(TIMEOUT_S * 2)
def test_16_writers_in_several_processes_with_kills(url):
    writers, appends = count(quick=8, full=16), count(quick=20, full=300)
    rounds = kills(quick=2, full=40)
    chance = random.Random(7)
    open_store(url).close()
    reader = Watched(url, writers * appends * 2)
    reader.start()
    acknowledged: dict[tuple[int, int], int] = {}
    running = {writer: start(url, writer, appends) for writer in range(writers)}

    def collect(writer: int, process: subprocess.Popen[str]) -> None:
        for line in process.communicate(timeout=TIMEOUT_S)[0].splitlines():
            if len(numbers := line.split()) == 2:  # a killed one may have written half a line
                acknowledged[writer, int(numbers[0])] = int(numbers[1])

    for _ in range(rounds):
        time.sleep(chance.uniform(0.05, 0.5))  # a kill comes at any time
        victim = chance.choice(sorted(running))
        running[victim].kill()
        collect(victim, running[victim])
        running[victim] = start(url, victim, appends)
    for writer, process in running.items():
        collect(writer, process)
        assert process.returncode == 0
    reader.join(TIMEOUT_S)
    reader.is_over.set()
    assert reader.failure is None
    total = writers * appends * 2
    assert reader.seen == list(range(1, total + 1))
    with open_store(url) as store:
        events = list(store.read())
        assert [event.position for event in events] == list(range(1, total + 1))
        assert len({event.id for event in events}) == total
        versions: dict[str, int] = {}
        for event in events:
            assert event.version == versions.get(event.stream, 0) + 1
            versions[event.stream] = event.version
        for writer in range(writers):
            own = [event.data for event in store.read(stream=f"own-{writer}")]
            assert own == list(range(1, appends + 1))
        assert not any(stream.startswith("never-") for stream in versions)
        by_id = {event.id: event.position for event in events}
        assert acknowledged
        for (writer, number), position in acknowledged.items():
            assert by_id[f"{writer}/{number}s"] == position
        times = [event.at_ms for event in events]
        assert times == sorted(times)
