"""Checks of one record before it is written: its partition, personal fields, and its schema."""

from headwater.errors import PersonalDataRefused
from headwater.gateway.access import Topic
from headwater.gateway.registry.validation import Check
from headwater.gateway.writing.forms import BadRecord
from headwater.inspect.record_json import Record
from headwater.subjects.access import PersonalTopics


def checked(
    number: int,
    record: Record,
    topic: Topic,
    check: Check | None,
    personal: PersonalTopics | None,
) -> Record:
    """The record as it is stored: with personal fields encrypted, by keys that are stored with
    `Gateway.store_keys`. Its schema is that of what is stored. Raises BadRecord with its number.
    """
    if record.partition is not None and record.partition >= topic.partitions:
        raise BadRecord(number, f"partition {record.partition}: there are {topic.partitions}")
    if personal is not None:
        try:
            record = record._replace(value=personal.value(topic.name, record.value))
        except PersonalDataRefused as error:
            raise BadRecord(number, str(error), error.hint) from None
    if check is None:
        return record
    found = check(record)
    if isinstance(found, str):
        raise BadRecord(number, found)
    return found
