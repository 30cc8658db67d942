"""`headwater up --json` as a process, in a project of its own; and what is left of it."""

import json
import os
import queue
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

from bench.peers.ports import free_port
from headwater.supervisor import guard, lock
from support.polling import polled

UP = [sys.executable, "-m", "headwater.cli.main", "up"]
TIMEOUT_S = 240.0


def environment(**more):
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")
    }
    return inherited | more


class Project:
    """A broker on a port that is free, and what else is asked for."""

    def __init__(self, directory: Path, *sections: str) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        broker = f'[broker]\nlisten = "{self.address}"\n[console]\nlisten = "off"'
        self.file.write_text("\n".join((broker, *sections)) + "\n")

    @property
    def file(self) -> Path:
        return self.directory / "headwater.toml"

    @property
    def data_dir(self) -> Path:
        return self.directory / ".headwater"

    @property
    def database(self) -> Path:
        return self.directory / "shop.db"

    def with_capture(self, more: str = "") -> "Project":
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)"
            )
        section = (
            f'[capture.shop]\nsource = "sqlite:///shop.db"\ntables = ["main.orders"]\n{more}\n'
        )
        self.file.write_text(self.file.read_text() + section)
        return self

    def with_pipeline(self, name: str, source: str, more: str = "") -> "Project":
        (self.directory / f"{name}.py").write_text(source)
        section = f'[pipeline.{name}]\nfile = "{name}.py"\n{more}\n'
        self.file.write_text(self.file.read_text() + section)
        return self

    def processes(self) -> list[int]:
        return guard.marked(str(self.data_dir))

    def is_clean(self) -> bool:
        """No process, no lock, no port."""
        return not self.processes() and not lock.is_held(self.data_dir) and is_free(self.address)


def is_free(address: str) -> bool:
    host, port = address.split(":")
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, int(port)))
        except OSError:
            return False
    return True


class Up:
    """A running `headwater up`. Its events are read as they come."""

    def __init__(self, project: Project, command=UP, **settings: str) -> None:
        self.project = project
        self.process = subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=project.directory,
            env=environment(**settings),
        )
        self.events: list[dict] = []
        self._new: queue.Queue[dict] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            self._new.put(event)

    def wait_for(self, **fields) -> dict:
        """The next event that has these."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                event = self._new.get(timeout=max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {fields} among {self.events[-10:]}") from None
            if all(event.get(name) == value for name, value in fields.items()):
                return event

    def wait_ready(self) -> None:
        self.wait_for(event="ready")

    def send(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for its end; returns the exit code."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def stop(self) -> int:
        self.send()
        return self.end()

    def pid_of(self, name: str) -> int | None:
        events = [
            event for event in self.events if event["event"] == "child" and event["name"] == name
        ]
        return events[-1]["pid"] if events else None

    def states_of(self, name: str) -> list[str]:
        found = [
            event for event in self.events if event["event"] == "child" and event["name"] == name
        ]
        return [child["state"] for child in found]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(TIMEOUT_S)
        self.process.stdout.close()
        self.process.stderr.close()


@contextmanager
def running(project: Project, command=UP, **settings: str):
    up = Up(project, command, **settings)
    try:
        yield up
    finally:
        up.close()
        wait_until(lambda: not project.processes(), "the end of all processes")


def wait_until(condition, what: str = "it", timeout_s: float = TIMEOUT_S):
    found = polled(condition, timeout_s, pause_s=0.02)
    assert found, f"{what} did not come within {timeout_s:g} s"
    return found
