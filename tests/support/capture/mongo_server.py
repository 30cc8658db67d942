"""mongo-java-server as a replica set of one (bench/mongo/ReplicaSet.java), as a child process."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from bench.peers.ports import free_port
from bench.peers.provision import missing_tools, mongo_server_classpath

START_TIMEOUT_S = 60


class MongoServer:
    def __init__(self, port: int) -> None:
        self.url = f"mongodb://127.0.0.1:{port}/"
        self.client: MongoClient[dict[str, Any]] = MongoClient(self.url, connect=False)

    def fail(self, *commands: str, code: int | None = None, times: int = 1) -> None:
        """The next of these commands fail with this code, or (without) lose their connection."""
        data = {"failCommands": list(commands), "closeConnection": code is None}
        if code is not None:
            data["errorCode"] = code
        self.client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
        )

    def stop_failing(self) -> None:
        self.client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})

    def forget_history(self) -> None:
        self.client.admin.command({"trimOplog": 1})


@contextmanager
def mongo_server(folder: Path, *arguments: str) -> Iterator[MongoServer]:
    """The server until the block ends; `arguments`: version, "standalone"."""
    if missing := missing_tools("java", "javac", "mvn"):
        pytest.skip(f"needs {', '.join(missing)} on the PATH")
    port = free_port()
    command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
               "-cp", mongo_server_classpath(), "ReplicaSet", str(port), *arguments]  # fmt: skip
    with (folder / "mongo.out").open("ab") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    server = MongoServer(port)
    try:
        _wait_for(port, child, folder / "mongo.out")
        yield server
    finally:
        server.client.close()
        child.kill()
        child.wait()


def _wait_for(port: int, child: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if child.poll() is not None or time.monotonic() > deadline_s:
            raise AssertionError(f"the server did not start:\n{output.read_text()[-3000:]}")
        time.sleep(0.02)


@pytest.fixture(scope="session")
def mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    with mongo_server(tmp_path_factory.mktemp("mongo")) as server:
        yield server


@pytest.fixture(scope="session")
def old_mongo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """Without images and without reads at a cluster time."""
    with mongo_server(tmp_path_factory.mktemp("mongo"), "4.4") as server:
        yield server
