"""What explains the values of a topic that do not explain themselves: schemas."""

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.access import Access
from headwater.schema_lookup.lookup import SchemaLookup, looks_framed
from headwater.schema_lookup.sources import schema_source
from headwater.schemas.wire_format import unframed


class _Lookup(SchemaLookup):
    """A part of an access."""

    def stop(self) -> None:
        """It has no streams."""


class Schemas(NamedTuple):
    avro: str | None  # of [console.avro_schemas]
    lookup: SchemaLookup  # of the registry, with the login of the caller

    def look_up(self, ids: Iterable[int]) -> None:
        """These schemas, and those that there are not, are remembered then. For a thread."""
        for schema_id in ids:
            with suppress(HeadwaterError):
                self.lookup.parsed(schema_id)


def schema_id(value: bytes | None) -> int | None:
    """Of the schema that a value may begin with."""
    return unframed(value)[0] if value is not None and looks_framed(value) else None


def schemas_of(config: Config, access: Access, topic: str) -> Schemas:
    lookup = access.part(
        _Lookup,
        lambda: _Lookup(schema_source(config.schemas, access.bootstrap, access.login)),
    )
    return Schemas(config.console.avro_schemas.get(topic), lookup)
