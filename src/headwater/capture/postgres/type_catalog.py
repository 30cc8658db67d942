"""Types by oid, read from the database once: from a column's type to its codec."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from headwater.capture.postgres.values import TEXT, Codec, array_codec, base_codec, enum_codec

_QUERY: Final = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typelem::int8, t.typbasetype::int8,
       t.typtypmod, t.typcategory = 'A' AND t.typlen = -1 AND t.oid NOT IN (22, 30), e.typdelim,
       ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder)
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type e ON e.oid = t.typelem
WHERE t.oid = ANY(%s::oid[])
"""
_MAX_DEPTH: Final = 16  # domains over domains


@dataclass(frozen=True, slots=True)
class _Type:
    schema: str
    name: str
    kind: str  # b base, c composite, d domain, e enum, r range, m multirange
    element: int
    base: int
    typmod: int
    is_array: bool
    delimiter: str
    labels: tuple[str, ...]


class TypeCatalog:
    """Not thread-safe; each reader has its own."""

    def __init__(self, decimals: str, times: str) -> None:
        self._decimals = decimals
        self._iso_times = times == "iso"
        self._types: dict[int, _Type] = {}
        self._codecs: dict[tuple[int, int], Codec] = {}

    def load(self, cursor: Any, oids: Iterable[int]) -> None:
        """Learns types (and those they are made of) that are not known yet. Enums are read again,
        since they can get new labels; a type that is gone by now is read as text.
        """
        wanted = {oid for oid in oids if oid not in self._types or self._types[oid].kind == "e"}
        for _ in range(_MAX_DEPTH):
            if not wanted:
                return
            cursor.execute(_QUERY, (sorted(wanted),))
            found: set[int] = set()
            for oid, *fields in cursor.fetchall():
                fields[-1] = tuple(fields[-1])
                known = _Type(*fields)
                if self._types.get(oid) != known:
                    self._types[oid] = known
                    self._codecs.clear()
                found.update(part for part in (known.element, known.base) if part)
            wanted = {oid for oid in found if oid not in self._types}

    def codec(self, oid: int, typmod: int) -> Codec:
        codec = self._codecs.get((oid, typmod))
        if codec is None:
            codec = self._codecs[oid, typmod] = self._made(oid, typmod)
        return codec

    def _made(self, oid: int, typmod: int) -> Codec:
        known = self._types.get(oid)
        if known is None:
            return TEXT
        if known.kind == "d":
            return self.codec(known.base, known.typmod)
        if known.is_array:
            return array_codec(self.codec(known.element, typmod), known.delimiter or ",")
        if known.kind == "e":
            return enum_codec(known.labels)
        return base_codec(known.schema, known.name, typmod, self._decimals, self._iso_times)
