"""Personal fields of JSON values: encrypted before writing, decrypted, found in plain text.

A value is a JSON object, a change event in Debezium's envelope (then the fields are those of the
rows before and after it), or either of them beside its schema (Kafka Connect's `payload`).
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from headwater.errors import PersonalDataRefused
from headwater.subjects.keyring import Keyring
from headwater.subjects.sealing import ERASED, Tampered, is_token
from headwater.subjects.settings import SubjectSettings

# In the parameters of a Connect type: the type of the value, and whose it is.
ENCRYPTED: Final = "headwater.encrypted"
SUBJECT: Final = "headwater.subject"
MARK: Final = b'"hw1:'  # before every encrypted value
# A member of an object whose value is encrypted. The quotes of a JSON text within a text are
# escaped, so nothing else looks like it.
_MEMBER: Final = re.compile(
    rb'"([^"\\]+)"(\s*:\s*)"(hw1:(?:erased|[A-Za-z0-9_-]{16}:[A-Za-z0-9_-]{38,}))"'
)

Row = dict[str, Any]
Members = dict[str, bytes]  # of an object: each value as it is written

_raw_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Marked:
    """The personal fields of one kind of subject in one topic."""

    kind: str
    id: str
    fields: tuple[str, ...]


def marked_topics(subjects: Mapping[str, SubjectSettings]) -> dict[str, tuple[Marked, ...]]:
    """What [subject.NAME] sections say, by topic."""
    found: dict[str, tuple[Marked, ...]] = {}
    for kind, subject in subjects.items():
        for topic, fields in subject.topics.items():
            marked = Marked(kind, fields.id, fields.personal)
            found[topic] = (*found.get(topic, ()), marked)
    return found


def subject_id_of(value: Any) -> str | None:
    """The id of a subject as users write it in KIND:ID; None for what names nobody."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


