"""The bytes of Debezium's envelope, put together from parts that are written only once.

    {"before":…,"after":…,"source":{…},"transaction":…,"op":…,"ts_ms":…,"ts_us":…,"ts_ns":…}
    └──head──┘     └─────┘└─source─┘└─change's own─┘└──────────────tail──────────────┘

Of all this only the rows, a few fields of `source` (lsn, pos) and the position within the
transaction differ between the changes of one table in one transaction. A `Frame` holds the rest as
bytes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from headwater import __version__
from headwater.capture.contract import Row, Table

# What `source` has besides the common fields, and which of them are never null: those get the
# value that Debezium gives them where there is no value (reads of a snapshot).
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
    "sqlite": {"txId": None, "id": None},
    "mongodb": {"ord": 0, "lsid": None, "txnNumber": None, "wallTime": None},
}
_FIELDS["mariadb"] = _FIELDS["mysql"]

_TEMPLATES: Final = 64  # sets of names that are remembered for a table

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


class SourceWriter:
    """Writes `source` of one table. Which fields a transaction and a change bring is nearly always
    the same; what is left of the others is written once for each such set of names.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._templates: dict[tuple[str, ...], bytes] = {}

    def opened(self, ts_ms: int, shared: Mapping[str, Any], own: Mapping[str, Any]) -> bytes:
        """`source` without its end: `own`, as JSON without its first brace, completes it. Of `own`
        only the names count. `shared` is what all changes of a transaction have.
        """
        names = (*shared, "", *own)
        template = self._templates.get(names)
        if template is None:
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            template = self._templates[names] = self._template(names)
        times = {b"ts_ms": ts_ms, b"ts_us": ts_ms * 1_000, b"ts_ns": ts_ms * 1_000_000}
        written = template % times
        if not own.keys().isdisjoint(shared):
            shared = {name: value for name, value in shared.items() if name not in own}
        if shared:
            written += b"," + orjson.dumps(shared)[1:-1]
        return written + b"," if own else written

    def _template(self, brought: tuple[str, ...]) -> bytes:
        fields = [
            b'"%b":%%(%b)d' % (name.encode(), name.encode())
            if name.startswith("ts_")
            else orjson.dumps({name: value})[1:-1].replace(b"%", b"%%")
            for name, value in self._fields.items()
            if name not in brought
        ]
        return b',"source":{' + b",".join(fields)


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
        "_after_op",
        "_before_op",
        "_tails",
        "_transaction",
        "before_null",
        "create",
        "head",
        "own_fields",
        "source",
    )

    def __init__(
        self,
        head: bytes,
        end: bytes,
        source: bytes,
        own_fields: int,
        now_ns: int,
        transaction: str | None = None,
    ) -> None:
        """`source` as a SourceWriter opened it for so many own fields. With the id of a
        transaction the tails need their positions within it.
        """
        self.own_fields = own_fields
        self.head = head + b'{"before":'
        self.before_null = head + b'{"before":null,"after":'
        self.source = source
        now = now_ns // 1_000_000, now_ns // 1_000, now_ns
        self._after_op = b'","ts_ms":%d,"ts_us":%d,"ts_ns":%d}' % now + end
        self._before_op = b',"transaction":null,"op":"'
        self._transaction = b""
        if transaction is not None:
            self._before_op = b',"op":"'
            self._transaction = b',"transaction":{"id":' + orjson.dumps(transaction)
        self.create = self._before_op + b"c" + self._after_op
        self._tails: dict[str, bytes] = {}

    def tail(self, op: str) -> bytes:
        tail = self._tails.get(op)
        if tail is None:
            tail = self._tails[op] = self._before_op + op.encode() + self._after_op
        return tail

    def tail_in_transaction(self, op: str, total_order: int, table_order: int) -> bytes:
        order = b',"total_order":%d,"data_collection_order":%d}' % (total_order, table_order)
        return self._transaction + order + self.tail(op)
