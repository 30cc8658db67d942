"""The server: MySQL or MariaDB, where its log ends, and which transactions it lacks."""

import re
from dataclasses import dataclass
from typing import Any

import pymysql

from headwater.capture.mysql.connection import query, variables
from headwater.errors import SourceRefused


@dataclass(frozen=True, slots=True)
class Server:
    id: int  # its server_id
    version: str
    is_mariadb: bool
    has_gtids: bool
    has_checksums: bool
    lowers_names: bool  # of databases and tables; statements may write them as they like

    @property
    def name(self) -> str:
        return "MariaDB" if self.is_mariadb else "MySQL"


def inspect(connection: Any) -> Server:
    ((version,),) = query(connection, "SELECT VERSION()")
    found = variables(
        connection, "gtid_mode", "binlog_checksum", "server_id", "lower_case_table_names"
    )
    is_mariadb = "mariadb" in str(version).lower()
    return Server(
        id=int(found.get("server_id", 0)),
        version=str(version),
        is_mariadb=is_mariadb,
        has_gtids=is_mariadb or found.get("gtid_mode", "").upper() == "ON",
        has_checksums=found.get("binlog_checksum", "NONE").upper() != "NONE",
        lowers_names=found.get("lower_case_table_names", "0") != "0",
    )


def version_numbers(version: str) -> tuple[int, int]:
    """8.0.36-log, 10.11.6-MariaDB, 5.5.5-10.4.2-MariaDB."""
    numbers = version.removeprefix("5.5.5-").split(".")
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


def log_end(connection: Any, server: Server) -> dict[str, Any]:
    """The point behind everything that is in the log now, as a position."""
    if server.is_mariadb or version_numbers(server.version) < (8, 2):
        rows = query(connection, "SHOW MASTER STATUS")
    else:
        rows = query(connection, "SHOW BINARY LOG STATUS")
    if not rows:
        raise SourceRefused(
            "the server writes no binlog",
            hint="set log_bin in the server's configuration file, and restart it",
        )
    file, position = str(rows[0][0]), int(rows[0][1])
    end: dict[str, Any] = {"server": server.id, "file": file, "pos": position}
    if server.is_mariadb:
        ((gtids,),) = query(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, position))
        end["gtids"] = str(gtids or "")
    elif server.has_gtids:
        end["gtids"] = str(rows[0][4]).replace("\n", "")
    return end


def log_files(connection: Any) -> list[tuple[str, int]]:
    """The files of the log and their sizes, oldest first."""
    return [(str(row[0]), int(row[1])) for row in query(connection, "SHOW BINARY LOGS")]


def lacking_gtids(connection: Any, gtids: str) -> str:
    """Of these transactions, those that this MySQL server does not have.

    A session owns its transaction's id while the log already has the transaction (and sends it to
    readers); the id is in gtid_executed before the session gives it up. So that is asked first.
    """
    ((owned,),) = query(connection, "SELECT @@global.gtid_owned")
    about_to_commit = re.sub(r"#\d+", "", str(owned))  # uuid:5#12: the thread that owns it
    ((lacking,),) = query(
        connection,
        "SELECT GTID_SUBTRACT(GTID_SUBTRACT(%s, %s), @@global.gtid_executed)",
        (gtids, about_to_commit),
    )
    return str(lacking).replace("\n", "")


def is_replicating(connection: Any) -> bool:
    """Whether this MySQL server is a replica that still receives or applies transactions."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        try:
            cursor.execute("SHOW REPLICA STATUS")
        except pymysql.err.ProgrammingError:  # older than 8.0.22
            cursor.execute("SHOW SLAVE STATUS")
        return any(
            str(value).upper() == "YES"
            for channel in cursor.fetchall()
            for name, value in channel.items()
            if name.endswith(("_IO_Running", "_SQL_Running"))
        )
