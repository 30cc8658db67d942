"""Deletion of versions and subjects: soft first, then for good."""

from headwater.errors import SchemaRefused
from headwater.schemas import codes
from headwater.schemas.registry import records
from headwater.schemas.registry.records import Entry, Key, Written
from headwater.schemas.registry.subject_settings import check_writable
from headwater.schemas.registry.tables import Tables


def delete_version(tables: Tables, entry: Entry, *, is_permanent: bool) -> list[Written]:
    """Raises SchemaRefused if it is deleted already, or not yet; or referred to."""
    check_writable(tables, entry.subject)
    if entry.is_deleted and not is_permanent:
        raise SchemaRefused(
            codes.VERSION_SOFT_DELETED,
            f"Subject '{entry.subject}' Version {entry.version} was soft deleted."
            "Set permanent=true to delete permanently",
        )
    _refuse_referenced(tables, entry, with_deleted=is_permanent)
    if not is_permanent:
        return [records.entry_record(entry._replace(is_deleted=True))]
    if not entry.is_deleted:
        raise SchemaRefused(
            codes.VERSION_NOT_SOFT_DELETED,
            f"Subject '{entry.subject}' Version {entry.version} was not deleted first before being"
            " permanently deleted",
        )
    written = [_tombstone(entry)]
    if len(tables.subjects.get(entry.subject, ())) == 1:
        written += _without_settings(tables, entry.subject)
    return [*written, _highest_id(tables)]


def delete_subject(tables: Tables, subject: str, *, is_permanent: bool) -> list[Written]:
    """All of its versions. Raises SchemaRefused as `delete_version` does."""
    entries = tables.entries(subject, deleted=True)
    if not entries:
        raise SchemaRefused(codes.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
    check_writable(tables, subject)
    if not is_permanent:
        if all(entry.is_deleted for entry in entries):
            raise SchemaRefused(
                codes.SUBJECT_SOFT_DELETED,
                f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
            )
        for entry in entries:
            if not entry.is_deleted:
                _refuse_referenced(tables, entry, with_deleted=False)
        value = {"subject": subject, "version": entries[-1].version}
        written = [records.json_record(Key(records.DELETE_SUBJECT, subject), value)]
        return written + _without_settings(tables, subject)
    if not all(entry.is_deleted for entry in entries):
        raise SchemaRefused(
            codes.SUBJECT_NOT_SOFT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    for entry in entries:
        _refuse_referenced(tables, entry, with_deleted=True)
    return [*(_tombstone(entry) for entry in entries), _highest_id(tables)]


def _refuse_referenced(tables: Tables, entry: Entry, *, with_deleted: bool) -> None:
    place = (entry.subject, entry.version)
    for other in tables.references_to(place, deleted=with_deleted):
        if other.subject == entry.subject and other.version == entry.version:
            continue
        raise SchemaRefused(
            codes.REFERENCE_EXISTS,
            "One or more references exist to the schema {magic=1,keytype=SCHEMA,"
            f"subject={entry.subject},version={entry.version}}}.",
            detail=f"{other.subject} version {other.version} refers to it",
        )


def _tombstone(entry: Entry) -> Written:
    return records.json_record(Key(records.SCHEMA, entry.subject, entry.version), None)


def _highest_id(tables: Tables) -> Written:
    """So that the id of what was deleted for good is not given again, after a compaction."""
    return records.json_record(Key(records.NOOP), {"maxId": tables.max_id})


def _without_settings(tables: Tables, subject: str) -> list[Written]:
    written = []
    if subject in tables.modes:
        written.append(records.json_record(Key(records.MODE, subject), None))
    if subject in tables.configs:
        written.append(records.json_record(Key(records.CONFIG, subject), None))
    return written
