"""The records of `_schemas`: Confluent's keys and values, as JSON.

    {"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}
        {"subject":…,"version":1,"id":7,"schemaType":…,"references":[…],"schema":…,"deleted":false}
    {"keytype":"CONFIG","subject":…,"magic":0}           {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":…,"magic":0}             {"mode":"READONLY"}
    {"keytype":"DELETE_SUBJECT","subject":…,"magic":0}   {"subject":…,"version":3}: up to it
    {"keytype":"CLEAR_SUBJECT","subject":…,"magic":0}    {"subject":…}: as if it had never been
    {"keytype":"NOOP","magic":0}                         ours: {"maxId":41}, which others ignore

Without a subject a config or mode is that of all. A null value removes what the key stands for.
Keys are compared as bytes by compaction, so the order of their members is part of the format.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from headwater.schema_records import (
    CLEAR_SUBJECT,
    CONFIG,
    DELETE_SUBJECT,
    MODE,
    NOOP,
    SCHEMA,
    Key,
    Malformed,
    key_bytes,
    read_key,
    read_object,
)
from headwater.schemas.schema import AVRO, Reference, Schema

__all__ = [
    "CLEAR_SUBJECT", "CONFIG", "DELETE_SUBJECT", "MODE", "NOOP", "SCHEMA", "Entry", "Key",
    "Malformed", "Written", "entry_record", "json_record", "key_bytes", "read_entry", "read_key",
    "read_schema", "read_value",
]  # fmt: skip


class Written(NamedTuple):
    """A record, as bytes."""

    key: bytes
    value: bytes | None


class Entry(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False


def entry_record(entry: Entry) -> Written:
    schema = entry.schema
    members: dict[str, Any] = {
        "subject": entry.subject, "version": entry.version, "id": entry.id,
    }  # fmt: skip
    if schema.type != AVRO:
        members["schemaType"] = schema.type
    if schema.references:
        members["references"] = [reference.as_json() for reference in schema.references]
    if schema.metadata:
        members["metadata"] = schema.metadata
    if schema.rule_set:
        members["ruleSet"] = schema.rule_set
    members |= {"schema": schema.text, "deleted": entry.is_deleted}
    key = Key(SCHEMA, entry.subject, entry.version)
    return Written(key_bytes(key), orjson.dumps(members))


def read_entry(key: Key, data: bytes) -> Entry:
    """Raises Malformed."""
    members = read_object(data)
    schema_id = members.get("id")
    if not isinstance(schema_id, int):
        raise Malformed("its id is no number")
    is_deleted = members.get("deleted") is True
    return Entry(key.subject or "", key.version, schema_id, read_schema(members), is_deleted)


def read_schema(members: Mapping[str, Any]) -> Schema:
    """From the members that records and requests have in common. Raises Malformed."""
    text, kind = members.get("schema"), members.get("schemaType")
    if kind in (None, ""):
        kind = AVRO
    if not isinstance(text, str) or not isinstance(kind, str):
        raise Malformed("its schema is no text")
    given = members.get("references") or ()
    if not isinstance(given, list | tuple):
        raise Malformed("its references are no list")
    references = []
    for reference in given:
        if not isinstance(reference, dict):
            raise Malformed("a reference is no object")
        name, subject, version = (reference.get(part) for part in ("name", "subject", "version"))
        if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
            raise Malformed("a reference needs a name, a subject and a version")
        references.append(Reference(name, subject, version))
    metadata, rule_set = members.get("metadata"), members.get("ruleSet")
    for part in (metadata, rule_set):
        if part is not None and not isinstance(part, dict):
            raise Malformed("metadata and ruleSet are objects")
    return Schema(text, kind.upper(), tuple(references), metadata, rule_set)


def json_record(key: Key, value: Mapping[str, Any] | None) -> Written:
    return Written(key_bytes(key), None if value is None else orjson.dumps(value))


def read_value(data: bytes) -> dict[str, Any]:
    """Raises Malformed."""
    return read_object(data)