class Encryptor:
    """Encrypts personal fields with the keys of their subjects."""

    def __init__(
        self,
        marks: Sequence[Marked],
        keyring: Keyring,
        is_left: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """`is_left`: which values stay as they are, beside null."""
        self._marks = marks
        self._keyring = keyring
        self._is_left = is_left

    def row(self, row: Row) -> Row:
        """A copy of the row, encrypted. Raises PersonalDataRefused if it does not say whose the
        fields are.
        """
        sealed = self._sealed(row, {})
        return row | sealed if sealed else row

    def value(self, value: bytes | None) -> bytes | None:
        """The same for the value of a record; whatever is not encrypted stays as it was written.
        Raises PersonalDataRefused.
        """
        if value is None:
            return None
        try:
            orjson.loads(value)  # which is stricter than what follows
            members = _members(value)
        except orjson.JSONDecodeError as error:
            raise PersonalDataRefused(
                "a record of a topic with personal fields is no JSON",
                detail=f"{error.msg} at column {error.colno}",
                hint="[subject.NAME] in headwater.toml names the topic",
            ) from None
        except msgspec.ValidationError:
            raise PersonalDataRefused(
                "a record of a topic with personal fields is no JSON object"
            ) from None
        return self._document(members)

    def _document(self, members: Members) -> bytes:
        if members.keys() == {"schema", "payload"} and _is_object(members["payload"]):
            fields = {field: mark.kind for mark in self._marks for field in mark.fields}
            schema = _encrypted_schema(orjson.loads(members["schema"]), fields)
            payload = self._document(_members(members["payload"]))
            return _written({"schema": orjson.dumps(schema), "payload": payload})
        if not _is_event(members):
            return self._object(members)
        for image in ("before", "after"):
            found = members.get(image, b"null")
            if _is_object(found):
                members[image] = self._object(_members(found))
            elif found != b"null":
                raise PersonalDataRefused(
                    "personal fields of documents in change events cannot be encrypted",
                    detail=f"{image} is no object",
                )
        return _written(members)

    def _object(self, members: Members) -> bytes:
        known = {name for mark in self._marks for name in (mark.id, *mark.fields)}
        row = {name: orjson.loads(members[name]) for name in known if name in members}
        sealed = self._sealed(row, members)
        return _written(members | {name: orjson.dumps(text) for name, text in sealed.items()})

    def _sealed(self, row: Mapping[str, Any], texts: Members) -> dict[str, str]:
        """The encrypted fields of a row. `texts` has their values as they were written, if any."""
        sealed: dict[str, str] = {}
        for mark in self._marks:
            subject: str | None = None
            for field in mark.fields:
                value = row.get(field)
                if value is None or self._is_left(value):
                    continue
                if subject is None:
                    subject = subject_id_of(row.get(mark.id))
                    if subject is None:
                        raise _nobody(mark, field)
                if not self._is_encrypted(value, mark.kind, subject, field):
                    json_ = texts[field] if field in texts else _json_of(field, value)
                    sealed[field] = self._keyring.encrypt_json(mark.kind, subject, field, json_)
        return sealed

    def _is_encrypted(self, value: Any, kind: str, subject: str, field: str) -> bool:
        """An event of the event store has been encrypted when it was appended. What only looks like
        it, or is another subject's, is a text that somebody has entered.
        """
        if not is_token(value):
            return False
        try:
            self._keyring.check_subject(value, kind, subject)
            self._keyring.decrypt(value, field)
        except Tampered:
            return False
        return True


def _json_of(field: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise PersonalDataRefused(
            f"field {field} cannot be encrypted", detail=f"it has no form in JSON: {error}"
        ) from None


def decrypted(
    value: bytes,
    keyring: Keyring,
    kinds: Collection[str] | None,
    blank: Callable[[str], bytes] = lambda _: b"null",
    marks: Sequence[Marked] = (),
) -> bytes:
    """The value with its encrypted fields in plain text, and what `blank` gives (JSON) for the
    names of those that were erased. Fields of other kinds of subjects stay as they are. With
    the marks of the topic, a text that was moved from a record of another subject is refused, too.
    Raises Tampered, KeyStoreError.
    """
    for mark in marks:
        _refuse_moved(value, keyring, mark)

    def opened(found: re.Match[bytes]) -> bytes:
        field = found[1].decode(errors="replace")
        try:
            plain = keyring.decrypt(found[3].decode(), field, kinds)
        except Tampered as error:
            raise Tampered(f"field {field}: {error}") from None
        return b'"' + found[1] + b'"' + found[2] + (blank(field) if plain is None else plain)

    return _MEMBER.sub(opened, value)


def _refuse_moved(value: bytes, keyring: Keyring, mark: Marked) -> None:
    for image in images(value):
        for field in mark.fields:
            token = image.get(field)
            if isinstance(token, str) and token != ERASED and is_token(token):
                subject = subject_id_of(image.get(mark.id))
                try:
                    keyring.check_subject(token, mark.kind, subject or "")
                except Tampered as error:
                    raise Tampered(f"field {field}: {error}") from None


def encrypted_members(value: bytes) -> Iterator[tuple[str, str]]:
    """The encrypted fields of a value, at any depth: name and text."""
    for found in _MEMBER.finditer(value):
        yield found[1].decode(errors="replace"), found[3].decode()


def plain_fields(value: bytes | None, mark: Marked, subject_id: str) -> list[str]:
    """The personal fields of this subject that a value has in plain text. A value that is no JSON
    object has none that can be found.
    """
    return sorted(
        {
            field
            for image in images(value)
            if subject_id_of(image.get(mark.id)) == subject_id
            for field in mark.fields
            if image.get(field) is not None and not is_token(image[field])
        }
    )


def images(value: bytes | None) -> list[Mapping[str, Any]]:
    """The objects of a value that may have fields of a subject."""
    try:
        document = _loaded(value or b"null")
    except (ValueError, RecursionError):
        return []
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        document = document["payload"]
    if not isinstance(document, dict):
        return []
    found = [document.get("before"), document.get("after")] if _is_event(document) else [document]
    return [image for image in found if isinstance(image, dict)]


def _loaded(value: bytes) -> Any:
    """Also what only some readers take for JSON (NaN, numbers out of range): others may have
    written it.
    """
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return json.loads(value)


def encrypted_type(connect: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The Connect type of a column's encrypted values: a text, which says what is in it."""
    parameters = {SUBJECT: kind, ENCRYPTED: json.dumps(dict(connect))}
    return {"type": "string", "parameters": parameters}


def decrypted_type(connect: Mapping[str, Any], kinds: Collection[str]) -> Mapping[str, Any]:
    """The Connect type of the values when those of these kinds of subjects are decrypted."""
    parameters = connect.get("parameters")
    if not isinstance(parameters, Mapping) or parameters.get(SUBJECT) not in kinds:
        return connect
    stored = parameters.get(ENCRYPTED, "{}")
    return dict(json.loads(stored)) | {
        name: connect[name] for name in ("field", "optional") if name in connect
    }


def _written(members: Members) -> bytes:
    parts = (orjson.dumps(name) + b":" + value for name, value in members.items())
    return b"{" + b",".join(parts) + b"}"


def _members(text: bytes) -> Members:
    """Raises msgspec.ValidationError if it is no object."""
    return {name: bytes(value) for name, value in _raw_members(text).items()}


def _is_object(text: bytes) -> bool:
    return text.lstrip()[:1] == b"{"


def _is_event(document: Mapping[str, Any]) -> bool:
    return "op" in document and ("before" in document or "after" in document)


def _encrypted_schema(schema: Any, fields: Mapping[str, str]) -> Any:
    """A Connect schema in which these fields are encrypted texts."""
    if isinstance(schema, list):
        return [_encrypted_schema(inner, fields) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("field", ""))
    if name in fields and "fields" not in schema:
        own = {key: schema[key] for key in ("field", "optional") if key in schema}
        rest = {key: found for key, found in schema.items() if key not in own}
        return encrypted_type(rest, fields[name]) | own
    if "fields" in schema and name in ("", "before", "after"):
        return schema | {"fields": _encrypted_schema(schema["fields"], fields)}
    return schema


def _nobody(mark: Marked, field: str) -> PersonalDataRefused:
    return PersonalDataRefused(
        f"field {field} is personal, and {mark.id} does not say whose it is",
        detail=f"[subject.{mark.kind}]: {mark.id} has to be a text or a whole number",
    )
