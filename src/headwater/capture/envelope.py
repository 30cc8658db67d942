"""The bytes of Debezium's envelope, put together from parts that are written only once.

    {"before":…,"after":…,"source":{…},"transaction":…,"op":…,"ts_ms":…,"ts_us":…,"ts_ns":…}
    └──head──┘     └─────┘└─source─┘└─change's own─┘└──────────────tail──────────────┘

Of all this only the rows, a few fields of `source` (lsn, pos) and the place within the transaction
differ between the changes of one table in one transaction. A `Frame` holds the rest as bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from headwater import __version__
from headwater.capture.contract import Row, Table

# What `source` has besides the common fields, and which of them are never null: those get the
# value that Debezium gives them where nothing is known (reads of a snapshot).
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "postgresql": {"txId": None, "lsn": None, "xmin": None, "origin": None, "origin_lsn": None},
    "mysql": {
        "server_id": 0,
        "gtid": None,
        "file": "",
        "pos": 0,
        "row": 0,
        "thread": None,
        "query": None,
    },
    "mongodb": {"ord": 0, "lsid": None, "txnNumber": None, "wallTime": None},
}
_FIELDS["mariadb"] = _FIELDS["mysql"]

KeyFunction: TypeAlias = Callable[[Row], bytes | None]
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
Shaped: TypeAlias = tuple[str, bytes | None, bytes | None, Headers]  # topic, key, value, headers


def source_fields(connector: str) -> dict[str, Any]:
    """The fields of `source` that only this connector has, with their values where unknown."""
    return _FIELDS.get(connector, {})


def source_of(connector: str, name: str, database: str, table: Table) -> dict[str, Any]:
    """`source` of every change of a table, as far as no transaction is needed to know it."""
    # MySQL's and MongoDB's databases are what others call schemas.
    is_schema_database = connector in {"mysql", "mariadb", "mongodb"}
    source: dict[str, Any] = {
        "version": __version__,
        "connector": connector,
        "name": name,
        "ts_ms": 0,
        "snapshot": "false",
        "db": table.schema if is_schema_database else database,
        "sequence": None,
        "ts_us": 0,
        "ts_ns": 0,
    }
    if not is_schema_database:
        source["schema"] = table.schema
    source["collection" if connector == "mongodb" else "table"] = table.name
    return source | source_fields(connector)


def at_time(source: dict[str, Any], ts_ms: int) -> dict[str, Any]:
    return source | {"ts_ms": ts_ms, "ts_us": ts_ms * 1_000, "ts_ns": ts_ms * 1_000_000}


def open_object(fields: Mapping[str, Any], own: Mapping[str, Any]) -> bytes:
    """A JSON object without its end: `own`, as JSON without its first brace, completes it."""
    written = orjson.dumps({name: fields[name] for name in fields if name not in own})[:-1]
    return written + b"," if own and len(written) > 1 else written


def key_function(key: tuple[str, ...], head: bytes, end: bytes) -> KeyFunction:
    """From a row to the record's key: {"id":1} between `head` and `end`."""
    dumps = orjson.dumps
    if not key:
        return lambda _row: None
    if len(key) == 1:
        (only,) = key
        first, last = head + b"{" + dumps(only) + b":", b"}" + end
        return lambda row: first + dumps(row[only]) + last

    return lambda row: head + dumps({name: row[name] for name in key}) + end


class Frame:
    """All bytes of a value that the changes of one table in one transaction have in common."""

    __slots__ = (
        "after_null",
        "before_null",
        "create",
        "head",
        "own_fields",
        "source",
        "tails",
        "transaction",
    )

    def __init__(
        self,
        head: bytes,
        end: bytes,
        source: Mapping[str, Any],
        own: Mapping[str, Any],
        now_ns: int,
        transaction: str | None = None,
    ) -> None:
        """`source` is all that is known of it, `own` what each change brings itself (of it only
        the names count: all changes of this frame have the same). With the id of a transaction
        the tails need its block in front of them.
        """
        self.own_fields = len(own)
        self.head = head + b'{"before":'
        self.before_null = head + b'{"before":null,"after":'
        self.source = b',"source":' + open_object(source, own)
        self.after_null = b',"after":null' + self.source
        now = now_ns // 1_000_000, now_ns // 1_000, now_ns
        times = b'"ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % now + end
        block = b',"transaction":null' if transaction is None else b""
        self.tails = {op: b'%b,"op":"%b",%b' % (block, op.encode(), times) for op in "rcudt"}
        self.create = self.tails["c"]
        self.transaction = b""
        if transaction is not None:
            self.transaction = b',"transaction":{"id":' + orjson.dumps(transaction)

    def tail_in_transaction(self, op: str, total_order: int, table_order: int) -> bytes:
        order = b',"total_order":%d,"data_collection_order":%d}' % (total_order, table_order)
        return self.transaction + order + self.tails[op]
