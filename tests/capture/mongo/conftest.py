"""One server for all tests of MongoDB; every test has a database of its own."""

import itertools

import pytest

_numbers = itertools.count(1)


@pytest.fixture
def db(mongo):
    """A database that nothing else uses."""
    database = mongo.client[f"shop{next(_numbers)}"]
    yield database
    mongo.stop_failing()
    mongo.client.drop_database(database.name)
