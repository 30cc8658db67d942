"""The state of the registry, as the records of `_schemas` make it, in their order.

It has versions of subjects (soft deleted ones too), ids and fingerprints of schemas, references
between versions, settings and modes.
"""

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from headwater.schemas.registry import records
from headwater.schemas.registry.records import Entry, Key, Malformed
from headwater.schemas.schema import Schema

Place = tuple[str, int]  # subject and version


class Tables:
    """To be changed and iterated under its owner's lock."""

    def __init__(self) -> None:
        self.subjects: dict[str, dict[int, Entry]] = {}
        self.places_of_id: dict[int, dict[Place, None]] = {}
        self.id_of_fingerprint: dict[bytes, int] = {}
        self.referring: dict[Place, set[Place]] = {}
        self.configs: dict[str | None, dict[str, Any]] = {}
        self.modes: dict[str | None, str] = {}
        self.max_id = 0
        self.text_bytes = 0
        self.malformed = 0  # records that were none

    def apply(self, key_data: bytes | None, value: bytes | None) -> None:
        """One record. What is none of the registry's is counted and changes nothing."""
        try:
            key = records.read_key(key_data or b"")
            if key is None:
                return
            match key.kind:
                case records.SCHEMA:
                    self._set(key, None if value is None else records.read_entry(key, value))
                case records.CONFIG:
                    self._set_config(key.subject, value)
                case records.MODE:
                    self._set_mode(key.subject, value)
                case records.DELETE_SUBJECT if value is not None:
                    self._delete_subject(records.read_value(value))
                case records.CLEAR_SUBJECT if value is not None:
                    for version in list(self.subjects.get(key.subject or "", ())):
                        self._set(Key(records.SCHEMA, key.subject, version), None)
                case records.NOOP if value is not None:
                    found = records.read_value(value).get("maxId")
                    if isinstance(found, int):
                        self.max_id = max(self.max_id, found)
        except Malformed:
            self.malformed += 1

    def _set(self, key: Key, entry: Entry | None) -> None:
        subject, place = key.subject or "", (key.subject or "", key.version)
        versions = self.subjects.setdefault(subject, {})
        former = versions.pop(key.version, None)
        if former is not None:
            self._forget(former)
        if entry is not None:
            versions[key.version] = entry
            if len(versions) > 1 and key.version < max(versions):
                self.subjects[subject] = dict(sorted(versions.items()))
            self.places_of_id.setdefault(entry.id, {})[place] = None
            # The first id of a schema stays its id, in every process.
            self.id_of_fingerprint.setdefault(fingerprint(entry.schema), entry.id)
            for reference in entry.schema.references:
                self.referring.setdefault((reference.subject, reference.version), set()).add(place)
            self.max_id = max(self.max_id, entry.id)
            self.text_bytes += len(entry.schema.text)
        elif not versions:
            del self.subjects[subject]

    def _forget(self, entry: Entry) -> None:
        place = (entry.subject, entry.version)
        places = self.places_of_id.get(entry.id, {})
        places.pop(place, None)
        if not places:
            self.places_of_id.pop(entry.id, None)
            if self.id_of_fingerprint.get(fingerprint(entry.schema)) == entry.id:
                del self.id_of_fingerprint[fingerprint(entry.schema)]
        for reference in entry.schema.references:
            referring = self.referring.get((reference.subject, reference.version))
            if referring is not None:
                referring.discard(place)
                if not referring:
                    del self.referring[reference.subject, reference.version]
        self.text_bytes -= len(entry.schema.text)

    def _delete_subject(self, value: Mapping[str, Any]) -> None:
        subject, last = value.get("subject"), value.get("version")
        if not isinstance(subject, str) or not isinstance(last, int):
            raise Malformed("it deletes no subject")
        versions = self.subjects.get(subject, {})
        for version, entry in versions.items():
            if version <= last:
                versions[version] = entry._replace(is_deleted=True)

    def _set_config(self, subject: str | None, value: bytes | None) -> None:
        if value is None:
            self.configs.pop(subject, None)
        else:
            self.configs[subject] = records.read_value(value)

    def _set_mode(self, subject: str | None, value: bytes | None) -> None:
        mode = None if value is None else records.read_value(value).get("mode")
        if isinstance(mode, str):
            self.modes[subject] = mode
        else:
            self.modes.pop(subject, None)

    # Questions

    def entries(self, subject: str, *, deleted: bool = False) -> list[Entry]:
        """The versions of a subject in their order, soft deleted ones only if asked for."""
        found = self.subjects.get(subject, {}).values()
        return [entry for entry in found if deleted or not entry.is_deleted]

    def entry(self, place: Place) -> Entry | None:
        return self.subjects.get(place[0], {}).get(place[1])

    def of_id(self, schema_id: int) -> Entry | None:
        """Any version with this id; one that is not deleted, if there is one."""
        found = None
        for place in self.places_of_id.get(schema_id, ()):
            entry = self.entry(place)
            if entry is not None and not entry.is_deleted:
                return entry
            found = found or entry
        return found

    def references_to(self, place: Place, *, deleted: bool = False) -> Iterable[Entry]:
        for other in sorted(self.referring.get(place, ())):
            entry = self.entry(other)
            if entry is not None and (deleted or not entry.is_deleted):
                yield entry


def fingerprint(schema: Schema) -> bytes:
    """Equal for schemas that share an id."""
    return schema.type.encode() + digest(schema)


def digest(schema: Schema) -> bytes:
    """MD5 of the text, its references, metadata and rules, as Confluent's registry computes it for
    schemas without metadata and rules.
    """
    hashed = hashlib.md5(schema.text.encode(), usedforsecurity=False)
    for reference in schema.references:
        hashed.update(reference.name.encode())
        hashed.update(reference.subject.encode())
        hashed.update(reference.version.to_bytes(4, "big", signed=True))
    for part in (schema.metadata, schema.rule_set):
        if part:
            hashed.update(b"\x01" + orjson.dumps(part, option=orjson.OPT_SORT_KEYS))
    return hashed.digest()


def guid(schema: Schema) -> str:
    """The global id of a schema's content."""
    return str(uuid.UUID(bytes=digest(schema)))
