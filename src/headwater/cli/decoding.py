"""Values with the id of a schema as JSON, for commands that read the last records of a topic."""

import contextlib
from collections.abc import Iterator

from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.pipelines.recent_records import Decode
from headwater.schema_lookup.lookup import SchemaLookup, looks_framed
from headwater.schema_lookup.sources import schema_source


@contextlib.contextmanager
def decoding(loaded: Config) -> Iterator[Decode]:
    """Schemas are looked up when the first value comes that needs one."""
    lookup: list[SchemaLookup] = []

    def decode(value: bytes) -> bytes:
        if not looks_framed(value):
            return value
        if not lookup:
            source = schema_source(loaded.schemas, loaded.bootstrap(), loaded.client)
            lookup.append(SchemaLookup(source))
        try:
            return lookup[0].decode(value).json()
        except HeadwaterError as error:
            raise ValueError(str(error)) from error

    try:
        yield decode
    finally:
        for opened in lookup:
            opened.close()
