"""Every message in every version: to bytes and back, and the same bytes as another library's."""

import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from support.protocol.generated_messages import all_messages, values
from tiers import examples

from headwater.protocol.primitives import Reader
from headwater.protocol.schema import Message

MESSAGES = all_messages()
few = settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))


def _kio(cls: type[Message], version: int) -> Any:
    load = load_request_schema if cls.__name__.endswith("Request") else load_response_schema
    try:
        return load(cls.api_key, version)
    except Exception:  # newer than kio
        return None


IN_KIO = [(cls, version) for cls, version in MESSAGES if _kio(cls, version) is not None]


def _id(case: Any) -> str | None:
    return case.__name__ if isinstance(case, type) else None


def test_that_nearly_all_are_compared():
    assert len(MESSAGES) > 250
    assert len(IN_KIO) > 0.95 * len(MESSAGES), set(MESSAGES) - set(IN_KIO)


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=_id)
def test_round_trip(cls: type[Message], version: int):
    @few
    @given(values(cls, version))
    def check(message: Message):
        data = message.encode(version)
        reader = Reader(data)
        assert cls.read(reader, version) == message
        assert reader.remaining() == 0
        assert cls.decode(data, version).encode(version) == data

    check()


@pytest.mark.parametrize(("cls", "version"), IN_KIO, ids=_id)
def test_the_same_bytes_as_kio(cls: type[Message], version: int):
    theirs = _kio(cls, version)
    read, write = entity_reader(theirs), entity_writer(theirs)

    @few
    @given(values(cls, version, tame=True))
    def check(message: Message):
        data = bytes(message.encode(version))
        parsed, size_bytes = read(data, 0)
        assert size_bytes == len(data)
        buffer = io.BytesIO()
        write(buffer, parsed)
        assert buffer.getvalue() == data

    check()


def test_unknown_tagged_fields_are_passed_over():
    cls, version = next((c, v) for c, v in MESSAGES if c.__name__ == "MetadataRequest" and v == 12)
    data = bytearray(cls().encode(version))
    assert data[-1] == 0
    data[-1:] = b"\x01\x63\x03abc"  # one field, tag 99, three bytes
    reader = Reader(data)
    assert cls.read(reader, version) == cls.decode(cls().encode(version), version)
    assert reader.remaining() == 0


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=_id)
def test_defaults_round_trip(cls: type[Message], version: int):
    data = cls().encode(version)
    assert cls.decode(data, version) == cls()


def test_versions_differ_where_a_field_was_added():
    cls = next(c for c, v in MESSAGES if c.__name__ == "MetadataRequest")
    assert len({bytes(cls().encode(version)) for version in (0, 4, 9)}) == 3
