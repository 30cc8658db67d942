"""Checks of the server's settings, our rights and the tables, with the SQL that fixes them.

SourceRefused prevents a capture from starting; TableRefused does not: it will work, but a table may
have to be copied again one day, or has values that are left out.
"""

import re
from typing import Any, Final

from headwater.capture.mysql.catalog import TRANSACTIONAL_ENGINES, Choice
from headwater.capture.mysql.connection import query, variables
from headwater.capture.mysql.server import Server, version_numbers
from headwater.databases.mysql import Address
from headwater.errors import HeadwaterError, SourceRefused, TableRefused

_RETAINED_FOR_S: Final = (
    24 * 3600
)  # a capture that stands still for a day should find its position again
_OLDEST: Final = {"MySQL": (8, 0), "MariaDB": (10, 5)}
_CASCADING: Final = {"CASCADE", "SET NULL", "SET DEFAULT"}
_VARIABLES: Final = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "server_id",
    "expire_logs_days",
    "binlog_expire_logs_seconds",
)


def problems(
    connection: Any, server: Server, address: Address, choice: Choice
) -> list[HeadwaterError]:
    return [
        *_version(server),
        *_settings(connection, server),
        *_rights(connection, server, address),
        *_tables(connection, choice),
        *_cascades(connection, choice),
    ]


def _version(server: Server) -> list[HeadwaterError]:
    oldest = _OLDEST[server.name]
    if version_numbers(server.version) >= oldest:
        return []
    return [
        SourceRefused(
            f"{server.name} {server.version} is too old",
            hint=f"capture needs {server.name} {oldest[0]}.{oldest[1]} or newer",
        )
    ]


def _settings(connection: Any, server: Server) -> list[HeadwaterError]:
    found = {name: value.upper() for name, value in variables(connection, *_VARIABLES).items()}
    wrong: list[HeadwaterError] = []
    if found.get("log_bin") != "ON":
        wrong.append(
            SourceRefused(
                "the server writes no binlog",
                detail="log_bin is OFF",
                hint="set log_bin = binlog in the server's configuration file, and restart it",
            )
        )
    if found.get("binlog_format", "ROW") != "ROW":
        wrong.append(
            SourceRefused(
                "the binlog has statements instead of rows",
                detail=f"binlog_format is {found['binlog_format']}",
                hint="SET GLOBAL binlog_format = ROW; (and in the server's configuration file; "
                "sessions that are open keep the old one)",
            )
        )
    if found.get("binlog_row_image", "FULL") not in ("FULL", "FULL_NODUP"):
        wrong.append(
            TableRefused(
                "the binlog has only parts of the rows",
                detail=f"binlog_row_image is {found['binlog_row_image']}: what it leaves out reads "
                "__debezium_unavailable_value",
                hint="SET GLOBAL binlog_row_image = FULL;",
            )
        )
    if found.get("binlog_row_metadata", "NO_LOG") != "FULL":
        wrong.append(
            TableRefused(
                "the binlog has no names of columns",
                detail="binlog_row_metadata is "
                f"{found.get('binlog_row_metadata', 'unknown')}: a table that is altered while "
                "the capture is behind may have to be copied again",
                hint="SET GLOBAL binlog_row_metadata = FULL;",
            )
        )
    if found.get("binlog_row_value_options", ""):
        wrong.append(
            TableRefused(
                "the binlog has only differences of JSON values",
                detail=f"binlog_row_value_options is {found['binlog_row_value_options']}",
                hint="SET GLOBAL binlog_row_value_options = '';",
            )
        )
    if found.get("server_id", "0") == "0":
        wrong.append(
            SourceRefused("the server has no id", hint="SET GLOBAL server_id = 1; (or any other)")
        )
    return wrong + _expiry(found, server)


