"""Relations of the replication stream: each table as pgoutput's Relation messages describe it."""

from dataclasses import dataclass
from typing import Any, Final

from headwater.capture.contract import Row, Table
from headwater.capture.postgres.catalog import (
    RawColumn,
    Selection,
    TableInterner,
    describe,
    make_table,
)
from headwater.capture.postgres.connection import Address
from headwater.capture.postgres.replication import pgoutput
from headwater.capture.postgres.replication.toast_cache import ToastCache
from headwater.capture.postgres.type_catalog import TypeCatalog
from headwater.errors import CaptureError

_FORMATS: Final = """SELECT format_type(t, m) FROM unnest(%s::oid[], %s::int4[])
    WITH ORDINALITY u(t, m, i) ORDER BY i"""


@dataclass(slots=True)
class Relation:
    """A table as the stream describes it at this point."""

    oid: bytes
    table: Table | None  # None: not captured
    decode: pgoutput.Decode
    identity: tuple[str, ...]  # columns that an old key has
    full: bool  # replica identity FULL: old rows have all columns
    cached: bool  # large values are cached by key
    key_columns: tuple[int, ...]  # indexes of the key's columns
    types: dict[str, tuple[int, int]]  # type oids and typmods, by column
    large: bool = False  # a large row was streamed


class Relations(dict[bytes, Relation]):
    """All relations that this stream has described so far, by oid."""

    def __init__(
        self,
        address: Address,
        catalog: Any,
        types: TypeCatalog,
        selection: Selection,
        interner: TableInterner,
        toast: ToastCache,
    ) -> None:
        super().__init__()
        self._address = address
        self._catalog = catalog  # a connection for catalog queries
        self._types = types
        self._selection = selection
        self._interner = interner
        self._toast = toast
        self.publication = ""

    def __missing__(self, oid: bytes) -> Relation:
        raise CaptureError("PostgreSQL sent a row of a table that it did not describe")

    def add(self, message: pgoutput.RelationMessage) -> None:
        """Names and types are those at the time of the change. The catalog, which is current, adds
        what the message does not have: the order of the key's columns, and which may be null.
        """
        # PostgreSQL describes a table again whenever something about it changed. Its rows may have
        # been rewritten (ALTER … TYPE … USING), which is not logged.
        if message.oid in self:
            self._toast.forget_table(message.oid)
        names = [column.name for column in message.columns]
        identity = tuple(column.name for column in message.columns if column.identity)
        table = None
        decode: pgoutput.Decode = _undecoded
        if self._selection.has(f"{message.schema}.{message.name}"):
            table = self._table(message, identity)
            codecs = [self._types.codec(column.oid, column.typmod) for column in message.columns]
            decode = pgoutput.make_decode(names, codecs)
        full = message.replica_identity == "f"
        self[message.oid] = Relation(
            message.oid,
            table,
            decode,
            identity,
            full,
            not full and table is not None and bool(table.key) and set(table.key) <= set(identity),
            () if table is None else tuple(names.index(name) for name in table.key),
            {column.name: (column.oid, column.typmod) for column in message.columns},
        )

    def _table(self, message: pgoutput.RelationMessage, identity: tuple[str, ...]) -> Table:
        oid = int.from_bytes(message.oid, "big")
        with self._address.errors(), self._catalog.cursor() as cursor:
            current = describe(cursor, [oid], self.publication)[oid]
            self._types.load(cursor, {column.oid for column in message.columns})
            oids = [column.oid for column in message.columns]
            typmods = [column.typmod for column in message.columns]
            cursor.execute(_FORMATS, (oids, typmods))
            formats = [text for (text,) in cursor.fetchall()]
        key = _key(message, current.key, identity)
        required = {column.name for column in current.columns if column.required} | set(key)
        columns = [
            RawColumn(c.name, c.oid, c.typmod, text, c.name in required)
            for c, text in zip(message.columns, formats, strict=True)
        ]
        return self._interner.intern(
            make_table(message.schema, message.name, columns, key, self._types)
        )


def _key(
    message: pgoutput.RelationMessage, current: tuple[str, ...], identity: tuple[str, ...]
) -> tuple[str, ...]:
    """The key at the time of the change."""
    if message.replica_identity == "d":  # the identity is the primary key, but in column order
        return current if set(current) == set(identity) else identity
    if current and {column.name for column in message.columns}.issuperset(current):
        return current
    return identity if message.replica_identity == "i" else ()


def _undecoded(data: bytes, at: int) -> tuple[Row, int]:
    raise AssertionError("a table that is not captured is not decoded")
