"""The catalog of types by oid, cached: from a column's type to its codec."""

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
        """Loads types (and those they are made of) that are not cached yet. Enums are read again,
        since they can get new labels; a type that was dropped since is read as text.
        """
        wanted = {oid for oid in oids if oid not in self._types or self._types[oid].kind == "e"}
        for _ in range(_MAX_DEPTH):
            if not wanted:
                return
            cursor.execute(_QUERY, (sorted(wanted),))
            found: set[int] = set()
            for oid, *fields in cursor.fetchall():
                fields[-1] = tuple(fields[-1])
                cached = _Type(*fields)
                if self._types.get(oid) != cached:
                    self._types[oid] = cached
                    self._codecs.clear()
                found.update(part for part in (cached.element, cached.base) if part)
            wanted = {oid for oid in found if oid not in self._types}

    def codec(self, oid: int, typmod: int) -> Codec:
        codec = self._codecs.get((oid, typmod))
        if codec is None:
            codec = self._codecs[oid, typmod] = self._made(oid, typmod)
        return codec

    def _made(self, oid: int, typmod: int) -> Codec:
        cached = self._types.get(oid)
        if cached is None:
            return TEXT
        if cached.kind == "d":
            return self.codec(cached.base, cached.typmod)
        if cached.is_array:
            return array_codec(self.codec(cached.element, typmod), cached.delimiter or ",")
        if cached.kind == "e":
            return enum_codec(cached.labels)
        return base_codec(cached.schema, cached.name, typmod, self._decimals, self._iso_times)