def _expiry(found: dict[str, str], server: Server) -> list[HeadwaterError]:
    seconds = float(found.get("binlog_expire_logs_seconds", 0))
    seconds = seconds or float(found.get("expire_logs_days", 0)) * 86400
    if seconds == 0 or seconds >= _RETAINED_FOR_S:  # 0: indefinitely
        return []
    return [
        TableRefused(
            "the binlog is retained for a short time only",
            detail=f"{seconds / 3600:g} h: a capture that stops for longer needs a new snapshot",
            hint="SET GLOBAL binlog_expire_logs_seconds = 604800;",
        )
    ]


def _rights(connection: Any, server: Server, address: Address) -> list[HeadwaterError]:
    grants = " \n".join(str(row[0]) for row in query(connection, "SHOW GRANTS")).upper()
    everywhere = " ".join(re.findall(r"GRANT (.*?) ON \*\.\*", grants))
    if "ALL PRIVILEGES" in everywhere:
        return []
    wrong: list[HeadwaterError] = []
    account = str(query(connection, "SELECT CURRENT_USER()")[0][0])
    user, _, host = account.rpartition("@")
    to = f"'{user}'@'{host}'"
    status_names = ("BINLOG MONITOR", "REPLICATION CLIENT", "SUPER")
    needed: list[tuple[str, tuple[str, ...]]] = [
        ("REPLICATION SLAVE", ("REPLICATION SLAVE", "REPLICATION REPLICA")),
        ("BINLOG MONITOR" if server.is_mariadb else "REPLICATION CLIENT", status_names),
    ]
    for right, names in needed:
        if not any(name in everywhere for name in names):
            wrong.append(
                SourceRefused(
                    f"{user} lacks the right {right}", hint=f"GRANT {right} ON *.* TO {to};"
                )
            )
    database = address.database
    if "SELECT" not in everywhere and "SELECT" not in grants:
        wrong.append(
            SourceRefused(
                f"{user} may read no table",
                hint=f"GRANT SELECT ON {f'`{database}`' if database else '*'}.* TO {to};",
            )
        )
    return wrong


def versioned(table_id: str) -> TableRefused:
    return TableRefused(
        f"{table_id} is system-versioned, which is not supported",
        detail="the binlog has the history of its rows, and no deletes",
        hint="leave it out with `exclude`",
    )


def _tables(connection: Any, choice: Choice) -> list[HeadwaterError]:
    """Tables without a key are read whole; tables without transactions cannot be read at all."""
    wrong: list[HeadwaterError] = []
    for schema, name, kind, table_type in query(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_TYPE FROM information_schema.TABLES"
        " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY 1, 2",
    ):
        table_id = f"{schema}.{name}"
        if table_id not in choice:
            continue
        if table_type == "SYSTEM VERSIONED":
            wrong.append(versioned(table_id))
        elif kind not in TRANSACTIONAL_ENGINES:
            wrong.append(
                TableRefused(
                    f"{table_id} cannot be read consistently",
                    detail=f"its engine is {kind}, which has no transactions",
                    hint=f"ALTER TABLE `{schema}`.`{name}` ENGINE=InnoDB; or leave it out with "
                    "`exclude`",
                )
            )
    return wrong


def _cascades(connection: Any, choice: Choice) -> list[HeadwaterError]:
    """InnoDB changes the rows of a cascade by itself, and the log does not have them. From MySQL
    9.6 on the server does it, and logs it, unless innodb_native_foreign_keys is ON.
    """
    if (
        variables(connection, "innodb_native_foreign_keys").get("innodb_native_foreign_keys")
        == "OFF"
    ):
        return []
    return [
        TableRefused(
            f"{schema}.{table} changes by a foreign key, and the log does not have it",
            detail=f"{name}: ON DELETE {deletes}, ON UPDATE {updates}",
            hint="change its rows by statements, and let the key RESTRICT; MySQL 9.6 and newer log"
            " what a foreign key changes",
        )
        for schema, table, name, deletes, updates in query(
            connection,
            "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE"
            " FROM information_schema.REFERENTIAL_CONSTRAINTS ORDER BY 1, 2, 3",
        )
        if f"{schema}.{table}" in choice and {deletes, updates} & _CASCADING
    ]
