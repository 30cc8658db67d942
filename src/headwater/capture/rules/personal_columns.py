"""Personal columns of a table ([subject.NAME]): encrypted in the rows before and after a change.

They are encrypted behind all other rules: a condition sees them as the database has them, a masked
column is encrypted as masked, and a dropped one is dropped. An id that is hashed names the subject
by its hash, for that is what the topic has.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from headwater.capture.contract import UNAVAILABLE, Column, Row, Table
from headwater.capture.rules.transforms import RowRules
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, HeadwaterError, PersonalDataRefused, TableRefused
from headwater.subjects.access import PersonalTopics
from headwater.subjects.personal import Encryptor, Marked, encrypted_type

# A column's type in the schema topic: encrypted:<kind of subject>:<type>
ENCRYPTED_TYPE: Final = "encrypted:"


def with_encryption(
    rules: RowRules | None, table: Table, topic: str, personal: PersonalTopics
) -> RowRules | None:
    """The table's rules, and the encryption of its personal columns. Raises TableRefused if they
    cannot be encrypted, KeyStoreError if there are no keys.
    """
    marks = personal.marked.get(topic)
    if marks is None:
        return rules
    _refuse(table, marks)
    encryptor = personal.encryptor(topic, _is_left_out)
    assert encryptor is not None, "it is among the marked ones"
    plain = rules or RowRules(table, _unchanged, None, len(table.columns), table.key)
    kinds = {field: mark.kind for mark in marks for field in mark.fields}
    columns = tuple(
        _encrypted(column, kinds[column.name]) if column.name in kinds else column
        for column in plain.shaped.columns
    )
    shaped = replace(plain.shaped, columns=columns)
    return replace(plain, shaped=shaped, encrypt=_encrypting(encryptor, table))


def refuse_statements(settings: CaptureSettings, personal: PersonalTopics) -> None:
    """Raises ConfigError if statements would be published beside the rows that are encrypted."""
    has_statements = settings.options.get("include_query", "").lower() == "true"
    if has_statements and any(topic.startswith(f"{settings.name}.") for topic in personal.marked):
        raise ConfigError(
            f"capture {settings.name}: include_query would publish what [subject] sections encrypt",
            detail="statements have the values that they write",
            hint="take include_query out of its options",
        )


def missing_columns(table: Table, marks: Sequence[Marked]) -> list[str]:
    """Columns that the settings name and the table does not have."""
    columns = {column.name for column in table.columns}
    named = [name for mark in marks for name in (mark.id, *mark.fields)]
    return [name for name in dict.fromkeys(named) if name not in columns]


def check_columns(table: Table, topic: str, personal: PersonalTopics) -> list[HeadwaterError]:
    """What is misspelt, most likely: it would be published as it is."""
    marks = personal.marked.get(topic, ())
    return [
        ConfigError(
            f"[subject.{marks[0].kind}] names a column that {table.id} does not have: {name}",
            detail="its columns are " + ", ".join(column.name for column in table.columns),
        )
        for name in (() if table.documents else missing_columns(table, marks))
    ]


def check_change(before: Table | None, after: Table, marks: Sequence[Marked]) -> None:
    """Raises TableRefused if a table that is new (`before` is None) lacks a personal column, or one
    that has changed has lost it while another came: it may be the same one, renamed, and would be
    published as it is.
    """
    lost = missing_columns(after, marks)
    if before is not None:
        old = {column.name for column in before.columns}
        new = sorted({column.name for column in after.columns} - old)
        lost = [name for name in lost if name in old] if new else []
    if lost:
        kind = next(mark.kind for mark in marks if lost[0] in (mark.id, *mark.fields))
        raise TableRefused(
            f"{after.id} has no column {lost[0]}, which [subject.{kind}] names",
            detail="its columns are " + ", ".join(column.name for column in after.columns),
            hint=f"name its personal columns in [subject.{kind}], and start the capture again",
        )


def _refuse(table: Table, marks: Sequence[Marked]) -> None:
    if table.documents:
        raise TableRefused(
            f"personal fields of documents, such as those of {table.id}, cannot be encrypted",
            detail="[subject.NAME] works with tables and with JSON objects",
            hint="let the capture hide them: columns = { … }",
        )
    for mark in marks:
        for name in mark.fields:
            if name in table.key:
                raise TableRefused(
                    f"{table.id}.{name} is part of the key, and cannot be personal",
                    detail="keys of records are not encrypted",
                    hint=f'take it out of [subject.{mark.kind}], or hash it: columns = {{ "'
                    f'{table.id}.{name}" = "hash" }}',
                )


def _encrypted(column: Column, kind: str) -> Column:
    return replace(
        column,
        type=f"{ENCRYPTED_TYPE}{kind}:{column.type}",
        connect=encrypted_type(column.connect, kind),
    )


def _encrypting(encryptor: Encryptor, table: Table) -> Callable[[Row], Row]:
    def encrypt(row: Row) -> Row:
        try:
            return encryptor.row(row)
        except PersonalDataRefused as error:
            raise TableRefused(
                f"a row of {table.id} cannot be encrypted", detail=str(error)
            ) from error

    return encrypt


def _is_left_out(value: Any) -> bool:
    return isinstance(value, str) and value == UNAVAILABLE


def _unchanged(row: Row) -> Row:
    return row
