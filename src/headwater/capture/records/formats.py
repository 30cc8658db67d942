"""The format of a capture's records: JSON, or Avro by a schema registry."""

import contextlib

from headwater.capture.contract import Source
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError
from headwater.schema_lookup.registration import schema_registration
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings
from headwater.subjects.access import PersonalTopics


def shaper_of(
    settings: CaptureSettings,
    source: Source,
    schemas: SchemasSettings,
    bootstrap: str,
    login: ClientSettings,
    stack: contextlib.ExitStack,
    personal: PersonalTopics | None,
) -> Shaper:
    """The shaper of the capture's format; `stack` closes what it needs. Raises ConfigError."""
    if settings.format == "json":
        return Shaper(settings, source.connector, source.database, personal)
    if source.snapshots_itself:
        raise ConfigError(
            f'capture {settings.name}: format = "avro" is not for sources that Debezium reads',
            detail="their records are written as Debezium makes them",
        )
    from headwater.capture.records.avro_records import AvroShaper  # few captures need it

    registration = schema_registration(schemas, bootstrap, login)
    stack.callback(registration.close)
    return AvroShaper(settings, source.connector, source.database, registration, personal)
