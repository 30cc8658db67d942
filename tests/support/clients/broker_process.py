"""A broker in its own process that a test may stop, kill and start again at the same address."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.peers.ports import free_port

START_TIMEOUT_S = 60


class BrokerProcess:
    """Runs between `start` and `stop` or `kill`; its log file lies beside the data."""

    def __init__(self, data_dir: Path, *flags: str, program: Sequence[str] = ()) -> None:
        """`program`: what to run in place of the installed `headwater`."""
        self._data_dir = data_dir
        self._flags = flags
        self._program = program or [str(Path(sys.executable).with_name("headwater"))]
        self._log = data_dir.with_suffix(".log")
        self._child: subprocess.Popen[bytes] | None = None
        # Not an ephemeral port, which another process may get while the broker is down.
        self.address = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when clients can connect."""
        where = ["--listen", self.address, "--data-dir", str(self._data_dir)]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self._program, "broker", "--json", *where, *self._flags],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._child.stdout is not None
        ready = self._child.stdout.readline()
        assert ready, f"the broker did not start: {self._log.read_text()[-3000:]}"
        self.address = json.loads(ready)["listen"]

    def stop(self) -> None:
        """SIGTERM: a clean stop."""
        if self._child is not None:
            self._child.terminate()
            assert self._end() == 0, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """SIGKILL: a crash."""
        assert self._child is not None
        self._child.kill()
        self._end()

    def _end(self) -> int:
        assert self._child is not None
        assert self._child.stdout is not None
        code = self._child.wait(START_TIMEOUT_S)
        self._child.stdout.close()
        self._child = None
        return code
