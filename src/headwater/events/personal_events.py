"""Personal fields of events ([subject.NAME]): encrypted when appended, decrypted in `data`.

The events of a category are published to the topic `outbox.event.<category>`; the section that
names that topic says which fields of their data are personal. The database holds encrypted texts;
`RecordedEvent.data` has the values, `json` and `as_dict` what is stored. Tags, metadata and names
of streams are not encrypted.

A field whose subject was erased is null. Where the class of its type does not allow that, it is the
text "(erased)", or an empty value of another type: folds go on.
"""

from dataclasses import replace
from typing import Any, Final

import msgspec

from headwater.errors import EventRefused, PersonalDataRefused
from headwater.events.append_request import AppendRequest
from headwater.events.contract import category_of
from headwater.events.event_types import EventTypes
from headwater.subjects.access import PersonalTopics
from headwater.subjects.personal import MARK, decrypted
from headwater.subjects.sealing import Tampered

TOPICS: Final = "outbox.event."  # as captures name them
_BLANKS: Final = (b"null", b'"(erased)"', b"0", b"false", b"[]", b"{}")


def encrypted(request: AppendRequest, personal: PersonalTopics | None) -> AppendRequest:
    """The request with personal fields encrypted; their keys are stored when it returns. Raises
    EventRefused if an event does not say whose they are, KeyStoreError.
    """
    if personal is None:
        return request
    topics = {stream: TOPICS + category_of(stream) for stream, _, _ in request.writes}
    if not any(topic in personal.marked for topic in topics.values()):
        return request
    try:
        writes = [
            (
                stream,
                expected,
                [
                    event._replace(json=(_value(personal, topics[stream], event.json)))
                    for event in events
                ],
            )
            for stream, expected, events in request.writes
        ]
    except PersonalDataRefused as error:
        raise EventRefused(
            "personal fields of an event cannot be encrypted", detail=str(error), hint=error.hint
        ) from error
    personal.flush()
    return replace(request, writes=writes)


def _value(personal: PersonalTopics, topic: str, json: str) -> str:
    value = personal.value(topic, json.encode())
    assert value is not None, "an event has data"
    return value.decode()


class PersonalEventTypes(EventTypes):
    """The types of a store for reading: data are decrypted before they become objects."""

    def __init__(self, types: EventTypes | None, personal: PersonalTopics) -> None:
        super().__init__()
        self._types = types
        self._personal = personal

    def decode(self, name: str, version: int, json: str | bytes) -> Any:
        data = json.encode() if isinstance(json, str) else json
        if MARK not in data:
            return self._decoded(name, version, data)
        keyring = self._personal.keyring
        keyring.refresh()
        tried: dict[str, int] = {}  # by erased field: which of the blanks

        def blank(field: str) -> bytes:
            return _BLANKS[tried.setdefault(field, 0)]

        while True:
            try:
                plain = decrypted(data, keyring, None, blank)
            except Tampered:
                plain = data  # as it is: an encrypted text
            try:
                return self._decoded(name, version, plain)
            except EventRefused as error:
                unfit = next((field for field in tried if f"`$.{field}`" in error.detail), None)
                if unfit is None or tried[unfit] + 1 == len(_BLANKS):
                    raise
                tried[unfit] += 1

    def _decoded(self, name: str, version: int, json: bytes) -> Any:
        if self._types is None:
            return msgspec.json.decode(json)
        return self._types.decode(name, version, json)
