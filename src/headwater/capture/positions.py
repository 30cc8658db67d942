"""Stored positions of captures and their tables: the compacted topic `__headwater_positions`.

    key                        value (JSON)
    shop                       {"at": position, "changes": n | null, "ts_ms", "delay_ms",
                                "written_ms", "owner", "signals", "counts": {…}, "last": {…} | null,
                                "lag": {"size_bytes", "retained_bytes", "left_bytes"}}
    shop/public.orders         {"table": {…}, "snapshot": {…} | null, "failed": {…} | null,
                                "is_ahead", "storage": {…} | null}

Both are written in the same Kafka transaction as the changes they speak of, as its last records:
the topic's partition is then part of an open transaction for a moment only, and a capture that
starts never waits for another one's long transaction (a `read_committed` reader would).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from headwater.capture.contract import Begin, Column, Lag, SourcePosition, Table
from headwater.client.positions_topic import POSITIONS_TOPIC
from headwater.errors import PositionLost

_Kind = TypeVar("_Kind")

TOPIC: Final = POSITIONS_TOPIC
SIGNALS_TOPIC: Final = "__headwater_signals"  # what `headwater capture snapshot` asks for, by name

INITIAL, INCREMENTAL = "true", "incremental"  # as Debezium's source.snapshot has it


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """Where a capture stands."""

    position: SourcePosition
    ts_ms: int  # when the last transaction was committed, by the database's clock
    delay_ms: int = 0  # how old it was when it was read
    written_ms: int = 0  # when this was written, by ours
    owner: str = ""  # the process that wrote it
    has_ended: bool = False  # and which stopped in order then
    signals: int = 0  # offset of the next signal
    counts: Mapping[str, int] = field(default_factory=dict)  # of a transaction that is not whole
    lag: Lag = field(default_factory=Lag)
    # The last transaction; unless a chunk contains it, the chunk is older than the topics (limbo).
    last: Begin | None = None


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """How far the copy of a table is. `kind` is INITIAL or INCREMENTAL."""

    kind: str
    after: Any = None  # the next chunk begins behind this key
    rows: int = 0
    total: int | None = None  # an estimate
    is_done: bool = False
    passing: Any = None  # Chunk.bounds of a copy of all of it that the stream has not passed yet


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a table is no longer followed."""

    what: str
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as the topics know it."""

    table: Table
    snapshot: SnapshotState | None = None
    failed: Failure | None = None
    is_ahead: bool = False  # as a look at the database showed it, not yet the stream
    storage: Any = None  # how the database holds its rows: contract.StorageChange


@dataclass(frozen=True, slots=True)
class Stored:
    """All that is stored of one capture."""

    capture: CapturePosition | None
    tables: Mapping[str, TableState]


def key_of(capture: str, table_id: str | None = None) -> bytes:
    return (capture if table_id is None else f"{capture}/{table_id}").encode()


def encode_capture(stored: CapturePosition) -> bytes:
    return orjson.dumps(
        {
            "at": stored.position.at,
            "changes": stored.position.changes,
            "ts_ms": stored.ts_ms,
            "delay_ms": stored.delay_ms,
            "written_ms": stored.written_ms,
            "owner": stored.owner,
            "has_ended": stored.has_ended,
            "signals": stored.signals,
            "counts": stored.counts,
            "lag": dataclasses.asdict(stored.lag),
            "last": stored.last,
        }
    )


def encode_table(state: TableState) -> bytes:
    return orjson.dumps(dataclasses.asdict(state))


def decode(capture: str, records: Mapping[bytes, bytes]) -> Stored:
    """What is stored of `capture` in the topic's latest records by key. What a later version adds
    is passed over; what an earlier one lacks is as if it had just begun.
    """
    value = records.get(key_of(capture))
    prefix = key_of(capture, "")
    try:
        return Stored(
            _capture(orjson.loads(value)) if value is not None else None,
            {
                key.removeprefix(prefix).decode(): _table_state(orjson.loads(value))
                for key, value in records.items()
                if key.startswith(prefix)
            },
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise PositionLost(
            f"the stored position of capture {capture} cannot be read",
            detail=f"{TOPIC}: {type(error).__name__}: {error}",
            hint="was it written by another version, or by another program?"
            f" `headwater capture reset {capture}` forgets it",
        ) from error


def captures_in(records: Mapping[bytes, bytes]) -> list[str]:
    """The names of all captures that ever stored a position."""
    return sorted(key.decode(errors="replace") for key in records if b"/" not in key)


def _capture(stored: Mapping[str, Any]) -> CapturePosition:
    position = SourcePosition(stored["at"], stored["changes"])
    lag = _made(Lag, stored.get("lag") or {})
    last = None if stored.get("last") is None else _made(Begin, stored["last"])
    return _made(CapturePosition, {**stored, "position": position, "lag": lag, "last": last})


def _table_state(stored: Mapping[str, Any]) -> TableState:
    snapshot, failed = stored["snapshot"], stored["failed"]
    return TableState(
        table_from(stored["table"]),
        _made(SnapshotState, snapshot) if snapshot is not None else None,
        _made(Failure, failed) if failed is not None else None,
        bool(stored.get("is_ahead")),
        stored.get("storage"),
    )


def table_from(stored: Mapping[str, Any]) -> Table:
    """The table that `dataclasses.asdict` took apart."""
    columns = tuple(_made(Column, column) for column in stored["columns"])
    return _made(Table, {**stored, "columns": columns, "key": tuple(stored["key"])})


def _made(kind: type[_Kind], stored: Mapping[str, Any]) -> _Kind:
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: stored[name] for name in names if name in stored})
