"""Stores that the tests of events share: one contract, on both databases."""

import uuid

import pytest
from support.capture.postgres_server import postgres, postgres_server

from headwater.events import open_store

__all__ = ["postgres", "postgres_server"]


@pytest.fixture(scope="session")
def postgres_database(postgres_server):
    with postgres_server.database() as database:
        yield database


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """The address of a new, empty store: a file, or a schema of one database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/events.db"
    database = request.getfixturevalue("postgres_database")
    schema = f"test_{uuid.uuid4().hex[:12]}"
    database.run(f"CREATE SCHEMA {schema}")
    return f"{database.url}?options=-csearch_path%3D{schema}"


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened
