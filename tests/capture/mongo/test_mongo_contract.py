"""The contract of sources on MongoDB: a server with images and snapshot reads, and one without."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from pymongo.client_session import ClientSession
from support.capture.mongo_server import MongoServer
from support.capture.source_contract import Database, Session, SourceContract

from headwater.capture.contract import Row
from headwater.capture.mongo.source import MongoSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret

pytestmark = pytest.mark.java

_numbers = itertools.count(1)


class MongoSession(Session):
    def __init__(self, database: Any, session: ClientSession) -> None:
        self._database = database
        self._session = session

    def insert(self, table: str, row: Row) -> None:
        document = {"_id": row["id"], **{key: row[key] for key in row if key != "id"}}
        self._database[table].insert_one(document, session=self._session)

    def update(self, table: str, key: int, **values: object) -> None:
        self._database[table].update_one({"_id": key}, {"$set": values}, session=self._session)

    def delete(self, table: str, key: int) -> None:
        self._database[table].delete_one({"_id": key}, session=self._session)


class MongoDatabase(Database):
    has_key_change = False  # an _id never changes
    has_keyless = False
    has_columns = False

    def __init__(self, server: MongoServer, *, has_images: bool) -> None:
        self.server = server
        self.name = f"contract{next(_numbers)}"
        self.database = server.client[self.name]
        self.has_images = self.has_exact_images = has_images
        self.sources: list[MongoSource] = []

    def source(self, **options: Any) -> MongoSource:
        settings = CaptureSettings("shop", Secret(self.server.url + self.name), **options)
        self.sources.append(MongoSource(settings))
        return self.sources[-1]

    def table_id(self, name: str) -> str:
        return f"{self.name}.{name}"

    def create_table(self, name: str, *, has_key: bool = True) -> None:
        images = {"changeStreamPreAndPostImages": {"enabled": True}} if self.has_images else {}
        self.database.command({"create": name} | images)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.server.client.start_session() as session, session.start_transaction():
            yield MongoSession(self.database, session)

    def rows(self, table: str) -> list[Row]:
        return [self.plain(document) for document in self.database[table].find()]

    def plain(self, row: Row) -> Row:
        return {"id": row["_id"], **{key: row[key] for key in row if key != "_id"}}

    def leftovers(self) -> object:
        return self.database.list_collection_names()

    def write_values(self, table: str) -> None:
        self.database[table].insert_many(
            [
                {"_id": ObjectId(), "i": 1, "l": Int64(1), "d": Decimal128("1.50"), "f": 1.0},
                {"_id": ObjectId(), "f": float("inf"), "n": None, "t": "ünï 🦆", "b": b"\0\xff"},
                {"_id": ObjectId(), "at": DatetimeMS(-(2**60)), "ts": Timestamp(1, 2), "e": {}},
                {"_id": ObjectId(), "r": Regex("^a", "i"), "min": MinKey(), "max": MaxKey()},
                {"_id": ObjectId(), "u": Binary(b"\1" * 16, 4), "a": [1, [2, {"x": []}]]},
            ]
        )


@pytest.mark.parametrize("version", ["with images", "4.4"])
class TestMongoContract(SourceContract):
    @pytest.fixture
    def database(self, version: str, request: pytest.FixtureRequest) -> Iterator[MongoDatabase]:
        has_images = version == "with images"
        server = request.getfixturevalue("mongo" if has_images else "old_mongo")
        database = MongoDatabase(server, has_images=has_images)
        yield database
        for source in database.sources:
            source.close()
        server.client.drop_database(database.name)
