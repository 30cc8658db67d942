"""The topic `_schemas`: read to its end, and written by one process at a time.

Several gateways may serve the same registry. Each decides on its own copy of the state; a decision
must not be written if another process has written since. Kafka's fencing decides that: all use one
transactional id. The one that has fenced the others last may commit; what it read after fencing is
all there is. A process that is fenced starts again: fence, read, decide.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import BrokerUnreachable, Fenced, HeadwaterError
from headwater.jitter import pause_between
from headwater.schema_records import TOPIC
from headwater.schemas.registry.records import Written
from headwater.settings import ClientSettings

TRANSACTIONAL_ID: Final = "headwater-schemas"
_TRANSACTION_TIMEOUT_MS: Final = 30_000
_READ_BACK_PAUSE_S: Final = 0.002
_FENCED_PAUSE_S: Final = 0.02

Apply = Callable[[bytes | None, bytes | None], None]


class SchemasTopic:
    """May be used by several threads. `apply` is called for each record in their order, `clear`
    before the first if the topic turns out to be another one.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        apply: Apply,
        clear: Callable[[], None],
        *,
        topic: str = TOPIC,
        patience_s: float = 15.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._topic = topic
        self._patience_s = patience_s
        self._apply = apply
        self._clear = clear
        self._at = 0  # the offset behind what was applied
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._fetcher = Fetcher(bootstrap, login, patience_s=patience_s)
        self._producer: TransactionalProducer | None = None
        self._is_owner = False

    def close(self) -> None:
        self._fetcher.close()
        if self._producer is not None:
            self._producer.close()

    def create(self) -> None:
        """Creates the topic, unless it exists."""
        configs = {"cleanup.policy": "compact"}
        topic = NewTopic(self._topic, 1, configs)
        ensure_topics(self._bootstrap, self._login, [topic], patience_s=self._patience_s)

    def exists(self) -> bool:
        """Whether there is such a topic, and we may see it."""
        with self._reading:
            return self._fetcher.exists(self._topic)

    def read(self) -> int:
        """Applies all that is committed. Returns the offset behind it."""
        with self._reading:
            partition = (self._topic, 0)
            end = self._fetcher.offsets([partition], LATEST)[partition]
            if end < self._at:  # deleted and created again
                self._clear()
                self._at = 0
            if end > self._at:
                start = max(self._at, self._fetcher.offsets([partition], EARLIEST)[partition])
                for record in self._fetcher.records(self._topic, 0, start, end):
                    self._apply(record.key, record.value)
                    self._at = record.offset + 1
                self._at = end
            return self._at

    def change(self, decide: Callable[[], Sequence[Written]]) -> None:
        """Writes what `decide` returns, after it has seen everything that was written before. It
        may be called several times, and may raise. When this returns, the records are applied.
        Raises BrokerUnreachable; then they may have been written or not.
        """
        ends_s = time.monotonic() + self._patience_s
        attempts = 0
        with self._writing:
            while True:
                if not self._is_owner:
                    self._take_over()
                written = decide()
                if not written:
                    return
                try:
                    end = self._commit(written)
                except Fenced as error:
                    self._is_owner = False
                    if time.monotonic() > ends_s:
                        raise BrokerUnreachable(
                            "other registries write all the time", detail=str(error)
                        ) from error
                    attempts += 1  # so that of several that fence each other one comes through
                    time.sleep(pause_between(0, _FENCED_PAUSE_S * min(attempts, 10)))
                    continue
                except HeadwaterError:
                    self._is_owner = False
                    raise
                self._read_back(end, ends_s)
                return

    def _take_over(self) -> None:
        if self._producer is None:
            self._producer = TransactionalProducer(
                self._bootstrap,
                TRANSACTIONAL_ID,
                login=self._login,
                transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
                patience_s=self._patience_s,
            )
        self._producer.fence()
        self.read()
        self._is_owner = True

    def _commit(self, written: Sequence[Written]) -> int:
        assert self._producer is not None
        batch = BatchBuilder()
        now_ms = int(time.time() * 1000)
        batches = [batch]
        for record in written:
            if not batch.append(record.key, record.value, (), now_ms):
                batch = BatchBuilder()
                batch.append(record.key, record.value, (), now_ms)
                batches.append(batch)
        ends = self._producer.send({(self._topic, 0): batches})
        self._producer.commit()
        return ends[self._topic, 0]

    def _read_back(self, end: int, ends_s: float) -> None:
        """Until our records are applied: a broker may commit a little later than it says so."""
        if end < 0:  # the leader did not say where they are
            self._take_over()
            return
        while self.read() <= end:  # a marker stands behind the records
            if time.monotonic() > ends_s:
                self._is_owner = False  # what is there is undecided for us
                raise BrokerUnreachable("what was written to the registry is not committed yet")
            time.sleep(_READ_BACK_PAUSE_S)
