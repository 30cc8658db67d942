"""MySQL's own server for tests, where mariadb_server.py has MariaDB's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiers import IS_FULL, in_full

from bench.peers.mysql import MySqlBinaries, mysql_8_0, mysql_newest
from bench.peers.provision import PeerUnavailableError
from support.capture.mariadb_server import DATABASES, SETTINGS, MariaDbServer, as_root

# MySQL 8.0 is no kind of the quick tier, where MySQL has the `representative` tests.
KINDS = ["mariadb", *in_full("mysql"), *(["mysql-8.0"] if IS_FULL else [])]
# For tests of what only one kind of server has.
MARIADB_ONLY = pytest.mark.parametrize("server", ["mariadb"], indirect=True)
MYSQL_ONLY = pytest.mark.parametrize("server", ["mysql", *in_full("mysql-8.0")], indirect=True)
# skip_name_resolve: a client of 127.0.0.1 is not `localhost`, where --initialize puts root.
FIRST_STATEMENTS = """CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


class MySqlServer(MariaDbServer):
    is_mariadb = False

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        binaries: Callable[[], MySqlBinaries] = mysql_newest,
    ) -> None:
        self._binaries = binaries
        super().__init__(directory, settings)

    def _find(self) -> list[str]:
        try:
            found = self._binaries()
        except PeerUnavailableError as error:
            pytest.skip(str(error))
        self._basedir = found.basedir
        return found.command

    def _own_settings(self) -> dict[str, str]:
        settings = {k: v for k, v in SETTINGS.items() if k != "innodb_log_file_size"}
        return settings | {
            "basedir": str(self._basedir),
            "lc_messages_dir": str(self._basedir / "share" / self._shared),
            "character_sets_dir": str(self._basedir / "share" / self._shared / "charsets"),
            "gtid_mode": "ON",
            "enforce_gtid_consistency": "ON",
            "innodb_redo_log_capacity": "32M",
            "max_allowed_packet": "16M",  # as MariaDB has it
            "mysqlx": "OFF",
            "secure_file_priv": "NULL",
        }

    @property
    def _shared(self) -> str:
        return "mysql" if (self._basedir / "share" / "mysql").is_dir() else ""

    def _install(self) -> None:
        first = self.directory / "first.sql"
        first.write_text(FIRST_STATEMENTS)
        own = self._own_settings()
        self._run(
            *self._command,
            "--no-defaults",
            *as_root(),
            "--initialize-insecure",
            f"--datadir={self.data}",
            f"--init-file={first}",
            *(f"--{name}={own[name]}" for name in ("basedir", "lc_messages_dir")),
        )


def server_of(
    kind: str, directory: Path, settings: Mapping[str, str] | None = None
) -> MariaDbServer:
    if kind == "mariadb":
        return MariaDbServer(directory, settings)
    return MySqlServer(directory, settings, mysql_8_0 if kind == "mysql-8.0" else mysql_newest)


@contextmanager
def running(kind: str, directory: Path) -> Iterator[MariaDbServer]:
    server = server_of(kind, directory)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session", params=KINDS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDbServer]:
    """MariaDB; in the full tier also MySQL, the newest and 8.0."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
def shop(server: MariaDbServer) -> Iterator[str]:
    """A database of its own, by name."""
    name = f"shop{next(DATABASES)}"
    server.execute(f"CREATE DATABASE {name}")
    yield name
    server.execute(f"DROP DATABASE IF EXISTS {name}")
