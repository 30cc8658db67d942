"""A real MariaDB for tests: Debian's binaries, on a free port, in a directory of its own."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from bench.peers.ports import free_port
from support.certificates import Authority

START_TIMEOUT_S = 60
SETTINGS = {
    "log_bin": "binlog",
    "server_id": "11",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "binlog_expire_logs_seconds": "0",
    "sync_binlog": "0",
    "innodb_flush_log_at_trx_commit": "0",
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "32M",
    "innodb_fast_shutdown": "2",
    "performance_schema": "OFF",
    "character_set_server": "utf8mb4",
    "skip_name_resolve": "ON",
}
DATABASES = iter(range(1, 1_000_000))


class MariaDbServer:
    """`root` has no password; each test makes databases of its own."""

    is_mariadb = True

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._command = self._find()
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.data = self.directory / "data"
        self.port = free_port()
        self.ca = Authority(self.directory)
        certificate, key = self.ca.issue("mariadb")
        tls = {"ssl_ca": self.ca.ca, "ssl_cert": certificate, "ssl_key": key}
        self.settings = {**self._own_settings(), **tls, **(settings or {})}
        self._child: subprocess.Popen[bytes] | None = None
        self._install()

    def _find(self) -> list[str]:
        """What starts the server."""
        for tool in ("mariadbd", "mariadb-install-db"):
            if shutil.which(tool, path=_path()) is None:
                pytest.skip(f"{tool} is missing: apt-get install mariadb-server-core")
        return [_tool("mariadbd")]

    def _own_settings(self) -> dict[str, str]:
        return SETTINGS

    def _install(self) -> None:
        self._run(
            _tool("mariadb-install-db"),
            "--no-defaults",
            *as_root(),
            f"--datadir={self.data}",
            f"--tmpdir={self.directory}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        )

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        merged = {**self.settings, **(settings or {})}
        line = [
            *self._command,
            "--no-defaults",
            *as_root(),
            f"--datadir={self.data}",
            f"--socket={self.directory / 'mariadb.sock'}",
            # Of its own: one that starts removes all temporary tables there, and a server whose
            # temporary table is dropped ends by a segmentation fault (ha_maria::drop_table).
            f"--tmpdir={self.directory}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            *(f"--{name}={value}" for name, value in merged.items()),
        ]
        log = self.directory / "log"
        with log.open("ab") as sink:
            self._child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.connect().close()
                return
            except pymysql.err.OperationalError:
                assert self._child.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < deadline_s, log.read_text()[-3000:]
                time.sleep(0.02)

    def renew(self) -> None:
        """Starts one that has ended, without any data."""
        shutil.rmtree(self.data)
        self._install()
        self.start()

    def stop(self, sig: int = signal.SIGTERM) -> None:
        if self._child is not None:
            self._child.send_signal(sig)
            self._child.wait(START_TIMEOUT_S)
            self._child = None

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str = "", user: str = "root", password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        scheme = "mariadb" if self.is_mariadb else "mysql"
        return f"{scheme}://{login}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            charset="utf8mb4",
            autocommit=True,
            ssl_disabled=True,
        )

    def execute(self, *statements: str, database: str | None = None) -> Sequence[tuple[Any, ...]]:
        """Runs them on one connection; the rows of the last."""
        rows: Sequence[tuple[Any, ...]] = ()
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = cursor.fetchall()
        return rows

    @contextmanager
    def globals(self, **values: str) -> Iterator[None]:
        """Global variables, until the block ends. Sessions that are open keep the old ones."""
        old = {name: self.execute(f"SELECT @@global.{name}")[0][0] for name in values}
        self.execute(*(f"SET GLOBAL {name} = {_literal(value)}" for name, value in values.items()))
        try:
            yield
        finally:
            self.execute(*(f"SET GLOBAL {name} = {_literal(value)}" for name, value in old.items()))


def _literal(value: object) -> str:
    return str(value) if str(value).isdecimal() or value == "DEFAULT" else repr(value)


def numbers(count: int) -> str:
    """A table expression with a column `seq` from 1 to count, for both kinds of server."""
    return (
        f"JSON_TABLE(CONCAT('[0', REPEAT(',0', {count - 1}), ']'), '$[*]'"
        " COLUMNS (seq FOR ORDINALITY)) AS numbers"
    )


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"


def _tool(name: str) -> str:
    found = shutil.which(name, path=_path())
    assert found is not None
    return found


def as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    server = MariaDbServer(tmp_path_factory.mktemp("mariadb"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def shop(mariadb_server: MariaDbServer) -> Iterator[str]:
    """A database of its own, by name."""
    name = f"shop{next(DATABASES)}"
    mariadb_server.execute(f"CREATE DATABASE {name}")
    yield name
    mariadb_server.execute(f"DROP DATABASE IF EXISTS {name}")
