"""A connector's records as whole transactions, each with its position.

A position is {"offsets": [[partition, offset], …]}: Kafka Connect's source offsets, as the
connector gave them with the last record of a transaction. A connector that begins there sends what
follows.

A transaction is held back until its END is there, so that its position is final when it begins. One
of more than HELD_BYTES is not: its position is that of what came before it, and names it,
{"offsets": …, "transaction": id}. A connector that begins there sends it again, and what the topics
have of it is left out here.

Snapshots know no transactions: their records form groups as they come.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headwater.capture.contract import (
    Begin,
    Commit,
    Event,
    LogPosition,
    PositionAdvanced,
    Record,
    SourcePosition,
)
from headwater.capture.debezium.records import Batch
from headwater.errors import PositionLost

HELD_BYTES: Final = 16 << 20
# Of a connector that does not report every END: a transaction that was silent for so long is
# taken for whole.
QUIET_S: Final = 1.0

TRANSACTION_ID: Final = "transaction_id"  # in an offset, while its transaction is in progress
TRANSACTION_ORDER: Final = "transaction_data_collection_order_"

Offsets = dict[str, tuple[dict[str, Any], dict[str, Any]]]  # by partition, written as JSON


def offsets_of(position: LogPosition) -> Offsets:
    return {_key(partition): (partition, offset) for partition, offset in position["offsets"]}


def position_of(offsets: Offsets, transaction: str | None = None) -> dict[str, Any]:
    position: dict[str, Any] = {"offsets": [list(offset) for offset in offsets.values()]}
    if transaction is not None:
        position["transaction"] = transaction
    return position


class Transactions:
    """What a connector sends behind one position. Fed by one thread."""

    def __init__(
        self,
        name: str,
        after: SourcePosition,
        *,
        transaction_topic: str,
        heartbeat_topic: str,
        are_published: bool,
        are_ended: bool,
    ) -> None:
        """`are_published`: whether BEGIN and END are records too. `are_ended`: whether the
        connector reports every END.
        """
        self._name = name
        self._transaction_topic = transaction_topic
        self._heartbeat_topic = heartbeat_topic
        self._are_published = are_published
        self._are_ended = are_ended
        self._offsets = offsets_of(after.at)  # behind the last transaction that was whole
        self._id: str | None = None  # of the open transaction; "" is a group without one
        self._ts_ms = 0
        self._last: Any = None  # its last record, between two polls
        self._count = 0  # its ordinals so far
        self._held: list[Record] = []
        self._held_bytes = 0
        self._is_begun = False  # its Begin was sent
        self._fed_s = 0.0
        # What the topics have of the transaction that the position names: ordinals below it.
        self._resumed: str | None = after.at.get("transaction")
        self._has: float = 0
        if self._resumed is not None:
            self._has = math.inf if after.changes is None else after.changes

    def feed(self, batch: Batch, now_s: float) -> Iterator[Event]:
        """What the connector's answer to one poll means."""
        if batch.topics:
            self._fed_s = now_s
        for index, topic in enumerate(batch.topics):
            if topic == self._transaction_topic:
                yield from self._boundary(batch, index)
            elif topic == self._heartbeat_topic:
                if self._id is None:
                    self._pass(batch.records[index])
                    yield PositionAdvanced(position_of(self._offsets))
            else:
                if self._id is None:
                    record = batch.records[index]
                    self._open(record, _ts_ms(record))
                yield from self._take(batch, index, max(self._count, 1))
        if self._id is not None:
            if batch.topics:
                self._last = batch.records[-1]
            is_silent = not self._are_ended and now_s - self._fed_s > QUIET_S
            if not self._id or is_silent:
                yield from self._end()

    def _boundary(self, batch: Batch, index: int) -> Iterator[Event]:
        record = batch.records[index]
        value = record.value()
        if str(value.get("status")) == "BEGIN":
            if self._id is not None and self._id != _transaction_id(record):
                self._last = batch.records[index - 1] if index else self._last
                yield from self._end()
            if self._id is None:
                self._open(record, int(value.get("ts_ms") or 0))
                if self._are_published:
                    yield from self._take(batch, index, 0)
        elif self._id is not None:
            if self._are_published and self._count > 1:
                yield from self._take(batch, index, self._count)
            self._last = record
            yield from self._end()

    def _open(self, record: Any, ts_ms: int) -> None:
        transaction = _transaction_id(record)
        if self._resumed not in {None, transaction}:
            self._go_on_without_resumed()
        self._id = transaction
        self._ts_ms = ts_ms
        self._last = record
        self._count = 0
        partition = plain(record.sourcePartition())
        if transaction and _key(partition) not in self._offsets:
            # Nothing came before it: should it not be held, it is begun again behind its BEGIN.
            self._offsets[_key(partition)] = partition, plain(record.sourceOffset())

    def _go_on_without_resumed(self) -> None:
        """The transaction that the position names is not sent again. One that was whole need not
        be; but one that was not is not acknowledged to the database.
        """
        if self._has != math.inf:
            raise PositionLost(
                f"{self._name}: transaction {self._resumed} is not whole, and is not sent again",
                hint=f"headwater capture reset {self._name}, then it begins with a new snapshot",
            )
        self._resumed, self._has = None, 0

    def _take(self, batch: Batch, index: int, ordinal: int) -> Iterator[Event]:
        """0 is BEGIN's, whether that is published, sent again, or neither."""
        self._count = ordinal + 1
        if ordinal < self._has or batch.topics[index] is None:
            return
        record = batch.record(index, ordinal)
        if self._is_begun:
            yield record
            return
        self._held.append(record)
        self._held_bytes += batch.size_bytes(index)
        if self._held_bytes > HELD_BYTES and self._id:
            yield from self._begin(position_of(self._offsets, self._id))

    def _begin(self, position: LogPosition) -> Iterator[Event]:
        self._is_begun = True
        held, self._held, self._held_bytes = self._held, [], 0
        yield Begin(position, self._id or "", self._ts_ms, {})
        yield from held

    def _end(self) -> Iterator[Event]:
        """The open transaction is whole."""
        self._pass(self._last)
        position = position_of(self._offsets)
        is_begun = self._is_begun  # its position then names what came before
        if self._held and not is_begun:
            yield from self._begin(position)
        if self._is_begun:
            yield Commit(self._count)
        if is_begun or not self._is_begun:
            yield PositionAdvanced(position)
        self._id = self._last = None
        self._is_begun = False
        self._resumed, self._has = None, 0

    def _pass(self, record: Any) -> None:
        """Everything up to this record is behind us. The offset of END marks that the transaction
        is in progress; a connector that begins with that would send END once more.
        """
        partition = plain(record.sourcePartition())
        offset = {
            name: value
            for name, value in plain(record.sourceOffset()).items()
            if name != TRANSACTION_ID and not name.startswith(TRANSACTION_ORDER)
        }
        self._offsets[_key(partition)] = partition, offset


def plain(java_map: Mapping[Any, Any]) -> dict[str, Any]:
    """A map of Java's as JSON can hold it."""
    return {str(name): _plain(value) for name, value in java_map.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "booleanValue"):  # which in Python is an int
        return bool(value.booleanValue())
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


def _key(partition: Mapping[str, Any]) -> str:
    return json.dumps(partition, sort_keys=True)


def _transaction_id(record: Any) -> str:
    """Empty if it is in none."""
    return str(record.sourceOffset().get(TRANSACTION_ID) or "")


def _ts_ms(record: Any) -> int:
    """When it was, by the database's clock, of any record of Debezium's."""
    value = record.value()
    schema = None if value is None else value.schema()
    if schema is None or schema.field("ts_ms") is None:
        return 0
    return int(value.get("ts_ms") or 0)
