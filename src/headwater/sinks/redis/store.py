"""The versions of a target as Redis hashes: `HGET orders 17` is the row, as JSON.

    orders                    key's text → JSON of the row; live
    orders__v2                the same of a version that is not
    headwater:{orders}        owner, live, v1, v2, …: which versions there are; the last epoch
    headwater:{orders}:v1     epoch, position, fields

Rows without a key are a stream of the same name, one entry with the field `row` for each.

**One step.** A batch is one MULTI … EXEC under WATCH: rows and position change for all readers at
once, or (another client changed epoch, names or rows in between) not at all. The append-only file
has such a transaction as a whole. A Redis that lost its newest seconds in a crash has lost rows and
position alike; the next batch then does not begin at the store's position: StoreDiverged.

Redis continues a transaction when one of its commands fails, so what could fail (a key of another
type) is checked first, under WATCH; lack of memory and of permissions is reported when a command is
queued, and then none of them runs.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import orjson
import pyarrow as pa
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.errors import ConfigError, Fenced, StoreRefused, StoreUnreachable
from headwater.sinks.contract import (
    OP,
    Batch,
    Contents,
    Log,
    Position,
    Refuse,
    Store,
    Target,
    Version,
    Writer,
    fields_from_text,
    fields_to_text,
    is_applied,
    name_of,
)
from headwater.sinks.redis.commands import command, commands_of
from headwater.sinks.rows import json_reading
from headwater.sinks.rows.documents import Documents, check_types, documents_of
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.settings import SinkSettings, with_password

OPTIONS: Final = ()
TARGET_OPTIONS: Final = ("maxlen",)

_TIMEOUT_S: Final = 60  # a large transaction blocks the server for seconds, not for minutes
# Redis takes 1 GiB of commands from a client (client-query-buffer-limit) before it disconnects.
_LARGEST_BATCH_BYTES: Final = 800 << 20
# Transient: it is full, or has just become a replica.
_PASSING: Final = (redis.exceptions.OutOfMemoryError, redis.ReadOnlyError)
_PAGE_ROWS: Final = 5000
_READ_EXPIRES_S: Final = 600

_Result = TypeVar("_Result")


class RedisStore(Store):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self._target = target
        self._address = f"sink {settings.name}"
        url = with_password(settings).url
        if url is None:
            raise ConfigError(
                f"{self._address} has no url", hint='url = "redis://default@127.0.0.1:6379/0"'
            )
        try:
            self._redis = redis.Redis.from_url(
                url.reveal(),
                protocol=2,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=10,
                retry=Retry(NoBackoff(), 0),  # the pipeline retries, with a new writer
            )
        except ValueError:  # which may show a part of the password
            raise ConfigError(
                f"{self._address}: its url is none of Redis",
                hint="redis://user@host:6379/0, rediss://… or unix://…; in a password, special"
                " characters are %-encoded",
            ) from None
        self._maxlen = target.options.get("maxlen", "")
        if self._maxlen and (target.key or not self._maxlen.isdecimal()):
            raise ConfigError(
                f"{target.owner}: maxlen is a number, and only for rows without a key"
            )

    def check(self) -> None:
        with self.errors():
            info = self._redis.info()
        if info.get("cluster_enabled"):
            raise StoreRefused(
                f"{self._address} is a Redis Cluster",
                detail="rows, position and versions of a target would lie on several nodes",
                hint="use a Redis that is not part of a cluster",
            )
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if info.get("maxmemory") and policy.startswith("allkeys"):
            raise StoreRefused(
                f"{self._address} evicts rows when its memory is full",
                detail=f"maxmemory-policy is {policy}",
                hint="CONFIG SET maxmemory-policy noeviction, or any volatile-*",
            )
        with self.errors():
            stored = _text(self._redis.hgetall(self.target_key))
            self._check_owner(stored)
            if not stored:
                self._check_free(self._redis, self._target.name)

    def versions(self) -> list[Version]:
        def read(pipe: Any) -> list[Version]:
            stored = _text(pipe.hgetall(self.target_key))
            if stored.get("owner") != self._target.owner:
                return []
            numbers = sorted(int(name[1:]) for name in stored if name[:1] == "v")
            found = []
            for number in numbers:
                position, fields = pipe.hmget(self.version_key(number), "position", "fields")
                if fields is not None:  # not dropped meanwhile
                    is_live = stored.get("live") == str(number)
                    found.append(Version(number, is_live, _position(position), _fields(fields)))
            return found

        return self.transaction(read, self.target_key)

    def writer(self, version: int, fields: pa.Schema) -> "RedisWriter":
        def open_version(pipe: Any) -> tuple[int, Position | None, pa.Schema]:
            stored = _text(pipe.hgetall(self.target_key))
            self._check_owner(stored)
            position, before = pipe.hmget(self.version_key(version), "position", "fields")
            epoch = int(stored.get("epoch", 0)) + 1  # of all versions, so that none comes twice
            check_types(fields)
            is_new = f"v{version}" not in stored
            becomes_live = version == 1 and "live" not in stored
            if is_new:
                self._check_free(pipe, name_of(self._target, version, is_live=becomes_live))
                columns = plain(fields)
            else:
                columns = evolved(_fields(before), fields).fields
            entries = {"owner": self._target.owner, f"v{version}": "1", "epoch": str(epoch)}
            if becomes_live:
                entries["live"] = "1"
            state = {"epoch": epoch, "fields": fields_to_text(columns)}
            pipe.multi()
            pipe.hset(self.target_key, mapping=entries)
            pipe.hset(self.version_key(version), mapping=state)
            return epoch, _position(position), columns

        epoch, position, columns = self.transaction(
            open_version, self.target_key, self.version_key(version)
        )
        with self.errors():
            connection = self._redis.connection_pool.get_connection()
        return RedisWriter(self, self._target, connection, version, epoch, position, columns)

    def promote(self, version: int) -> None:
        def rename(pipe: Any) -> None:
            stored = _text(pipe.hgetall(self.target_key))
            self._check_version(stored, version)
            live = stored.get("live")
            if live == str(version):
                pipe.multi()
                return
            data, new = self._target.name, self.other_name(version)
            # RENAME would replace a key of another application.
            old = data if live is None else self.other_name(int(live))
            pipe.watch(data, old, new)
            self._check_free(pipe, old)
            # A hash without rows does not exist, and cannot be renamed.
            is_there = [bool(pipe.exists(name)) for name in (data, new)]
            pipe.multi()
            if is_there[0]:
                pipe.rename(data, old)
            if is_there[1]:
                pipe.rename(new, data)
            pipe.hset(self.target_key, "live", version)

        self.transaction(rename, self.target_key)

    def drop(self, version: int) -> None:
        def remove(pipe: Any) -> None:
            stored = _text(pipe.hgetall(self.target_key))
            self._check_version(stored, version)
            if stored.get("live") == str(version):
                raise StoreRefused(
                    f"version {version} of {self._target.name} is live",
                    hint="promote another one first",
                )
            pipe.multi()
            pipe.hdel(self.target_key, f"v{version}")
            pipe.unlink(self.version_key(version), self.other_name(version))

        self.transaction(remove, self.target_key)

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        """Redis has no snapshots: the rows are copied by one command (some 0.6 s for a million of
        them, which blocks the server) and the copy is read page by page.
        """
        copied = f"headwater:{{{self._target.name}}}:read:{uuid4()}"

        def copy(pipe: Any) -> tuple[Position | None, pa.Schema]:
            stored = _text(pipe.hgetall(self.target_key))
            self._check_version(stored, version)
            position, fields = pipe.hmget(self.version_key(version), "position", "fields")
            name = name_of(self._target, version, is_live=stored.get("live") == str(version))
            pipe.multi()
            pipe.copy(name, copied)
            pipe.expire(copied, _READ_EXPIRES_S)
            return _position(position), _fields(fields)

        position, fields = self.transaction(copy, self.target_key, self.version_key(version))
        try:
            yield Contents(position, self._pages(copied, fields))
        finally:
            with self.errors():
                self._redis.unlink(copied)

    def close(self) -> None:
        self._redis.close()

    @property
    def target_key(self) -> str:
        return f"headwater:{{{self._target.name}}}"

    def version_key(self, version: int) -> str:
        return f"{self.target_key}:v{version}"

    def other_name(self, version: int) -> str:
        return name_of(self._target, version, is_live=False)

    def transaction(self, steps: Callable[[Any], _Result], *watched: str) -> _Result:
        """Runs `steps` with a pipeline that reads until its `multi`; retries while other clients
        change what is watched.
        """
        with self.errors():
            found: _Result = self._redis.transaction(
                cast("Any", steps), *watched, value_from_callable=True
            )  # type: ignore[assignment]
            return found

    def _check_owner(self, stored: dict[str, str]) -> None:
        if stored and stored["owner"] != self._target.owner:
            raise StoreRefused(
                f"{self._target.name} belongs to {stored['owner']}",
                detail=f"{self._target.owner} would write into it too",
                hint="give one of the two another name",
            )

    def _check_version(self, stored: dict[str, str], version: int) -> None:
        self._check_owner(stored)
        if f"v{version}" not in stored:
            raise StoreRefused(f"{self._target.name} has no version {version}")

    def _check_free(self, pipe: Any, name: str) -> None:
        if pipe.exists(name):
            raise StoreRefused(
                f"the key {name} exists already, and no pipeline wrote it",
                hint="remove it, or write to another name",
            )

    def _pages(self, copied: str, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
        is_there, cursor, last = True, 0, b"-"
        while is_there:
            with self.errors(), self._redis.pipeline() as pipe:
                if self._target.key:
                    pipe.hscan(copied, cursor, count=_PAGE_ROWS)
                else:
                    pipe.xrange(copied, last, "+", count=_PAGE_ROWS)
                pipe.expire(copied, _READ_EXPIRES_S)
                page, is_kept = pipe.execute()
            if self._target.key:
                cursor, entries = page
                rows, is_there = list(entries.values()), cursor != 0
            else:
                rows, is_there = [entry[b"row"] for _, entry in page], len(page) == _PAGE_ROWS
                last = b"(" + page[-1][0] if page else last
            if rows:
                yield json_reading.rows([orjson.loads(row) for row in rows], fields)
            if is_there and not is_kept:
                raise StoreUnreachable(
                    f"{self._address}: a read took too long between two pages, its copy has expired"
                )

    def errors(self) -> AbstractContextManager[None]:
        return _sink_errors(self._address)


class RedisWriter(Writer):
    def __init__(
        self,
        store: RedisStore,
        target: Target,
        connection: Any,
        version: int,
        epoch: int,
        position: Position | None,
        fields: pa.Schema,
    ) -> None:
        self.position = position
        self._store, self._target, self._connection = store, target, connection
        self._version, self._epoch, self._fields = version, epoch, fields

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        with self._store.errors():
            is_there = is_applied(self._stored(), batch)
        if is_there:
            return
        columns = [name for name in batch.rows.column_names if name != OP]
        fields = evolved(self._fields, batch.rows.select(columns).schema).fields
        documents = documents_of(batch.rows, self._target.key, fields, refuse)
        with self._store.errors():
            while not self._try(batch, documents, fields):
                pass
        self.position, self._fields = batch.position(), fields

    def close(self) -> None:
        self._connection.disconnect()

    def _try(self, batch: Batch, documents: Documents, fields: pa.Schema) -> bool:
        """False: a watched key was changed before EXEC, and nothing was done."""
        target, version = self._store.target_key, self._store.version_key(self._version)
        self._ask("WATCH", target, version)
        if is_applied(self._stored(), batch):
            return True
        is_live = self._ask("HGET", target, "live") == b"%d" % self._version
        name = name_of(self._target, self._version, is_live=is_live)
        self._ask("WATCH", name)
        kind = self._ask("TYPE", name)
        if kind not in (b"none", b"hash" if self._target.key else b"stream"):
            raise StoreRefused(
                f"the key {name} is a {kind.decode()} now, which another client has written",
                hint="remove it, and rebuild",
            )
        commands = commands_of(
            name.encode(),
            documents,
            has_key=bool(self._target.key),
            maxlen=self._target.options.get("maxlen", "").encode(),
        )
        state = {"position": batch.position().to_json(), "fields": fields_to_text(fields).encode()}
        entries = (part for field, value in state.items() for part in (field.encode(), value))
        commands.append(command(b"HSET", version.encode(), *entries))
        return self._execute(commands)

    def _stored(self) -> Position | None:
        """Raises Fenced."""
        version = self._store.version_key(self._version)
        epoch, position = self._ask("HMGET", version, "epoch", "position")
        if epoch is None or int(epoch) != self._epoch:
            raise Fenced(
                f"another process writes version {self._version} of {self._target.name} now",
                detail=f"its epoch is {'missing' if epoch is None else int(epoch)},"
                f" this process had {self._epoch}",
            )
        return _position(position)

    def _execute(self, commands: list[bytes]) -> bool:
        size_bytes = sum(map(len, commands))
        if size_bytes > _LARGEST_BATCH_BYTES:
            raise StoreRefused(
                f"a batch has {size_bytes >> 20} MiB of rows",
                detail=f"Redis takes {_LARGEST_BATCH_BYTES >> 20} MiB in one transaction",
                hint="let the pipeline read fewer records for each batch",
            )
        try:
            self._connection.send_packed_command([command(b"MULTI"), *commands, command(b"EXEC")])
            for _ in range(len(commands) + 1):  # OK, then QUEUED, or why not
                self._connection.read_response()
            answers = self._connection.read_response()
        except BaseException:  # later answers would be read as those of other commands
            self._connection.disconnect()
            raise
        if answers is None:
            return False
        for answer in answers:
            if isinstance(answer, Exception):  # excluded by the checks under WATCH
                raise answer
        return True

    def _ask(self, *arguments: str) -> Any:
        self._connection.send_command(*arguments)
        return self._connection.read_response()


@contextmanager
def _sink_errors(whose: str) -> Iterator[None]:
    """Maps errors of Redis to SinkError."""
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise StoreRefused(
            f"{whose}: Redis refuses the user or what it does",
            detail=str(error),
            hint="the user comes from url, its password from there or from password_file; it needs"
            " the commands of hashes, streams, scripting and transactions, and INFO",
        ) from None
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise StoreUnreachable(f"{whose}: Redis does not answer", detail=str(error)) from None
    except redis.RedisError as error:
        if isinstance(error, _PASSING) or str(error).startswith("MISCONF"):
            raise StoreUnreachable(
                f"{whose}: Redis takes no writes now", detail=str(error)
            ) from None
        raise StoreRefused(f"{whose}: Redis refuses a command", detail=str(error)) from None


def _text(stored: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in stored.items()}


def _position(stored: bytes | None) -> Position | None:
    return None if stored is None else Position.from_json(stored)


def _fields(stored: bytes) -> pa.Schema:
    return fields_from_text(stored.decode())
