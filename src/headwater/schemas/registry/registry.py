"""The registry of schemas: what its clients ask and change.

Questions are answered from memory, which follows the topic within a fraction of a second, and at
once for what this process has written. What is not found is looked for in the topic first. Changes
take a few milliseconds, and block: they are for threads.
"""

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

from headwater.errors import SchemaRefused
from headwater.schema_records import TOPIC
from headwater.schemas import codes
from headwater.schemas.registry import deletion, records
from headwater.schemas.registry.parsed_cache import ParsedCache
from headwater.schemas.registry.records import Entry, Key, Written
from headwater.schemas.registry.registering import Wanted, find, register, why_incompatible
from headwater.schemas.registry.replica import Replica
from headwater.schemas.registry.subject_settings import (
    IMPORT,
    check_writable,
    checked_subject,
    config_in_scope,
    mode_in_scope,
    read_config,
    read_mode,
)
from headwater.schemas.registry.tables import Tables
from headwater.schemas.schema import TYPES, Parsed, Reference, Schema
from headwater.settings import ClientSettings

LATEST: Final = -1
_MAX_VERSION: Final = (1 << 31) - 1
_MAX_TEXTS_BYTES: Final = 256 << 20
_MAX_TEXT_BYTES: Final = 900_000  # with what stands around it, it is a record


