"""The position of a Delta table in its transaction log, and the mapping of delta-rs's errors.

Every commit of ours has
    txn          `headwater/<owner>`: the batch; of two commits with it at the same time, one fails
    commitInfo   "headwater": epoch, position and fields (`State`)
and the one that a writer begins with puts the same into the table's property `headwater.state`.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.fs
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from headwater.errors import HeadwaterError, StoreRefused, StoreUnreachable
from headwater.sinks.contract import (
    Position,
    Target,
    fields_from_text,
    fields_to_text,
    offsets_from,
)

OWNER, STATE = "headwater.owner", "headwater.state"  # properties of the table
TRIES: Final = 8  # against concurrent commits of others
PAUSE_S: Final = 0.05

_COMMIT: Final = "headwater"  # key in commitInfo
_NONE: Final = -1  # before the first batch


@dataclass(frozen=True, slots=True)
class State:
    """The epoch, position and fields that a commit stores."""

    epoch: int
    position: Position | None
    fields: pa.Schema

    def to_text(self) -> str:
        position = self.position and orjson.loads(self.position.to_json())
        fields = fields_to_text(self.fields)
        return orjson.dumps({"epoch": self.epoch, "position": position, "fields": fields}).decode()

    @classmethod
    def from_text(cls, stored: str) -> "State":
        read = orjson.loads(stored)
        position = read["position"]
        if position is not None:
            position = Position(
                position["query"], position["batch"], offsets_from(position["offsets"])
            )
        return cls(read["epoch"], position, fields_from_text(read["fields"]))


def owner_of(table: DeltaTable) -> str | None:
    with delta_errors():
        return table.metadata().configuration.get(OWNER)


def state_of(table: DeltaTable, target: Target) -> State:
    """The state at the loaded version: of the last commit by Headwater. Commits of others
    (OPTIMIZE, VACUUM) are skipped. Old commits are removed from Delta's log after its retention;
    then the table's property counts, if its batch is the same.
    """
    with delta_errors():
        properties = table.metadata().configuration
        applied = table.transaction_version(_app(target))
        log = _log_of(table)
    try:
        state = None
        for version in range(table.version(), -1, -1):
            commit = log(version)
            if commit is None:
                break
            if _COMMIT in commit:
                state = State.from_text(commit[_COMMIT])
                break
        state = state or State.from_text(properties[STATE])
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise StoreRefused(
            f"the position of the Delta table {target.name} cannot be read",
            detail=f"{type(error).__name__}: {error}",
            hint="a rebuild begins a new version",
        ) from error
    if applied != (_NONE if state.position is None else state.position.batch):
        raise StoreRefused(
            f"the Delta table {target.name} no longer has the offsets of batch {applied}",
            detail="another program has since removed entries of its log",
            hint="a rebuild begins a new version; delta.logRetentionDuration can be longer",
        )
    return state


def _log_of(table: DeltaTable) -> Any:
    """From a version to its commitInfo. (DeltaTable.history always begins at the newest commit,
    which may be newer than the table that was loaded.)
    """
    files = pyarrow.fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))  # noqa: SLF001

    def commit_info(version: int) -> dict[str, Any] | None:
        with delta_errors():
            try:
                with files.open_input_stream(f"_delta_log/{version:020}.json") as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                return None
        for line in lines:
            if line.startswith(b'{"commitInfo"'):
                return json.loads(line)["commitInfo"]  # type: ignore[no-any-return]
        return {}

    return commit_info


def commit_of(state: State, target: Target) -> CommitProperties:
    """With the txn, a commit conflicts with any of ours that it has not read."""
    batch = _NONE if state.position is None else state.position.batch
    return CommitProperties(
        custom_metadata={_COMMIT: state.to_text()},
        app_transactions=[Transaction(_app(target), batch)],
    )


def _app(target: Target) -> str:
    return f"headwater/{target.owner}"


def add_columns(table: DeltaTable, fields: pa.Schema) -> bool:
    existing = {field.name for field in table.schema().fields}
    new = [
        field
        for field in DeltaSchema.from_arrow(stored(fields)).fields
        if field.name not in existing
    ]
    if new:
        table.alter.add_columns(new)
    return bool(new)


def stored(fields: pa.Schema) -> pa.Schema:
    """Raises StoreRefused for a column with a type that Delta lacks."""
    for field in fields:
        if not _is_stored(field.type):
            raise StoreRefused(
                f"Delta has no type for column {field.name}, which is {field.type}",
                hint="cast it in the pipeline, for example to a text",
            )
    return fields


def _is_stored(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_is_stored(kind.field(at).type) for at in range(kind.num_fields))
    return (
        pa.types.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32())
        or pa.types.is_decimal128(kind)
        or pa.types.is_timestamp(kind)
    )


@contextlib.contextmanager
def delta_errors() -> Iterator[None]:
    """Maps delta-rs's errors to SinkError. CommitFailedError is left to the caller."""
    try:
        yield
    except (HeadwaterError, CommitFailedError):
        raise
    except (TableNotFoundError, PermissionError) as error:
        raise StoreRefused("the Delta table cannot be opened", detail=_first_line(error)) from error
    except OSError as error:
        raise StoreUnreachable(
            "the Delta table does not answer", detail=_first_line(error)
        ) from error
    except DeltaError as error:
        raise StoreRefused("Delta refuses it", detail=_first_line(error)) from error
    except pa.ArrowException:
        raise
    except Exception as error:  # some errors of delta-rs have no class of their own
        raise StoreRefused("Delta refuses it", detail=_first_line(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def busy(target: Target) -> StoreUnreachable:
    return StoreUnreachable(
        f"the Delta table {target.name} is changed by other programs all the time",
        detail=f"{TRIES} commits of ours conflicted, one after the other",
    )
