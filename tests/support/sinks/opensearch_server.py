"""A real OpenSearch node for tests, from its jars (bench/opensearch), on free ports."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.peers.ports import free_port
from bench.peers.provision import missing_tools, opensearch_classpath

START_TIMEOUT_S = 90


class OpenSearchServer:
    def __init__(self, directory: Path) -> None:
        if missing := missing_tools("java", "javac", "mvn"):
            pytest.skip(f"needs {', '.join(missing)} on the PATH")
        directory.mkdir(exist_ok=True)
        # In memory where that can be had: it syncs for every request, and no disk is tested here.
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else directory
        self._data = TemporaryDirectory(dir=in_memory)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = directory / "opensearch.out"
        self._command = [
            "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
            "-cp", opensearch_classpath(), "OneNode",
            self._data.name, str(self.port), str(free_port()),
        ]  # fmt: skip
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            assert self._child.poll() is None, self._output.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self._output.read_text()[-3000:]
            time.sleep(0.05)

    def stop(self) -> None:
        self.kill()
        self._data.cleanup()

    def kill(self) -> None:
        """As a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _is_ready(self) -> bool:
        """It answers, and has all shards assigned again."""
        path = "/_cluster/health?wait_for_status=yellow&timeout=5s"
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        except OSError:
            return False


@pytest.fixture(scope="session")
def opensearch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    server = OpenSearchServer(tmp_path_factory.mktemp("opensearch"))
    server.start()
    yield server
    server.stop()
