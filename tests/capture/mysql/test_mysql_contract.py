"""The contract of sources on MariaDB: with names of columns in the log and without."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.capture.mariadb_server import MariaDbServer
from support.capture.source_contract import Database, Session, SourceContract

from headwater.capture.contract import Row, Source
from headwater.capture.mysql import MySqlSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret


class MariaDbSession(Session):
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def insert(self, table: str, row: Row) -> None:
        marks = ", ".join(["%s"] * len(row))
        sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
        self._cursor.execute(sql, list(row.values()))

    def update(self, table: str, key: int, **values: object) -> None:
        assignments = ", ".join(f"{column} = %s" for column in values)
        self._cursor.execute(
            f"UPDATE {table} SET {assignments} WHERE id = %s", [*values.values(), key]
        )

    def delete(self, table: str, key: int) -> None:
        self._cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))

    def truncate(self, table: str) -> None:
        self._cursor.execute(f"TRUNCATE TABLE {table}")


class MariaDbDatabase(Database):
    has_truncate = True

    def __init__(self, server: MariaDbServer, name: str) -> None:
        self.server = server
        self.name = name

    def source(self, **options: object) -> Source:
        settings = CaptureSettings("shop", Secret(self.server.url(self.name)), **options)
        return MySqlSource(settings)

    def table_id(self, name: str) -> str:
        return f"{self.name}.{name}"

    def execute(self, *statements: str) -> Any:
        statements = ("SET sql_mode = 'ALLOW_INVALID_DATES'", *statements)
        return self.server.execute(*statements, database=self.name)

    def create_table(self, name: str, *, has_key: bool = True) -> None:
        key = "PRIMARY KEY" if has_key else "NOT NULL"
        self.execute(f"CREATE TABLE {name} (id INT {key}, name TEXT, amount BIGINT)")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with closing(self.server.connect(self.name)) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                yield MariaDbSession(cursor)
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def rows(self, table: str) -> list[Row]:
        with closing(self.server.connect(self.name)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column for column, *_ in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def add_column(self, table: str, column: str) -> None:
        self.execute(f"ALTER TABLE {table} ADD COLUMN {column} INT")

    def leftovers(self) -> object:
        return (
            self.execute("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"),
            self.execute("SELECT User, Host FROM mysql.user"),
        )

    def write_values(self, table: str) -> None:
        values = VALUES + (MARIADB_VALUES if self.server.is_mariadb else MYSQL_VALUES)
        columns = ", ".join(f"{name} {kind}" for name, kind, *_ in values)
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id INT AUTO_INCREMENT PRIMARY KEY, {columns})"
        )
        names = ", ".join(name for name, *_ in values)
        for row in zip(*(row for _, _, *row in values), strict=True):
            self.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join(row)})")


# Column, its type, and values for four rows, as SQL writes them.
VALUES = [
    ("t1", "TINYINT", "-128", "127", "0", "NULL"),
    ("t1u", "TINYINT UNSIGNED", "255", "0", "1", "NULL"),
    ("flag", "TINYINT(1)", "1", "0", "1", "NULL"),
    ("t2", "SMALLINT", "-32768", "32767", "0", "NULL"),
    ("t2u", "SMALLINT UNSIGNED ZEROFILL", "65535", "1", "0", "NULL"),
    ("t3", "MEDIUMINT", "-8388608", "8388607", "-1", "NULL"),
    ("t3u", "MEDIUMINT UNSIGNED", "16777215", "0", "1", "NULL"),
    ("t4u", "INT UNSIGNED", "4294967295", "0", "1", "NULL"),
    ("t8", "BIGINT", "-9223372036854775808", "9223372036854775807", "0", "NULL"),
    ("t8u", "BIGINT UNSIGNED", "18446744073709551615", "0", "1", "NULL"),
    ("f", "FLOAT", "0.1", "16777217", "-3.4028234e38", "NULL"),
    ("f2", "FLOAT(7,3)", "1234.567", "-0.001", "0", "NULL"),
    ("d", "DOUBLE", "0.1", "1e300", "-2.2250738585072014e-308", "NULL"),
    ("n", "DECIMAL(10,2)", "-12345678.90", "0.01", "-0.05", "NULL"),
    ("n65", "DECIMAL(65,30)", "12345678901234567890123456789012345.5", "-1.5", "0", "NULL"),
    ("n0", "DECIMAL(20,0) UNSIGNED", "99999999999999999999", "0", "7", "NULL"),
    ("n9", "DECIMAL(9,9)", "0.123456789", "-0.000000001", "0", "NULL"),
    ("b1", "BIT", "b'1'", "b'0'", "b'1'", "NULL"),
    ("b12", "BIT(12)", "b'101010101010'", "b'1'", "0", "NULL"),
    ("b64", "BIT(64)", "18446744073709551615", "1", "0", "NULL"),
    ("y", "YEAR", "1901", "2155", "0", "NULL"),
    ("da", "DATE", "'2024-02-29'", "'0000-00-00'", "'9999-12-31'", "NULL"),
    ("da0", "DATE NOT NULL", "'0000-01-01'", "'0000-00-00'", "'1969-12-31'", "'2020-00-10'"),
    ("ti", "TIME", "'-838:59:59'", "'00:00:00'", "'23:59:59'", "NULL"),
    ("ti3", "TIME(3)", "'-00:00:00.001'", "'100:00:00.5'", "'00:00:01.25'", "NULL"),
    ("ti6", "TIME(6)", "'-01:00:00.000001'", "'23:59:59.999999'", "'0:0:0.5'", "NULL"),
    ("dt", "DATETIME", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00'", "NULL"),
    ("dt2", "DATETIME(2) NOT NULL", "'2024-02-29 12:34:56.78'", "'1969-12-31 23:59:59.99'",
     "'0000-00-00'", "'2001-01-01'"),
    ("dt6", "DATETIME(6)", "'2024-02-29 12:34:56.789012'", "'1969-12-31 23:59:59.999999'",
     "'0000-00-00'", "NULL"),
    ("ts", "TIMESTAMP NULL", "'2024-02-29 12:34:56'", "'1970-01-02 00:00:01'", "0", "NULL"),
    ("ts3", "TIMESTAMP(3) NOT NULL DEFAULT 0", "'2038-01-18 00:00:00.123'",
     "'2001-01-01 01:01:01.5'", "0", "'2020-05-05 05:05:05'"),
    ("ts6", "TIMESTAMP(6) NULL", "'2024-02-29 12:34:56.000001'", "'2020-01-01'", "0", "NULL"),
    ("c", "CHAR(5)", "'abc'", "''", "'ü🦆'", "NULL"),
    ("c255", "CHAR(255)", "REPEAT('ü', 255)", "''", "'x'", "NULL"),
    ("vc", "VARCHAR(20)", "'ünï 🦆'", "''", "' x '", "NULL"),
    ("vc300", "VARCHAR(300)", "REPEAT('ab', 150)", "''", "'x'", "NULL"),
    ("l1", "VARCHAR(20) CHARACTER SET latin1", "'€é'",
     "CHAR(0x81, 0x9d USING latin1)", "''", "NULL"),
    ("l2", "CHAR(9) CHARACTER SET latin2", "'žluť'", "'x'", "''", "NULL"),
    ("k8", "TEXT CHARACTER SET koi8r", "'мир'", "'x'", "''", "NULL"),
    ("u3", "VARCHAR(30) CHARACTER SET utf8mb3", "'日本'", "'x'", "''", "NULL"),
    ("u16", "VARCHAR(30) CHARACTER SET utf16", "'日🦆'", "'x'", "''", "NULL"),
    ("uc2", "TEXT CHARACTER SET ucs2", "'日'", "'x'", "''", "NULL"),
    ("u32", "VARCHAR(30) CHARACTER SET utf32", "'日🦆'", "'x'", "''", "NULL"),
    ("sj", "VARCHAR(30) CHARACTER SET sjis", "'日本ｶ'", "'x'", "''", "NULL"),
    ("gb", "VARCHAR(30) CHARACTER SET gbk", "'中文'", "'x'", "''", "NULL"),
    ("bi", "BINARY(4)", "x'61000000'", "x'00000000'", "x'61006200'", "NULL"),
    ("vb", "VARBINARY(300)", "x'00ff'", "''", "x'6100'", "NULL"),
    ("tt", "TINYTEXT", "REPEAT('x', 255)", "''", "'ü'", "NULL"),
    ("mt", "MEDIUMTEXT", "REPEAT('y', 70000)", "''", "'ü'", "NULL"),
    ("lt", "LONGTEXT", "REPEAT('z', 70000)", "''", "'ü'", "NULL"),
    ("bl", "BLOB", "x'00ff00'", "''", "REPEAT('b', 300)", "NULL"),
    ("mb", "MEDIUMBLOB", "REPEAT('b', 70000)", "''", "x'00'", "NULL"),
    ("e", "ENUM('a', 'b''c', 'd,e')", "'b''c'", "'a'", "'d,e'", "NULL"),
    ("el", "ENUM('ä', 'ö') CHARACTER SET latin1", "'ö'", "''", "'ä'", "NULL"),
    ("s", "SET('x', 'y', 'z')", "'x,z'", "''", "'y'", "NULL"),
    ("g", "GEOMETRY", "ST_GeomFromText('LINESTRING(0 0,1 1)', 4326)",
     "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))')", "NULL"),
    ("p", "POINT", "ST_GeomFromText('POINT(1.5 -2)')", "ST_GeomFromText('POINT(0 0)', 4326)",
     "ST_GeomFromText('POINT(1e10 1)')", "NULL"),
    ("`quo``te'd`", "INT", "1", "2", "3", "NULL"),
    ("gs", "INT AS (t2 + 1) STORED", "DEFAULT", "DEFAULT", "DEFAULT", "DEFAULT"),
    ("gv", "INT AS (t2 - 1) VIRTUAL", "DEFAULT", "DEFAULT", "DEFAULT", "DEFAULT"),
    ("hidden", "INT INVISIBLE DEFAULT 5", "1", "2", "3", "NULL"),
]  # fmt: skip
MARIADB_VALUES = [
    ("i6", "INET6", "'2001:db8::1'", "'::ffff:1.2.3.4'", "'::'", "NULL"),
    ("i4", "INET4", "'10.0.0.1'", "'0.0.0.0'", "'255.0.0.0'", "NULL"),
    ("uu", "UUID", "'00112233-4455-1677-8899-aabbccddee00'",
     "'00112233-4455-7677-8899-aabbccddeeff'", "'00000000-0000-0000-0000-000000000000'", "NULL"),
    ("co", "VARCHAR(500) COMPRESSED", "REPEAT('abc', 150)", "'x'", "''", "NULL"),
    ("cb", "BLOB COMPRESSED", "REPEAT('abc', 1000)", "x'00'", "''", "NULL"),
    ("js", "JSON", "'{\"a\": [1, 2.5, null]}'", "'[]'", "'\"x\"'", "NULL"),
]  # fmt: skip
# JSON is a type of its own here: each kind of value that its binary form knows.
MYSQL_VALUES = [
    ("js", "JSON", "JSON_OBJECT('a', JSON_ARRAY(1, -1, 2.5, NULL, TRUE, FALSE), 'ü', '🦆')",
     "JSON_ARRAY()", "CAST('\"x\"' AS JSON)", "NULL"),
    ("jn", "JSON", "JSON_ARRAY(32767, -32768, 65535, 2147483647, 4294967295, 9223372036854775807)",
     "CAST(18446744073709551615 AS JSON)", "JSON_ARRAY(1e300, 0.1, CAST(1.10 AS DECIMAL(10,2)))",
     "NULL"),
    ("jt", "JSON", "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('12:34:56.5' AS TIME(1)))",
     "CAST(CAST('2024-02-29 12:34:56.789012' AS DATETIME(6)) AS JSON)",
     "CAST(CAST(x'00ff' AS BINARY) AS JSON)", "NULL"),
    ("jl", "JSON", "JSON_OBJECT('long', REPEAT('x', 70000), 'n', 1)",
     "JSON_ARRAY(REPEAT('y', 200), REPEAT('z', 20000))", "JSON_OBJECT()", "CAST('null' AS JSON)"),
    ("c09", "VARCHAR(30) COLLATE utf8mb4_0900_ai_ci", "'ünï 🦆'", "''", "'x'", "NULL"),
    ("cja", "TEXT COLLATE utf8mb4_ja_0900_as_cs", "'日本'", "''", "'x'", "NULL"),
    ("g18", "VARCHAR(30) CHARACTER SET gb18030", "'中文🦆'", "''", "'x'", "NULL"),
    ("expr", "VARCHAR(36) DEFAULT (CONCAT('a', 'b'))", "DEFAULT", "'x'", "''", "NULL"),
]  # fmt: skip


class TestMariaDbContract(SourceContract):
    @pytest.fixture
    def database(self, server: MariaDbServer, shop: str) -> MariaDbDatabase:
        return MariaDbDatabase(server, shop)
