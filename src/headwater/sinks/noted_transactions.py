"""Kafka transactions each of which carries a note of what it was, so that it is not done twice.

    rows ──▶ their topic ─┐
    note ──▶ __headwater_positions (compacted, by key) ─┴─ one transaction

A process that starts fences whoever wrote under its transactional id before (what that one left
open is aborted, whatever it still sends is refused), and reads the note behind it: what the note
tells of is committed, and nothing else is.

Keys of notes begin with "/", which no capture's name does (capture/positions.py has theirs).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from headwater.client.batches import Batch, BatchBuilder
from headwater.client.cluster import DEFAULT_PATIENCE_S
from headwater.client.compacted import read_committed_latest
from headwater.client.positions_topic import POSITIONS_CONFIG, POSITIONS_TOPIC
from headwater.client.sending import TopicPartition
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.transactions import TransactionalProducer
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


class NotedTransactions:
    """The only writer under `transactional_id` from now on, until another one is made. To be used
    by one thread. After an error (but of `note_of`) it can only be closed.
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
                self.note = read_notes(log, patience_s=patience_s).get(key)
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
        note_of: Callable[[Ends], bytes | None],
    ) -> None:
        """Batches and note, or neither; `note_of` is given where the records lie.

        Raises StoreUnreachable, StoreRefused or Fenced. After the first nobody knows which: the
        next NotedTransactions does.
        """
        self.check()
        # Also what is not an error of ours (Ctrl-C) leaves a transaction that nobody knows of.
        self._failure = StoreUnreachable("it was interrupted")
        try:
            self._commit(batches, note_of)
        except (SinkError, Fenced) as error:
            self._failure = error
            raise
        self._failure = None

    def _commit(
        self,
        batches: Mapping[TopicPartition, Sequence[Batch]],
        note_of: Callable[[Ends], bytes | None],
    ) -> None:
        with as_sink_errors():
            try:
                ends = self._producer.send(batches)
                if -1 in ends.values():
                    raise BrokerUnreachable("the broker did not tell where the records are")
                note = BatchBuilder()
                note.append(self._key, stored := note_of(ends), (), int(time.time() * 1000))
                self._producer.send({_POSITIONS: [note]})
            except RequestRefused:
                # Open, it would keep readers waiting until its timeout.
                self._producer.abort()
                raise
            self._producer.commit()
        self.note = stored


def read_notes(log: Log, *, patience_s: float = DEFAULT_PATIENCE_S) -> dict[bytes, bytes]:
    """All that are committed, of every writer."""
    with as_sink_errors():
        found = read_committed_latest(
            log.bootstrap, log.login, POSITIONS_TOPIC, patience_s=patience_s
        )
    return {key: value for key, value in found.items() if key.startswith(b"/")}


@contextmanager
def as_sink_errors() -> Iterator[None]:
    """The client's errors in the words of sinks/contract.py. Fenced stays as it is."""
    try:
        yield
    except BrokerUnreachable as error:
        raise _as(StoreUnreachable, error) from error
    except ProtocolError as error:  # answers that are none, from whoever is behind the address
        raise _as(StoreUnreachable, error) from error
    except RequestRefused as error:
        raise _as(StoreRefused, error) from error


def _as(kind: type[SinkError], error: HeadwaterError) -> SinkError:
    return kind(error.what, detail=error.detail, hint=error.hint)
