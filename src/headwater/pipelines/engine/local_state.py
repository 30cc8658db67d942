"""State of operators in the driver: in memory between batches, on disk once per batch.

    operators/<batch>-<hex>.arrow   tables that the batch has changed, of all operators
    operators/<batch>.json          {"local": {"tumbling-1": [{"tables": …, "document": …,
                                    "counters": …}, …]}, "manifests": {"tumbling-1": [4, 3, …]}}

The record has the location of every table; it is written last, and both are
durable before the batch reaches its store. Files never change; they are removed when neither the
last batch nor the one before it, which may run again, needs them.

A job of Spark's finds the state in another layout (state_files.py): of each bucket by itself,
because each is written by a task. `LocalState.load` reads both, and `hand_over` writes the state
for jobs. "manifests" are the newest of that layout, to which tables may still point.

If the state has another number of buckets than the operator, `load` rescales it (rescaling.py).
"""

import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from headwater.errors import StateLost
from headwater.log.disk.files import Files
from headwater.pipelines.engine.rescaling import fill_bucket, remove_leftovers
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.state_files import (
    NO_MANIFEST,
    FileState,
    TableLocation,
    batches_of,
    begin,
    begun_buckets,
    pack_tables,
    read_manifest,
    read_table,
    united_sides,
    unreadable,
    unwritable,
)
from headwater.pipelines.operators.state.state_store import (
    Location,
    StateDirectory,
    state_directory,
)

if TYPE_CHECKING:
    from headwater.pipelines.operators.state.manifests import Manifests

_log = logging.getLogger(__name__)
LOCAL: Final = "local"  # the key by which a record of this layout is found
_FILE: Final = re.compile(r"(\d+)-[0-9a-f]+\.arrow(\.[0-9a-f]+)?(\.tmp)?")
_CACHED_BYTES: Final = 1 << 20  # a larger table is mapped from its file when it is needed
_DEAD_BYTES: Final = 4 << 20  # of tables no longer in use, in files with some that are


class BucketState:
    """State of one bucket of one operator (`contract.State`), in memory."""

    def __init__(self, directory: StateDirectory, stored: Mapping[str, Any] | None = None) -> None:
        stored = stored or {}
        self._directory = directory  # that locations are relative to
        self.document: dict[str, Any] = stored.get("document", {})
        self.counters: dict[str, int] = stored.get("counters", {})
        self.locations = {
            name: TableLocation(*location) for name, location in stored.get("tables", {}).items()
        }
        self.cache: dict[str, Any] = {}  # not stored, and not copied
        self.changed: dict[str, pa.Table] = {}  # since the last commit
        self._cached: dict[str, pa.Table] = {}
        self._sides: list[tuple[str, pa.Table]] = []

    def table(self, name: str) -> pa.Table | None:
        if name in self.changed:
            return self.changed[name]
        if name not in self._cached:
            if name not in self.locations:
                return None
            table = read_table(self._directory, self.locations[name])
            if self.locations[name].bytes > _CACHED_BYTES:
                return table
            self._cached[name] = table
        return self._cached[name]

    def put(self, name: str, table: pa.Table | None) -> None:
        self._cached.pop(name, None)
        self.locations.pop(name, None)
        if table is None or not len(table):
            self.changed.pop(name, None)
        else:
            self.changed[name] = table.combine_chunks()

    def side(self, name: str, rows: pa.Table) -> None:
        if len(rows):
            self._sides.append((name, rows))

    @property
    def sides(self) -> dict[str, pa.Table]:
        """The side outputs of this batch."""
        return united_sides(self._sides)

    def side_tables(self, name: str) -> list[pa.Table]:
        """The side outputs of this batch under this name. They stay apart, as they do in files: the
        late rows of a join's two inputs have different columns.
        """
        return [rows for other, rows in self._sides if other == name]

    def begin_batch(self) -> None:
        self._sides = []

    def copy(self) -> "BucketState":
        """Changes of the copy are not seen here."""
        copied = BucketState(
            self._directory, orjson.loads(orjson.dumps(self.as_json(), default=tuple))
        )
        copied.changed = dict(self.changed)
        copied._cached = dict(self._cached)
        return copied

    def rewrite(self, files: set[str]) -> None:
        """Tables in these files are written again with the next commit."""
        for name, location in list(self.locations.items()):
            if location.file in files:
                self.changed[name] = self.table(name)
                self._cached.pop(name, None)
                del self.locations[name]

    def committed(self, locations: Mapping[str, TableLocation]) -> None:
        small = {name: rows for name, rows in self.changed.items() if rows.nbytes <= _CACHED_BYTES}
        self._cached |= small
        self.changed = {}
        self.locations |= locations

    def as_json(self) -> dict[str, Any]:
        return {
            "tables": self.locations,
            "document": self.document,
            "counters": self.counters,
        }


