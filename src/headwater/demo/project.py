"""The directory that the demo runs in: the files of examples/shop, with addresses that are free."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg2

from headwater import config
from headwater.demo.load import CAPTURE, execute
from headwater.demo.postgres import USER, Postgres
from headwater.demo.shop import Shop
from headwater.errors import ConfigError

CONFIG: Final = "headwater.toml"
PASSWORD: Final = "postgres.password"  # noqa: S105 - the name of a file
_HOST: Final = "127.0.0.1"
_BROKER_PORT: Final = 9092
_CONSOLE_PORT: Final = 8080
_POSTGRES_PORT: Final = 5432  # in the example's file

_PSQL: Final = """\
#!/bin/sh
# psql on the demo's PostgreSQL: ./psql -c 'SELECT …', ./psql warehouse
cd "$(dirname "$0")" || exit 1
export PGHOST={host} PGPORT={port} PGUSER={user} PGDATABASE=shop PGPASSWORD="$(cat {password})"
exec "{psql}" "$@"
"""


def shop_files() -> Path:
    """The example as it is installed with the package, or in the repository."""
    installed = Path(__file__).parent / "files"
    return installed if installed.exists() else Path(__file__).parents[3] / "examples" / "shop"


def make(directory: Path) -> Postgres:
    """Copies the shop there, unless a demo has run there before, and chooses addresses. Returns
    the server that belongs to it, which is neither made nor started. Raises ConfigError.
    """
    path = directory / CONFIG
    if not path.exists():
        _copy(directory)
    port = _postgres_port(path)
    postgres = Postgres(directory / "postgres", port, directory / PASSWORD)
    psql = directory / "psql"
    psql.write_text(
        _PSQL.format(host=_HOST, port=port, user=USER, password=PASSWORD, psql=postgres.psql),
        encoding="utf-8",
    )
    psql.chmod(0o755)
    return postgres


def start(postgres: Postgres, is_to_end: Callable[[], bool]) -> None:
    """Returns when the databases and their first rows are there, or it is to end. Raises NotReady.

    A new cluster is filled on another port: a capture waits for a server that does not answer, but
    ends with an error at one that has not its database.
    """
    if postgres.make():
        own, postgres.port = postgres.port, free_port()
        try:
            postgres.start(is_to_end)
            if not is_to_end():
                fill(postgres)
        finally:
            postgres.stop()
            postgres.port = own
    postgres.start(is_to_end)
    if not is_to_end():
        fill(postgres)  # if an earlier start was killed before it had


def fill(postgres: Postgres) -> None:
    """The databases and their first rows, unless they are there."""
    postgres.create_database("warehouse")
    if not postgres.create_database("shop"):
        return
    connection = psycopg2.connect(postgres.url("shop"))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute((shop_files() / "schema.sql").read_text(encoding="utf-8"))
            execute(cursor, Shop().beginning())
    finally:
        connection.close()


def _copy(directory: Path) -> None:
    shutil.copytree(
        shop_files(),
        directory,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", ".*"),
    )
    path = directory / CONFIG
    text = path.read_text(encoding="utf-8")
    for default, chosen in (
        (_BROKER_PORT, free_port(_BROKER_PORT)),
        (_CONSOLE_PORT, free_port(_CONSOLE_PORT)),
        (_POSTGRES_PORT, free_port()),
    ):
        text = text.replace(f"{_HOST}:{default}", f"{_HOST}:{chosen}")
    path.write_text(text, encoding="utf-8")


def _postgres_port(path: Path) -> int:
    capture = config.read(path=str(path), environ={}).captures.get(CAPTURE)
    found = urlsplit(capture.source.reveal()) if capture else None
    if found is None or (found.username, found.hostname) != (USER, _HOST) or not found.port:
        raise ConfigError(
            f"{path} is of another project",
            detail=f"the demo wants [capture.{CAPTURE}] at {USER}@{_HOST}",
            hint="--data-dir takes an empty directory, or that of an earlier demo",
        )
    return found.port


def free_port(wanted: int = 0) -> int:
    """That port if it is free, else any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigError(f"no port of {_HOST} is free")
