"""`headwater pipeline run` as a process, with its JVM and its Python workers, to be killed; and a
producer that goes on meanwhile.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from support.pipelines.project import Project, wait_for

CHILD = Path(__file__).with_name("pipeline_process.py")
MARK = "HEADWATER_TEST_VICTIM"
END_S = 60.0  # until what a killed driver has started must have ended by itself


class Victim:
    """One run. All that it has started is identified by a mark in its environment."""

    def __init__(
        self,
        project: Project,
        *names: str,
        death: dict | None = None,
        most_backlog: int | None = None,
        fewest_staged: int | None = None,
    ) -> None:
        mark = uuid4().hex
        self._mark = f"{MARK}={mark}"
        self.log = project.directory / f"run-{self._mark[-8:]}.log"
        task = {} if death is None else {"how": signal.SIGKILL, **death}
        if most_backlog is not None:
            task["most_backlog"] = most_backlog
        if fewest_staged is not None:
            task["fewest_staged"] = fewest_staged
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(CHILD), str(project.file), json.dumps(task), *names],
                stdout=log, stderr=log, start_new_session=True,
                env=os.environ | {MARK: mark},
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, condition, what: str, timeout_s: float = 240.0) -> None:
        def is_so() -> bool:
            assert self.process.poll() is None, f"it ended by itself: {self.said()[-3000:]}"
            return bool(condition())

        wait_for(is_so, what, timeout_s)

    def wait(self, timeout_s: float = 240.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it lives on: {self.said()[-3000:]}") from None

    def kill(self, *, with_jvm: bool = False) -> None:
        if with_jvm:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def is_stopped(self) -> bool:
        assert self.process.poll() is None, f"it ended by itself: {self.said()[-3000:]}"
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def jvm(self) -> int | None:
        """Its process id."""
        return next((pid for pid in self.alive() if _program(pid) == "java"), None)

    def workers(self) -> list[int]:
        """Processes of Python that Spark has started."""
        return [
            pid
            for pid in self.alive()
            if pid != self.process.pid and _program(pid).startswith("python")
        ]

    def alive(self) -> list[int]:
        """What is still there of all that it has started."""
        mark = self._mark.encode()
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return sorted(found)

    def wait_until_gone(self) -> None:
        """A driver that is killed takes its JVM and its workers along."""
        wait_for(lambda: not self.alive(), f"the end of {self._mark}", END_S)

    def end(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return ""


class Producing:
    """Changes of orders, in pieces, until it is stopped: new ones, updates, deletes."""

    def __init__(self, project: Project, topic: str, pause_s: float = 0.05) -> None:
        self._project = project
        self._topic = topic
        self._pause_s = pause_s
        self._rng = random.Random(1)
        self._stop = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="producing")

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self.some(self._rng.choice([1, 3, 20]))

    def some(self, count: int) -> None:
        self._project.produce(self._topic, *(self._row() for _ in range(count)))

    def _row(self) -> dict:
        self._number += 1
        row = {"id": self._rng.randrange(300)}
        if self._rng.random() < 0.2:
            return row | {"_deleted": True}
        return row | {
            "country": self._rng.choice(["DE", "FR", "PT"]),
            "total": f"{self._rng.randrange(100_000) / 100:.2f}",
            "number": self._number,
        }

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