class LocalState:
    """The states of all operators of one write. To be used by one thread.

    After an error in a step or a commit it is of no more use: what is in memory may be ahead of
    what is on disk.
    """

    def __init__(
        self, operators: tuple[Built, ...], directory: Location, *, files: Files | None = None
    ) -> None:
        self._operators = operators
        self._directory = state_directory(directory, files)
        self._manifests: Manifests = {}
        self._needed: set[str] = set()  # files of the batch before
        self._has_leftovers = True  # of buckets before a rescaling, perhaps
        self.of: dict[str, list[BucketState]] = {}
        self.record = b""  # as last written

    def load(self, batch: int) -> None:
        """The state after that batch, which is -1 before the first, in as many buckets as the
        operators have. Raises StateLost, and PipelineError if the disk is full.
        """
        if not self._operators:
            return
        stored: dict[str, Any] = {}
        if batch >= 0:
            stored = read_record(self._directory, batch)
        if LOCAL in stored:
            self._manifests = stored["manifests"]
            self.of = {
                operator.name: [
                    BucketState(self._directory, of_bucket)
                    for of_bucket in _of(stored[LOCAL], operator)
                ]
                for operator in self._operators
            }
        else:
            self._manifests = {
                operator.name: [NO_MANIFEST] * operator.buckets
                if batch < 0
                else list(_of(stored, operator))
                for operator in self._operators
            }
            self.of = {operator.name: self._from_tasks(operator) for operator in self._operators}
        with self._writing():
            self._rescale(batch)
        self._needed = self._referred()

    def _rescale(self, batch: int) -> None:
        """The record is the switch from the old buckets to the new ones: what comes after it is
        done again if the process dies.
        """
        changed = [
            operator
            for operator in self._operators
            if len(self.of[operator.name]) != operator.buckets
        ]
        for operator in changed:
            before, after = self.of[operator.name], []
            _log.info(
                "%s: rescaling its state of %d buckets to %d",
                operator.name,
                len(before),
                operator.buckets,
            )
            for bucket in range(operator.buckets):
                state = BucketState(self._directory)
                fill_bucket(operator, before, state, Share(bucket, operator.buckets))
                self._write_tables(batch, [state])
                after.append(state)
            self.of[operator.name] = after
            self._manifests[operator.name] = [NO_MANIFEST] * operator.buckets
        if changed:
            self._write_record(batch, self._record())
        for operator in self._operators:
            path = self._directory / operator.name
            if begun_buckets(path) != operator.buckets:
                begin(path, operator.buckets)

    def _from_tasks(self, operator: Built) -> list[BucketState]:
        states = []
        for bucket, manifest in enumerate(self._manifests[operator.name]):
            stored: dict[str, Any] = {}
            if manifest != NO_MANIFEST:
                stored = read_manifest(self._directory / operator.name / str(bucket), manifest)
                stored["tables"] = {
                    name: (f"{operator.name}/{bucket}/{file}", *rest)
                    for name, (file, *rest) in stored["tables"].items()
                }
            states.append(BucketState(self._directory, stored))
        return states

    def commit(self, batch: int) -> None:
        """When it returns, the state after this batch is durable. Raises PipelineError if the disk
        is full, StateLost if state is missing.
        """
        if not self._operators:
            return
        with self._writing():
            self._compact()
            self._write_tables(batch, [state for states in self.of.values() for state in states])
            self._write_record(batch, self._record())
            needed = self._referred()
            if batch % self._directory.cleanup_every == 0:
                self._remove_old(batch, needed | self._needed)
            self._needed = needed
            self._remove_leftovers()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StateLost("the state of an operator is missing", detail=str(error)) from error
        except OSError as error:
            raise unwritable(self._directory, error) from error

    def hand_over(self, batch: int) -> None:
        """Writes the state after this batch as jobs of Spark's expect it. A crash in between leaves
        the state as it was.
        """
        if not self._operators:
            return
        with self._writing():
            self._hand_over_all(batch)

    def _hand_over_all(self, batch: int) -> None:
        manifests: Manifests = {}
        for operator in self._operators:
            manifests[operator.name] = [
                self._hand_over(operator, bucket, state, batch)
                for bucket, state in enumerate(self.of[operator.name])
            ]
            (self._directory / operator.name).sync()
        self._write_record(batch, manifests)
        self._remove_old(batch + 1, set())
        self._manifests = manifests
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Once, when neither the record of the last batch nor that before it needs them."""
        if self._has_leftovers:
            for operator in self._operators:
                path = self._directory / operator.name
                remove_leftovers(path, self._manifests[operator.name])
        self._has_leftovers = False

    def _hand_over(self, operator: Built, bucket: int, state: BucketState, batch: int) -> int:
        before = self._manifests[operator.name][bucket]
        directory = self._directory / operator.name / str(bucket)
        # Those of a job that was given up, for a batch that ran here later.
        directory.remove(f"{number}.json" for number in batches_of(directory) if number > before)
        stored = FileState(
            self._directory / operator.name,
            bucket,
            batch,
            buckets=operator.buckets,
            is_begun=True,
            required=before,
        )
        own = f"{operator.name}/{bucket}/"
        for name in stored.names - state.locations.keys():
            stored.put(name, None)
        for name, location in state.locations.items():
            if not location.file.startswith(own):
                stored.put(name, state.table(name))
        stored.document, stored.counters = state.document, state.counters
        return stored.commit()

    def copy(self) -> "LocalState":
        """For a batch that may not be worth committing."""
        copied = LocalState(self._operators, self._directory)
        copied.of = {name: [state.copy() for state in states] for name, states in self.of.items()}
        return copied

    def is_like(self, other: "LocalState") -> bool:
        """Whether nothing was changed since one was copied from the other."""
        return self.compared() == other.compared()

    def compared(self) -> bytes:
        states = [state for states in self.of.values() for state in states]
        return orjson.dumps(
            [(state.as_json(), sorted(state.changed)) for state in states], default=tuple
        )

    def sides(self, name: str) -> dict[str, list[pa.Table]]:
        """Side outputs of the batch under this name, by operator."""
        return {
            operator: [rows for state in states for rows in state.side_tables(name)]
            for operator, states in self.of.items()
        }

    def begin_batch(self) -> None:
        for states in self.of.values():
            for state in states:
                state.begin_batch()

    def _record(self) -> dict[str, Any]:
        states = {name: [one.as_json() for one in states] for name, states in self.of.items()}
        return {LOCAL: states, "manifests": self._manifests}

    def _write_tables(self, batch: int, states: Sequence[BucketState]) -> None:
        tables = [table for state in states for table in state.changed.values()]
        if not tables:
            return
        name = f"{batch}-{secrets.token_hex(4)}.arrow"
        content, locations = pack_tables(name, tables)
        self._directory.write(name, content)
        found = iter(locations)
        for state in states:
            state.committed({name: next(found) for name in state.changed})

    def _write_record(self, batch: int, record: Mapping[str, Any]) -> None:
        """Its name is durable when this returns, and so are those of the files before it."""
        self.record = orjson.dumps(record, default=tuple)
        self._directory.write(f"{batch}.json", self.record)
        self._directory.sync()

    def _compact(self) -> None:
        """Tables in files of which more than half is dead are written again, which costs no more
        than it cost to write the dead part.
        """
        used: dict[str, int] = {}
        for states in self.of.values():
            for state in states:
                for location in state.locations.values():
                    used[location.file] = used.get(location.file, 0) + location.bytes
        if sum(used.values()) + _DEAD_BYTES > self._stored_bytes(used):
            return
        mostly_dead = {
            file
            for file, size_bytes in used.items()
            if self._directory.size_bytes(file) > 2 * size_bytes
        }
        for states in self.of.values():
            for state in states:
                state.rewrite(mostly_dead)

    def _stored_bytes(self, files: Mapping[str, int]) -> int:
        return sum(self._directory.size_bytes(file) for file in files)

    def _referred(self) -> set[str]:
        return {
            location.file
            for states in self.of.values()
            for state in states
            for location in state.locations.values()
        }

    def _remove_old(self, batch: int, needed: set[str]) -> None:
        old = []
        for name in self._directory.names():
            number, dot, _ = name.partition(".")
            is_record = bool(dot) and number.isdigit() and int(number) < batch - 1
            found = _FILE.fullmatch(name)
            is_dead = found is not None and name not in needed and int(found[1]) < batch
            if is_record or is_dead:
                old.append(name)
        self._directory.remove(old)


def read_record(directory: Location, batch: int) -> dict[str, Any]:
    """The driver's record of the state after a batch, of either layout. Raises StateLost."""
    try:
        found: dict[str, Any] = orjson.loads(state_directory(directory).read(f"{batch}.json"))
    except (OSError, ValueError) as error:
        raise unreadable("the record of operator state is missing", str(error), error) from error
    return found


def is_local(directory: Location, batch: int) -> bool:
    """Whether the state after the batch is to be handed over before a job can use it."""
    exists = batch >= 0 and state_directory(directory).exists()
    return exists and LOCAL in read_record(directory, batch)


def _of(stored: Mapping[str, Any], operator: Built) -> list[Any]:
    """Of each bucket that it had."""
    found: list[Any] | None = stored.get(operator.name)
    if not found:
        raise StateLost("the state of an operator is missing", detail=operator.name)
    return found
