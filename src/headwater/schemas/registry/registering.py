"""Registration of a schema: the version that is there already, or the record of a new one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from headwater.errors import SchemaRefused
from headwater.schemas import codes
from headwater.schemas.compatibility import Older, incompatibilities
from headwater.schemas.registry import records
from headwater.schemas.registry.parsed_cache import ParsedCache
from headwater.schemas.registry.records import Entry, Key, Written
from headwater.schemas.registry.subject_settings import (
    IMPORT,
    check_registrable,
    config_in_scope,
    mode_in_scope,
)
from headwater.schemas.registry.tables import Tables, fingerprint
from headwater.schemas.schema import Parsed, Schema

MAX_ID = (1 << 31) - 1


class Wanted(NamedTuple):
    """What a client registers; without id and version, which the registry chooses."""

    subject: str
    schema: Schema  # with its canonical text
    id: int = -1
    version: int = 0


def register(tables: Tables, parsed: ParsedCache, wanted: Wanted) -> tuple[Entry, list[Written]]:
    """The version, and the records that make it; none if it is there. Raises SchemaRefused if it is
    not compatible, or may not be.
    """
    subject, schema = wanted.subject, wanted.schema
    check_registrable(tables, subject, has_id=wanted.id >= 0)
    entries = tables.entries(subject, deleted=True)
    there = find(tables, parsed, wanted)
    if there is not None and not there.is_deleted:
        return there, []
    if mode_in_scope(tables, subject) != IMPORT:
        _refuse_incompatible(tables, parsed, wanted)
    next_version = max((entry.version for entry in entries), default=0) + 1
    version = wanted.version if wanted.version > 0 else next_version
    if wanted.version > 0 and wanted.id < 0 and version != next_version:
        raise SchemaRefused(
            codes.INVALID_SCHEMA,
            "Version is not one more than previous version",
            detail=f"{version}, the next one is {next_version}",
        )
    schema_id = wanted.id
    if schema_id < 0:
        schema_id = tables.id_of_fingerprint.get(fingerprint(schema), tables.max_id + 1)
        if schema_id > MAX_ID:
            raise SchemaRefused(codes.STORE_FAILED, "there are no ids left")
    else:
        _refuse_other_id(tables, wanted)
    entry = Entry(subject, version, schema_id, schema)
    # The same schema was deleted before: its old version is replaced.
    written = [
        records.json_record(Key(records.SCHEMA, subject, former.version), None)
        for former in entries
        if former.is_deleted
        and former.id == schema_id
        and former.version < version
        and not any(tables.references_to((subject, former.version), deleted=True))
    ]
    return entry, [*written, records.entry_record(entry)]


def find(tables: Tables, parsed: ParsedCache, wanted: Wanted) -> Entry | None:
    """The version of the subject that is this schema; the last one, and rather one that is not
    deleted. A text that another registry has written in another way is recognised.
    """
    entries = tables.entries(wanted.subject, deleted=True)
    entries.sort(key=lambda entry: (not entry.is_deleted, entry.version), reverse=True)
    entries = [
        entry
        for entry in entries
        if (wanted.version <= 0 or entry.version == wanted.version)
        and (wanted.id < 0 or entry.id == wanted.id)
        and entry.schema.type == wanted.schema.type
    ]
    print_ = fingerprint(wanted.schema)
    for entry in entries:
        if fingerprint(entry.schema) == print_:
            return entry
    for entry in entries:
        stored = entry.schema
        if (stored.references, stored.metadata, stored.rule_set) != (
            wanted.schema.references,
            wanted.schema.metadata,
            wanted.schema.rule_set,
        ):
            continue
        try:
            if parsed.get(stored).text == wanted.schema.text:
                return entry
        except SchemaRefused:
            continue  # what another registry has taken and we do not understand
    return None


def why_incompatible(
    parsed: ParsedCache, config: Mapping[str, Any], schema: Parsed, entries: list[Entry]
) -> list[str]:
    """What stands between the schema and those of these versions that the level compares it with.
    Raises SchemaRefused.
    """
    level = config["compatibilityLevel"]
    if level == "NONE":
        return []
    if not level.endswith("_TRANSITIVE"):
        entries = entries[-1:]
    is_lenient = config.get("compatibilityPolicy") == "LENIENT"
    return incompatibilities(schema, _older(parsed, entries), level, is_lenient=is_lenient)


def _older(parsed: ParsedCache, entries: list[Entry]) -> list[Older]:
    """Raises SchemaRefused for one that we do not understand: another registry has taken it, or
    what it refers to is gone.
    """
    older = []
    for entry in entries:
        try:
            older.append(Older(entry.version, parsed.get(entry.schema)))
        except SchemaRefused as error:
            raise SchemaRefused(
                error.code,
                f"nothing can be compared with version {entry.version} of {entry.subject}",
                detail=str(error),
                hint="with compatibility NONE nothing is compared",
            ) from error
    return older


def _refuse_incompatible(tables: Tables, parsed: ParsedCache, wanted: Wanted) -> None:
    config = config_in_scope(tables, wanted.subject)
    entries = tables.entries(wanted.subject)
    messages = why_incompatible(parsed, config, parsed.get(wanted.schema), entries)
    if messages:
        raise SchemaRefused(
            codes.INCOMPATIBLE,
            "Schema being registered is incompatible with an earlier schema for subject"
            f' "{wanted.subject}", details: [{", ".join(messages)}]',
        )


def _refuse_other_id(tables: Tables, wanted: Wanted) -> None:
    """An id that is imported must not stand for another schema."""
    other = tables.of_id(wanted.id)
    if other is not None and fingerprint(other.schema) != fingerprint(wanted.schema):
        raise SchemaRefused(
            codes.NOT_PERMITTED,
            f"Overwrite new schema with id {wanted.id} is not permitted.",
            detail=f"{other.subject} version {other.version} has it",
        )
    known = tables.id_of_fingerprint.get(fingerprint(wanted.schema))
    if known is not None and known != wanted.id:
        places = tables.places_of_id.get(known, {})
        if any(subject == wanted.subject for subject, _ in places):
            raise SchemaRefused(
                codes.ID_DOES_NOT_MATCH,
                f"Schema already registered with id {known} instead of input id {wanted.id}",
            )
