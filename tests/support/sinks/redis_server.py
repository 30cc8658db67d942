"""A real Redis for tests: Debian's binary, on a free port, in a directory of its own."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bench.peers.ports import free_port

START_TIMEOUT_S = 60
PASSWORD = "secret"


class RedisServer:
    """Every write is on disk before it is acknowledged, unless `settings` say otherwise."""

    def __init__(self, directory: Path, **settings: str) -> None:
        if _binary() is None:
            pytest.skip("redis-server is missing: apt-get install redis-tools")
        directory.mkdir(exist_ok=True)
        self.port = free_port()
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        given = {
            "port": str(self.port), "bind": "127.0.0.1", "dir": str(directory),
            "requirepass": PASSWORD, "appendonly": "yes", "appendfsync": "always", "save": "",
            "logfile": str(directory / "redis.log"), "daemonize": "no",
        } | settings  # fmt: skip
        self._command = ["redis-server"]
        for name, value in given.items():
            self._command += [f"--{name.replace('_', '-')}", value]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._child = subprocess.Popen(
            self._command, executable=_binary(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._child.poll() is None, "redis-server ended"
            try:
                with self.client() as client:
                    client.ping()
                return
            except (redis.ConnectionError, redis.TimeoutError):
                assert time.monotonic() < deadline_s
                time.sleep(0.01)

    def kill(self) -> None:
        """As a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


def _binary() -> str | None:
    """Debian has the server as redis-check-rdb too, in a package that starts no service; it is what
    it is called as.
    """
    return shutil.which("redis-server") or shutil.which("redis-check-rdb")
