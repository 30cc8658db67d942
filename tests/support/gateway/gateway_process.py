"""A gateway in its own process that a test may kill and start again at the same address."""

import json
import subprocess
import sys

START_TIMEOUT_S = 60


class GatewayProcess:
    def __init__(self, directory, bootstrap):
        self._directory = directory
        self._bootstrap = bootstrap
        self._log = directory / "gateway.log"
        self._child = None
        self.address = "127.0.0.1:0"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self._child is not None:
            self._child.terminate()
            self._end()

    @property
    def url(self):
        return f"http://{self.address}"

    def start(self):
        """Returns when it accepts connections."""
        command = [
            sys.executable, "-m", "headwater.cli.main", "gateway", "--json",
            "--listen", self.address, "-b", self._bootstrap,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=self._directory
            )
        ready = self._child.stdout.readline()
        assert ready, f"the gateway did not start: {self._log.read_text()[-3000:]}"
        self.address = json.loads(ready)["listen"]

    def kill(self):
        """SIGKILL: a crash."""
        self._child.kill()
        self._end()

    def _end(self):
        self._child.wait(START_TIMEOUT_S)
        self._child.stdout.close()
        self._child = None
