"""The broker dies between two steps of compacting, archiving, deleting, or keeping its catalog.

Clients go on with the next process, and what they know is there.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import SUPPORT
from support.broker.secured import USER, secured_broker
from support.clients.broker_process import BrokerProcess
from support.crash.rights_workload import RightsWorker
from support.crash.steady_client import MECHANISM, SteadyClient, create_topics
from support.crash.workloads import LatestWriter
from support.wire import records_in, wait_until
from test_kill_everything import ARCHIVED, HURRIED, LATEST, LOGIN, NUMBA_CACHE
from test_kill_loop import Writer
from tiers import in_full

from headwater.testing import InProcessBroker

DYING = str(SUPPORT / "crash" / "dying_broker.py")
PATIENCE_S = 60
SECURITY = {
    "authentication": "sasl",
    "sasl_mechanisms": [MECHANISM],
    "super_users": [f"User:{USER}"],
}


class Scene:
    """A broker that will die, and the one after it, at the same address."""

    def __init__(self, path: Path, *moment: str, monkeypatch) -> None:
        self.data_dir, self.archive = path / "data", path / "archive"
        with secured_broker(self.data_dir):
            pass  # there is a user now
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(NUMBA_CACHE))
        settings = {**SECURITY, "archive": f"file://{self.archive}"}
        self._dying = subprocess.Popen(
            [sys.executable, DYING, str(self.data_dir), *moment, json.dumps(settings)],
            stdout=subprocess.PIPE,
        )
        self.address = self._dying.stdout.readline().decode().strip()
        assert self.address, "it died before it was ready"
        self.client = SteadyClient(self.address, secured=True)
        monkeypatch.setenv("HEADWATER_BROKER__AUTHENTICATION", "sasl")
        monkeypatch.setenv("HEADWATER_BROKER__SASL_MECHANISMS", MECHANISM)
        monkeypatch.setenv("HEADWATER_BROKER__SUPER_USERS", USER)
        monkeypatch.setenv("HEADWATER_BROKER__ARCHIVE", settings["archive"])
        self.next = BrokerProcess(self.data_dir, program=HURRIED)
        self.next.address = self.address

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.client.close()
        self._dying.kill()
        self._dying.wait(PATIENCE_S)
        self._dying.stdout.close()
        self.next.stop()

    def live_on(self) -> None:
        """Waits for the death; the next process is ready when this returns."""
        self.wait_for_death()
        self.next.start()

    def wait_for_death(self) -> None:
        assert self._dying.wait(PATIENCE_S) == 137


SEGMENT = r"latest-0/\d+"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "pattern", "moment"),
    [
        ("rename", SEGMENT + r"\.swap\.tmp$", "after"),  # from here on it will happen
        ("unlink", SEGMENT + r"\.log$", "before"),  # of the segments that were merged
        *in_full(
            ("link", SEGMENT + r"\.log$", "before"),  # nothing has begun
            ("rename", SEGMENT + r"\.cleaned\.log$", "after"),  # a new log, an old index
            ("unlink", SEGMENT + r"\.swap$", "before"),
        ),
    ],
)
def test_while_segments_are_swapped(tmp_path, monkeypatch, method, pattern, moment):
    with Scene(tmp_path, method, pattern, "2", moment, monkeypatch=monkeypatch) as scene:
        create_topics(scene.client, {"latest": LATEST})
        writer = LatestWriter(scene.address, "writer", 1)
        writer.start()
        scene.wait_for_death()
        broker = InProcessBroker(str(scene.data_dir))  # which compacts nothing so soon
        broker.start()
        broker.crash()
        _check_segments(scene.data_dir / "latest-0")
        scene.live_on()
        _goes_on(writer)
        with writer.turn:
            writer.check(scene.client)
        _is_compacted_on(scene)
        _end(writer)
        writer.check(scene.client)


def _check_segments(directory: Path) -> None:
    """All old or all new: no offset is in two of them, and nothing is left of the swap."""
    names = sorted(path.name for path in directory.iterdir())
    assert not [n for n in names if "swap" in n or "cleaned" in n or "deleted" in n]
    logs = [directory / name for name in names if name.endswith(".log")]
    for log, following in itertools.pairwise(logs):
        offsets = [record.offset for record in records_in(log.read_bytes())]
        assert offsets == sorted(set(offsets))
        assert not offsets or offsets[-1] < int(following.stem)


def _is_compacted_on(scene: Scene) -> None:
    """The next process compacts, too: nothing of the interrupted swap is in its way."""
    log = scene.data_dir.with_suffix(".log")
    wait_until(lambda: "latest-0 is clean up to" in log.read_text(), PATIENCE_S)


def _goes_on(writer) -> None:
    steps = writer.steps
    wait_until(lambda: writer.failure or writer.steps > steps + 5, PATIENCE_S)
    assert not writer.failure, writer.failure


def _end(writer) -> None:
    writer.over.set()
    writer.join(PATIENCE_S)
    assert not writer.failure, writer.failure


@pytest.mark.parametrize(
    ("method", "moment"),
    [
        ("pwrite", "half"),
        ("fdatasync", "after"),
        *in_full(("pwrite", "before"), ("pwrite", "after")),
    ],
)
def test_while_rights_change(tmp_path, monkeypatch, method, moment):
    where = (method, r"catalog\.jsonl$", "7", moment)
    with Scene(tmp_path, *where, monkeypatch=monkeypatch) as scene:
        worker = RightsWorker(scene.address, "rights", 1)
        worker.start()
        scene.live_on()
        _goes_on(worker)
        _end(worker)
        worker.check(scene.client, USER)


# ── the archive ───────────────────────────────────────────────────────────────────────────────

HERE, THERE = r"archived-0/\d+", r"/archive/.*/\d+"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "pattern", "moment"),
    [
        ("rename", THERE + r"\.log\.tmp$", "after"),  # there are some objects
        ("unlink", HERE + r"\.log$", "before"),  # local files go
        ("unlink", THERE + r"\.archived$", "after"),  # the archive's go
        *in_full(
            ("rename", HERE + r"\.archiving\.tmp$", "after"),  # there may be objects
            ("rename", THERE + r"\.archived\.tmp$", "after"),  # described there, not here
            ("rename", HERE + r"\.archived\.tmp$", "after"),
            ("rename", HERE + r"\.archived$", "after"),  # the archive's shall go
            ("unlink", THERE + r"\.log$", "after"),
            ("unlink", HERE + r"\.archived\.deleted$", "before"),
        ),
    ],
)
def test_while_segments_are_archived(tmp_path, monkeypatch, method, pattern, moment):
    with Scene(tmp_path, method, pattern, "3", moment, monkeypatch=monkeypatch) as scene:
        create_topics(scene.client, {"archived": {**ARCHIVED, "retention.bytes": 60_000}})
        writer = Writer(
            scene.address, "writer", "archived", **{"enable.idempotence": True}, **LOGIN
        )
        writer.start()
        scene.live_on()
        written = len(writer.acknowledged)
        wait_until(lambda: len(writer.acknowledged) > written + 500, PATIENCE_S)
        writer.over.set()
        writer.join(PATIENCE_S)
        assert writer.errors == []
        wait_until(lambda: _objects(scene) == _described(scene), PATIENCE_S, "no object is left")
        _check_archived(scene, writer)


def _check_archived(scene: Scene, writer: Writer) -> None:
    """All from the log's start on is there."""
    start = _log_start(scene, writer)
    try:
        found = scene.client.all_committed("archived", start)
    except AssertionError:
        if start == _log_start(scene, writer):
            raise
        _check_archived(scene, writer)  # retention was faster
        return
    stored = {(0, record.offset): (record.key, record.value) for record in found}
    assert stored == {place: r for place, r in writer.acknowledged.items() if place[1] >= start}


def _log_start(scene: Scene, writer: Writer) -> int:
    end = len(writer.acknowledged)
    return scene.client._fetched("archived", end).log_start_offset


def _objects(scene: Scene) -> set[str]:
    """The segments of which the archive holds anything."""
    return {path.name.partition(".")[0] for path in scene.archive.rglob("0*") if path.is_file()}


def _described(scene: Scene) -> set[str]:
    """The segments that count as archived."""
    return {path.stem for path in (scene.data_dir / "archived-0").glob("*.archived")}
