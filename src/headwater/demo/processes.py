"""The demo's child processes: started again when they are killed, never left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headwater.supervisor import parent_death

_PAUSE_S: Final = 1.0  # before one that has ended is started again


def environment() -> dict[str, str]:
    """Without settings that are meant for other projects."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}


class Process:
    """A Python module, in a directory, with its output in a file there."""

    def __init__(self, directory: Path, log: str, module: str, *arguments: str) -> None:
        self._command = ["-m", module, *arguments]
        self._directory = directory
        self._log = directory / log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        python = [sys.executable, parent_death.__file__, str(os.getpid()), sys.executable]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*python, *self._command],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,  # Ctrl-C is for the demo, which stops them in order
            )
        self._started_s = time.monotonic()

    def keep(self) -> None:
        """Starts it again if it has ended."""
        if self.exit_code is None or time.monotonic() - self._started_s < _PAUSE_S:
            return
        self.restarts += 1
        self.start()

    def stop(self, grace_s: float) -> None:
        """Returns when it has ended. Idempotent."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
            try:
                self._process.wait(grace_s)
                return
            except subprocess.TimeoutExpired:
                continue

    def last_line(self) -> str:
        """What it wrote last."""
        return next(iter(self._lines_backwards()), "")

    def json_line(self) -> Any:
        """The last line that is JSON; None if there is none."""
        for line in self._lines_backwards():
            if line.startswith(("{", "[")):
                with suppress(ValueError):
                    return json.loads(line)
        return None

    def _lines_backwards(self) -> list[str]:
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return text.strip().splitlines()[::-1]
