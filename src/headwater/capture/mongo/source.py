"""MongoDB (4.4 and newer) as a source of changes: its change streams."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any, Final

from bson.timestamp import Timestamp
from pymongo.change_stream import ChangeStream
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from headwater.capture.contract import (
    Chunk,
    Column,
    Event,
    Lag,
    LogPosition,
    Source,
    SourcePosition,
    Table,
)
from headwater.capture.mongo import checks
from headwater.capture.mongo.chunks import read_chunk, time_of
from headwater.capture.mongo.connection import connect, explain, explained
from headwater.capture.mongo.stream import Transactions, bson_token, json_token, time_of_token
from headwater.capture.settings import CaptureSettings
from headwater.errors import CaptureError, HeadwaterError, SourceUnreachable, TableRefused

if TYPE_CHECKING:
    from pymongo import MongoClient

# The server waits so long for a change; also how late an idle position is reported.
AWAIT_MS: Final = 25
# The server fills 16 MB with whatever fits; as Python objects that would be five times as much.
BATCH_EVENTS: Final = 500
INTERNAL: Final = frozenset({"admin", "config", "local"})
ID: Final = (Column("_id", "any", {"type": "string"}, optional=False),)


class MongoSource(Source):
    """One database of a deployment, or all of them if `source` names none."""

    connector = "mongodb"

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._connected: MongoClient[dict[str, Any]] | None = connect(settings)
        # "admin" in an address is where its user is defined, and has no collections to follow.
        name = self._client.get_default_database("admin").name
        self._database = None if name == "admin" else name
        self.database = self._database or ""
        self._tables: dict[tuple[str, str], Table] = {}  # that the settings name
        self._version_known: tuple[int, int] | None = None

    def check(self) -> list[HeadwaterError]:
        try:
            with self._explained():
                self._has_version()
                checks.is_sharded(self._client, self._settings)
                self._watch().close()
                tables = self.tables()
                unreadable = [self._unreadable(table) for table in tables]
                found: list[HeadwaterError] = [error for error in unreadable if error is not None]
                return found + self._without_images(tables)
        except CaptureError as error:
            return [error]

    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        with self._explained():
            checks.is_sharded(self._client, self._settings)
            if after is not None:
                return after.at
            with self._watch() as stream:
                token = stream.resume_token
                while token is None:
                    stream.try_next()
                    token = stream.resume_token
        time = time_of_token(token)
        if time is None:
            raise CaptureError(
                f"capture {self._settings.name}: this resume token has no time", detail=str(token)
            )
        return {"token": json_token(token), "ts": list(time)}

    def check_position(self, after: SourcePosition) -> bool:
        with self._explained(), self._watch(**_start(after)) as stream:
            stream.try_next()
        return True

    def tables(self) -> list[Table]:
        found = []
        with self._explained():
            names = [self._database] if self._database else self._client.list_database_names()
            for database in names:
                if database in INTERNAL:
                    continue
                for collection in self._client[database].list_collections():
                    if collection.get("type", "collection") == "collection":
                        table = self._table_of(database, collection["name"])
                        if table is not None:
                            found.append(table)
        return sorted(found, key=lambda table: table.id)

    def changes(self, after: SourcePosition) -> Iterator[Event]:
        start = _start(after)
        with self._explained():
            have_images = self._has_version() >= checks.IMAGES_SINCE and not self._without_images(
                self.tables()
            )
            lookup = self._looked_up if have_images else None  # else the server does it
            is_sharded = checks.is_sharded(self._client, self._settings)
            transactions = Transactions(self._table_of, lookup, after, is_sharded=is_sharded)
            while True:
                with self._watch(have_images=have_images, **start) as stream:
                    while stream.alive:
                        yield from self._next(stream, transactions)
                # Invalidated, because the database was dropped. Behind that the next one begins.
                yield from transactions.end()
                start = {"start_after": stream.resume_token}

    def _next(
        self, stream: ChangeStream[dict[str, Any]], transactions: Transactions
    ) -> Iterator[Event]:
        event = stream.try_next()
        if event is None:
            yield from transactions.idle(stream.resume_token)
            return
        yield from transactions.take(event)
        position = transactions.position
        # At the end of a batch the token may show that nothing more has this time.
        if position is not None:
            time = time_of_token(stream.resume_token)
            if time is not None and list(time) > position["ts"]:
                yield from transactions.end()

    def acknowledge(self, position: LogPosition) -> None:
        """The oplog is retained by size and age, not for a client."""

    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> Chunk:
        with self._explained():
            return read_chunk(
                self._client[table.schema],
                table,
                after,
                limit_rows,
                has_snapshots=self._has_version() >= checks.SNAPSHOTS_SINCE,
            )

    def estimate_rows(self, table: Table) -> int | None:
        with self._explained():
            return self._client[table.schema][table.name].estimated_document_count()

    def lag(self, acknowledged: LogPosition) -> Lag:
        """Estimated from the oplog's size and how far back it goes. None where that may not be
        read, as through mongos.
        """
        try:
            oplog = self._client["local"]["oplog.rs"]
            size_bytes = self._client["local"].command("collStats", "oplog.rs")["size"]
            first = oplog.find_one(sort=[("$natural", 1)], projection={"ts": 1})
            last = oplog.find_one(sort=[("$natural", -1)], projection={"ts": 1})
        except OperationFailure:
            return Lag()
        except PyMongoError as error:
            raise explain(error, self._settings, self._database) from error
        if first is None or last is None:
            return Lag()
        begin_s, end_s = first["ts"].time, last["ts"].time
        behind_s = max(0, end_s - max(begin_s, time_of(acknowledged)[0]))
        return Lag(size_bytes=int(size_bytes * behind_s / max(1, end_s - begin_s)))

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def remove(self) -> None:
        """Nothing was made in the database."""

    @property
    def _client(self) -> "MongoClient[dict[str, Any]]":
        if self._connected is None:  # it was closed: a driver's client cannot be used again
            self._connected = connect(self._settings)
        return self._connected

    def _watch(self, *, have_images: bool = False, **start: Any) -> ChangeStream[dict[str, Any]]:
        target = self._client[self._database] if self._database else self._client
        version = self._has_version()
        pipeline = self._filter()
        options: dict[str, Any] = {
            "full_document": "whenAvailable" if have_images else "updateLookup"
        }
        if version >= checks.IMAGES_SINCE:
            options["full_document_before_change"] = "whenAvailable"
        if version >= checks.SPLITTING_SINCE:
            pipeline.append({"$changeStreamSplitLargeEvent": {}})
        return target.watch(
            pipeline, max_await_time_ms=AWAIT_MS, batch_size=BATCH_EVENTS, **options, **start
        )

    def _filter(self) -> list[dict[str, Any]]:
        """What the server itself can leave out: all but the named collections, if each pattern
        names the database without a wildcard. What passes is looked at again.
        """
        named = []
        for pattern in self._settings.tables:
            database, _, collection = pattern.partition(".")
            if re.search(r"[*?\[]", database):
                return []
            # As Python and PCRE both have it.
            regex = "^" + translate(collection)[: -len(r"\Z")] + "$"
            named.append({"ns.db": database, "ns.coll": {"$regex": regex}})
        structure = {"operationType": {"$in": ["drop", "rename", "dropDatabase", "invalidate"]}}
        return [{"$match": {"$or": [structure, *named]}}]

    def _table_of(self, database: str, collection: str) -> Table | None:
        table = self._tables.get((database, collection))
        if table is None:
            table = Table(database, collection, ID, ("_id",), documents=True)
            if not self._is_named(table):
                return None
            self._tables[database, collection] = table
        return table

    def _is_named(self, table: Table) -> bool:
        # Of the second kind is what $out writes before it gives it its name.
        if table.schema in INTERNAL or table.name.startswith(("system.", "tmp.agg_out.")):
            return False
        settings = self._settings
        return any(fnmatchcase(table.id, pattern) for pattern in settings.tables) and not any(
            fnmatchcase(table.id, pattern) for pattern in settings.exclude
        )

    def _looked_up(self, table: Table, document_id: Any) -> Mapping[str, Any] | None:
        """A document without a post-image, as it is now."""
        collection = self._client[table.schema].get_collection(
            table.name, read_concern=ReadConcern("majority")
        )
        return collection.find_one({"_id": {"$eq": document_id}})

    def _without_images(self, tables: list[Table]) -> list[CaptureError]:
        """A server without this feature has them nowhere; then there is nothing to advise."""
        if self._has_version() < checks.IMAGES_SINCE:
            return []
        return checks.without_images(self._client, self._settings, tables)

    def _unreadable(self, table: Table) -> CaptureError | None:
        try:
            self._client[table.schema][table.name].find_one(projection={"_id": 1})
        except PyMongoError as error:
            refused = explain(error, self._settings, table.schema)
            if isinstance(refused, SourceUnreachable):
                raise
            detail = f"{table.id}: {refused.detail}"
            return TableRefused(refused.what, detail=detail, hint=refused.hint)
        return None

    def _has_version(self) -> tuple[int, int]:
        if self._version_known is None:
            self._version_known = checks.version_of(self._client)
        return self._version_known

    def _explained(self) -> Any:
        return explained(self._settings, self._database)


def _start(after: SourcePosition) -> dict[str, Any]:
    """Where a change stream begins, as the driver takes it."""
    if after.changes == 0:
        return {"start_at_operation_time": Timestamp(*after.at["ts"])}
    return {"start_after": bson_token(after.at["token"])}
