import itertools

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

_names = itertools.count(1)


@pytest.fixture
def registry(gateway):
    """Confluent's own client of the gateway's registry."""
    with SchemaRegistryClient({"url": gateway.url}) as client:
        yield client


@pytest.fixture
def subject():
    return f"subject-{next(_names)}"


@pytest.fixture
def record():
    """An Avro record of its own for each test, so that ids are its own, too."""
    name = f"Record{next(_names)}"

    def schema(*fields):
        inside = ", ".join(fields or ('{"name": "a", "type": "int"}',))
        return f'{{"type": "record", "name": "{name}", "fields": [{inside}]}}'

    return schema
