"""Requests of a webhook: what a record becomes, and what a dead letter carries.

A dead letter is the record itself with headers `headwater.dlq.cause`, `.webhook`, `.topic`,
`.partition`, `.offset`, `.timestamp`: enough to make the same request again, with the same id.
"""

import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

from headwater.gateway.reading.entries import Entry
from headwater.gateway.reading.schemas import Schemas
from headwater.gateway.webhooks.definitions import Webhook
from headwater.inspect.record_json import Record as NewRecord
from headwater.protocol.records import Record

_PREFIX: Final = "headwater.dlq."


class Message(NamedTuple):
    """One record on its way to a receiver."""

    topic: str
    partition: int
    record: Record
    body: bytes

    def identity(self, webhook: Webhook) -> str:
        """The same for a repetition. A topic that was deleted and created again has other times."""
        record = self.record
        place = f"{webhook.name} {self.topic} {self.partition} {record.offset}"
        digest = hashlib.sha256(f"{place} {record.timestamp_ms}".encode()).hexdigest()
        return f"msg_{digest[:32]}"

    @property
    def lane(self) -> tuple[int, bytes | None]:
        """Messages of one lane are sent one after the other."""
        return self.partition, self.record.key

    def letter(self, webhook: Webhook, cause: str) -> NewRecord:
        record = self.record
        added = {
            "cause": cause,
            "webhook": webhook.name,
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(record.offset),
            "timestamp": str(record.timestamp_ms),
        }
        headers = [*record.headers, *((_PREFIX + k, v.encode()) for k, v in added.items())]
        return NewRecord(record.key, record.value, headers, 0)


def message_of(topic: str, entry: Entry) -> Message:
    return Message(topic, entry.partition, entry.record, entry.json)


def origin_of(letter: Record) -> str:
    """The topic that it was written to; "" if it is none of ours."""
    found = dict(letter.headers).get(_PREFIX + "topic")
    return (found or b"").decode(errors="replace")


def message_of_letter(letter: Record, schemas: Callable[[str], Schemas]) -> Message | None:
    """None if it is none of ours."""
    added = {
        name.removeprefix(_PREFIX): (value or b"").decode(errors="replace")
        for name, value in letter.headers
        if name.startswith(_PREFIX)
    }
    try:
        topic, partition = added["topic"], int(added["partition"])
        record = Record(
            int(added["offset"]),
            int(added["timestamp"]),
            letter.key,
            letter.value,
            [(name, value) for name, value in letter.headers if not name.startswith(_PREFIX)],
        )
    except (LookupError, ValueError):
        return None
    entry = Entry(topic, partition, record, b"", schemas(topic))
    return Message(topic, partition, record, entry.json)