class Registry:
    """May be used by several threads. `open` comes first, `close` last."""

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        *,
        topic: str = TOPIC,
        max_texts_bytes: int = _MAX_TEXTS_BYTES,
        patience_s: float = 15.0,
    ) -> None:
        self._max_texts_bytes = max_texts_bytes
        self._parsed = ParsedCache(self._resolve)
        self._replica = Replica(
            bootstrap, login, self._parsed.clear, topic=topic, patience_s=patience_s
        )

    def open(self) -> None:
        """Creates the topic if there is none, and reads it. Raises BrokerUnreachable."""
        self._replica.open()

    def close(self) -> None:
        self._replica.close()

    # Schemas

    def _resolve(self, reference: Reference) -> Schema:
        version = reference.version
        with self._replica.lock:
            if version == LATEST:
                entries = self._replica.tables.entries(reference.subject)
                entry = entries[-1] if entries else None
            else:
                entry = self._replica.tables.entry((reference.subject, version))
        if entry is None:
            raise SchemaRefused(
                codes.INVALID_SCHEMA,
                f'No schema reference found for subject "{reference.subject}" and version'
                f" {version}",
                detail=f"reference {reference.name}",
            )
        return entry.schema

    def parsed(self, schema: Schema) -> Parsed:
        """Raises SchemaRefused for what is no schema."""
        return self._parsed.get(schema)

    def _canonical(self, subject: str | None, schema: Schema, normalize: bool) -> Schema:
        """The same with its canonical text, and with the versions that references mean."""
        references = []
        for reference in schema.references:
            if reference.version == LATEST:
                with self._replica.lock:
                    entries = self._replica.tables.entries(reference.subject)
                version = entries[-1].version if entries else LATEST
                references.append(Reference(reference.name, reference.subject, version))
            else:
                references.append(reference)
        made = Schema(schema.text, schema.type, tuple(references), schema.metadata, schema.rule_set)
        parsed = self._parsed.get(made)
        with self._replica.lock:
            normalize = normalize or config_in_scope(self._replica.tables, subject).get(
                "normalize", False
            )
        text = parsed.normalized() if normalize else parsed.text
        made = Schema(text, made.type, made.references, made.metadata, made.rule_set)
        self._parsed.get(made)  # while no lock is held
        return made

    def register(
        self,
        subject: str,
        schema: Schema,
        *,
        normalize: bool = False,
        schema_id: int = -1,
        version: int = 0,
    ) -> Entry:
        """The version of the subject that has this schema; a new one, if there is none. Raises
        SchemaRefused.
        """
        checked_subject(subject)
        made = self._canonical(subject, schema, normalize)
        if len(made.text.encode()) > _MAX_TEXT_BYTES:
            raise SchemaRefused(
                codes.SCHEMA_TOO_LARGE, "Register operation failed because schema is too large"
            )
        wanted = Wanted(subject, made, schema_id, version)
        with self._replica.lock:
            there = find(self._replica.tables, self._parsed, wanted)
            if there is not None and not there.is_deleted:
                return there
        return self._replica.change(lambda tables: self._registered(tables, wanted))

    def _registered(self, tables: Tables, wanted: Wanted) -> tuple[Entry, list[Written]]:
        entry, written = register(tables, self._parsed, wanted)
        if written and tables.text_bytes + len(entry.schema.text) > self._max_texts_bytes:
            raise SchemaRefused(
                codes.STORE_FAILED,
                "the registry is full",
                detail=f"its schemas have {tables.text_bytes:,} bytes",
                hint="delete subjects for good: DELETE /subjects/S, then with ?permanent=true",
            )
        return entry, written

    def look_up(
        self, subject: str, schema: Schema, *, normalize: bool = False, deleted: bool = False
    ) -> Entry:
        """The version of the subject that is this schema. Raises SchemaRefused."""
        self._expect_subject(subject, deleted=deleted)
        wanted = Wanted(subject, self._canonical(subject, schema, normalize))

        def look(tables: Tables) -> Entry | None:
            entry = find(tables, self._parsed, wanted)
            return entry if entry is not None and (deleted or not entry.is_deleted) else None

        found = self._replica.found(look)
        if found is None:
            raise SchemaRefused(codes.SCHEMA_NOT_FOUND, "Schema not found")
        return found

    def why_incompatible(
        self, subject: str, schema: Schema, version: int | None, *, normalize: bool = False
    ) -> list[str]:
        """Against one version (LATEST: the last, if there is one), or by None against those that
        registering would compare it with. Nothing: it is compatible. Raises SchemaRefused.
        """
        parsed = self._parsed.get(self._canonical(subject, schema, normalize))
        if version is not None and version != LATEST:
            entries = [self.version(subject, version)]
        else:
            with self._replica.lock:
                entries = self._replica.tables.entries(subject)
            entries = entries if version is None else entries[-1:]
        with self._replica.lock:
            config = config_in_scope(self._replica.tables, subject)
        return why_incompatible(self._parsed, config, parsed, entries)

    # Questions

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        with self._replica.lock:
            return sorted(
                subject
                for subject in self._replica.tables.subjects
                if subject.startswith(prefix) and self._is_asked(subject, deleted, deleted_only)
            )

    def _is_asked(self, subject: str, deleted: bool, deleted_only: bool) -> bool:
        is_there = bool(self._replica.tables.entries(subject))
        return not is_there if deleted_only else deleted or is_there

    def _expect_subject(self, subject: str, *, deleted: bool) -> list[Entry]:
        found = self._replica.found(lambda tables: tables.entries(subject, deleted=deleted) or None)
        if found is None:
            raise SchemaRefused(codes.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        return found

    def versions(self, subject: str, *, deleted: bool = False) -> list[Entry]:
        """In their order. Raises SchemaRefused if there is no such subject."""
        return self._expect_subject(subject, deleted=deleted)

    def version(self, subject: str, version: int, *, deleted: bool = False) -> Entry:
        """LATEST is the last one. Raises SchemaRefused if there is none."""

        def look(tables: Tables) -> Entry | None:
            if version == LATEST:
                entries = tables.entries(subject, deleted=deleted)
                return entries[-1] if entries else None
            entry = tables.entry((subject, version))
            return entry if entry is not None and (deleted or not entry.is_deleted) else None

        found = self._replica.found(look)
        if found is None:
            self._expect_subject(subject, deleted=deleted)
            raise SchemaRefused(codes.VERSION_NOT_FOUND, f"Version {version} not found.")
        return found

    def of_id(self, schema_id: int) -> Entry:
        """A version with this id. Raises SchemaRefused."""
        found = self._replica.found(lambda tables: tables.of_id(schema_id))
        if found is None:
            raise SchemaRefused(codes.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
        return found

    def known_id(self, schema_id: int) -> Entry | None:
        """As `of_id`, from memory alone: for the event loop."""
        with self._replica.lock:
            return self._replica.tables.of_id(schema_id)

    def of_guid(self, text: str) -> Entry:
        """A version of the schema with this content. Raises SchemaRefused."""
        with contextlib.suppress(ValueError):
            digest = uuid.UUID(text).bytes

            def look(tables: Tables) -> Entry | None:
                ids = (tables.id_of_fingerprint.get(kind.encode() + digest) for kind in TYPES)
                return next((tables.of_id(found) for found in ids if found is not None), None)

            found = self._replica.found(look)
            if found is not None:
                return found
        raise SchemaRefused(codes.SCHEMA_NOT_FOUND, f"Schema {text[:100]} not found")

    def places_of(self, schema_id: int, *, deleted: bool = False) -> list[Entry]:
        """All versions with this id. Raises SchemaRefused if there is none."""
        self.of_id(schema_id)
        with self._replica.lock:
            places = sorted(self._replica.tables.places_of_id.get(schema_id, ()))
            found = [
                entry
                for place in places
                if (entry := self._replica.tables.entry(place)) is not None
            ]
        return [entry for entry in found if deleted or not entry.is_deleted]

    def entries(self, prefix: str = "", *, deleted: bool = False) -> list[Entry]:
        """The versions of all subjects."""
        with self._replica.lock:
            return [
                entry
                for subject in sorted(self._replica.tables.subjects)
                if subject.startswith(prefix)
                for entry in self._replica.tables.entries(subject, deleted=deleted)
            ]

    def references_to(self, subject: str, version: int, *, deleted: bool = False) -> list[int]:
        """Ids of the schemas that refer to a version. Raises SchemaRefused if there is none."""
        entry = self.version(subject, version, deleted=True)
        with self._replica.lock:
            referring = self._replica.tables.references_to(
                (subject, entry.version), deleted=deleted
            )
            return sorted({other.id for other in referring})

    @property
    def max_id(self) -> int:
        return self._replica.tables.max_id

    # Deletion

    def delete_version(self, subject: str, version: int, *, is_permanent: bool = False) -> int:
        """The version that was deleted. Raises SchemaRefused."""
        entry = self.version(subject, version, deleted=version != LATEST or is_permanent)

        def decide(tables: Tables) -> tuple[int, list[Written]]:
            current = tables.entry((subject, entry.version))
            if current is None:
                raise SchemaRefused(codes.VERSION_NOT_FOUND, f"Version {entry.version} not found.")
            written = deletion.delete_version(tables, current, is_permanent=is_permanent)
            return entry.version, written

        return self._replica.change(decide)

    def delete_subject(self, subject: str, *, is_permanent: bool = False) -> list[int]:
        """The versions that were deleted. Raises SchemaRefused."""

        def decide(tables: Tables) -> tuple[list[int], list[Written]]:
            versions = [entry.version for entry in tables.entries(subject, deleted=is_permanent)]
            return versions, deletion.delete_subject(tables, subject, is_permanent=is_permanent)

        return self._replica.change(decide)

    # Settings; the subject None stands for all

    def config(self, subject: str | None, *, in_scope: bool = False) -> dict[str, Any]:
        """Raises SchemaRefused if a subject has none of its own, unless what applies is wanted."""
        with self._replica.lock:
            if subject is None or in_scope:
                return config_in_scope(self._replica.tables, subject)
            if subject in self._replica.tables.configs:
                found = dict(self._replica.tables.configs[subject])
                found.pop("subject", None)
                return found
        raise SchemaRefused(
            codes.NO_SUBJECT_CONFIG,
            f"Subject '{subject}' does not have subject-level compatibility configured",
        )

    def set_config(self, subject: str | None, request: Mapping[str, Any]) -> dict[str, Any]:
        """What is set then. Raises SchemaRefused."""
        if subject is not None:
            checked_subject(subject)
        changes = read_config(request)

        def decide(tables: Tables) -> tuple[dict[str, Any], list[Written]]:
            check_writable(tables, subject)
            made = {**tables.configs.get(subject, {}), **changes}
            if subject is not None:
                made["subject"] = subject
            return made, [records.json_record(Key(records.CONFIG, subject), made)]

        return self._replica.change(decide)

    def delete_config(self, subject: str | None) -> dict[str, Any]:
        """What was set. Raises SchemaRefused if a subject had nothing."""

        def decide(tables: Tables) -> tuple[dict[str, Any], list[Written]]:
            check_writable(tables, subject)
            if subject is not None and subject not in tables.configs:
                raise SchemaRefused(codes.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
            former = config_in_scope(tables, subject)
            return former, [records.json_record(Key(records.CONFIG, subject), None)]

        return self._replica.change(decide)

    def mode(self, subject: str | None, *, in_scope: bool = False) -> str:
        """Raises SchemaRefused if a subject has none of its own, unless what applies is wanted."""
        with self._replica.lock:
            if subject is None or in_scope:
                return mode_in_scope(self._replica.tables, subject)
            if subject in self._replica.tables.modes:
                return self._replica.tables.modes[subject]
        raise SchemaRefused(
            codes.NO_SUBJECT_MODE,
            f"Subject '{subject}' does not have subject-level mode configured",
        )

    def set_mode(self, subject: str | None, value: object, *, is_forced: bool = False) -> str:
        """Raises SchemaRefused. Ids are imported into subjects that are empty, unless forced."""
        if subject is not None:
            checked_subject(subject)
        mode = read_mode(value)

        def decide(tables: Tables) -> tuple[str, list[Written]]:
            if mode == IMPORT and not is_forced:
                has_schemas = tables.entries(subject) if subject else tables.subjects
                if mode_in_scope(tables, subject) != IMPORT and has_schemas:
                    raise SchemaRefused(
                        codes.NOT_PERMITTED, "Cannot import since found existing subjects"
                    )
            made = {"mode": mode} if subject is None else {"subject": subject, "mode": mode}
            return mode, [records.json_record(Key(records.MODE, subject), made)]

        return self._replica.change(decide)

    def delete_mode(self, subject: str | None) -> str:
        """The mode that was set. Raises SchemaRefused if a subject had none."""

        def decide(tables: Tables) -> tuple[str, list[Written]]:
            if subject is not None and subject not in tables.modes:
                raise SchemaRefused(codes.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
            former = mode_in_scope(tables, subject)
            return former, [records.json_record(Key(records.MODE, subject), None)]

        return self._replica.change(decide)


def read_version(text: str) -> int:
    """Of a path: a number, or "latest". Raises SchemaRefused."""
    if text in ("latest", "-1"):
        return LATEST
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= _MAX_VERSION:
        return int(text)
    raise SchemaRefused(
        codes.INVALID_VERSION,
        f"The specified version '{text[:100]}' is not a valid version id. Allowed values are"
        ' between [1, 2^31-1] and the string "latest"',
    )
