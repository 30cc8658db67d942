"""Kafka transactions that commit a position with their records, so that none is repeated.

    records  ──▶ their topic ─┐
    position ──▶ __headwater_positions (compacted, by key) ─┴─ one transaction

A process that starts fences the earlier producer of its transactional id (its open transaction is
aborted, its later requests are refused), and then reads the position: exactly the transactions up
to that position are committed.

Keys of positions begin with "/", which no capture's name does (capture/positions.py has theirs).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from headwater.client.cluster import DEFAULT_PATIENCE_S
from headwater.client.positions_topic import POSITIONS_CONFIG, POSITIONS_TOPIC
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import Batch, BatchBuilder
from headwater.client.writing.sending import TopicPartition
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import (
    BrokerUnreachable,
    Fenced,
    HeadwaterError,
    ProtocolError,
    RequestRefused,
    SinkError,
    StoreRefused,
    StoreUnreachable,
)
from headwater.sinks.contract import Log

Ends = dict[TopicPartition, int]  # the offset behind the last record
_POSITIONS: Final = (POSITIONS_TOPIC, 0)


class TransactionalPositions:
    """The only writer under `transactional_id` until another one is created. To be used by one
    thread. After an error (except one of `position_of`) it can only be closed.
    """

    def __init__(
        self,
        log: Log,
        transactional_id: str,
        key: bytes,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._key = key
        self._failure: HeadwaterError | None = None
        with as_sink_errors():
            topic = NewTopic(POSITIONS_TOPIC, 1, POSITIONS_CONFIG)
            ensure_topics(log.bootstrap, log.login, [topic], patience_s=patience_s)
            self._producer = TransactionalProducer(
                log.bootstrap, transactional_id, login=log.login, patience_s=patience_s
            )
            try:
                self._producer.fence()
                self.position = read_positions(log, patience_s=patience_s).get(key)
            except BaseException:
                self._producer.close()
                raise

    def close(self) -> None:
        self._producer.close()

    def check(self) -> None:
        """Raises what an earlier `commit` has raised, if one has."""
        if self._failure is not None:
            raise type(self._failure)(
                "an earlier transaction has failed; a new writer is needed",
                detail=str(self._failure),
            )

    def commit(
        self,
        batches: Mapping[TopicPartition, Sequence[Batch]],
        position_of: Callable[[Ends], bytes | None],
    ) -> None:
        """Commits batches and position, or neither; `position_of` gets the records' end offsets.

        Raises StoreUnreachable, StoreRefused or Fenced. After the first the outcome is unknown
        until the next TransactionalPositions reads the position.
        """
        self.check()
        # Any other exception (Ctrl-C) also leaves a transaction with an unknown outcome.
        self._failure = StoreUnreachable("it was interrupted")
        try:
            self._commit(batches, position_of)
        except (SinkError, Fenced) as error:
            self._failure = error
            raise
        self._failure = None

    def _commit(
        self,
        batches: Mapping[TopicPartition, Sequence[Batch]],
        position_of: Callable[[Ends], bytes | None],
    ) -> None:
        with as_sink_errors():
            try:
                ends = self._producer.send(batches)
                if -1 in ends.values():
                    raise BrokerUnreachable("the broker did not return the offsets of the records")
                builder = BatchBuilder()
                builder.append(self._key, stored := position_of(ends), (), int(time.time() * 1000))
                self._producer.send({_POSITIONS: [builder]})
            except RequestRefused:
                # An open transaction would block readers until its timeout.
                self._producer.abort()
                raise
            self._producer.commit()
        self.position = stored


def read_positions(log: Log, *, patience_s: float = DEFAULT_PATIENCE_S) -> dict[bytes, bytes]:
    """All committed positions, of every writer, by key."""
    with as_sink_errors():
        found = read_committed_latest(
            log.bootstrap, log.login, POSITIONS_TOPIC, patience_s=patience_s
        )
    return {key: value for key, value in found.items() if key.startswith(b"/")}


@contextmanager
def as_sink_errors() -> Iterator[None]:
    """Maps the client's errors to SinkError. Fenced is left as it is."""
    try:
        yield
    except BrokerUnreachable as error:
        raise _as(StoreUnreachable, error) from error
    except ProtocolError as error:  # not a Kafka broker behind the address, perhaps
        raise _as(StoreUnreachable, error) from error
    except RequestRefused as error:
        raise _as(StoreRefused, error) from error


def _as(kind: type[SinkError], error: HeadwaterError) -> SinkError:
    return kind(error.what, detail=error.detail, hint=error.hint)
