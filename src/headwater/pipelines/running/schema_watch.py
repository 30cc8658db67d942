"""Detects changed columns of the captured tables that a running write reads."""

import threading
import time
from collections.abc import Collection
from typing import Final

from headwater.capture import positions
from headwater.client.reading.fetching import LATEST, Fetcher, Isolation
from headwater.errors import PipelineError
from headwater.pipelines.offsets import by_topic, lag_of
from headwater.pipelines.reading import LiveReader
from headwater.sinks.contract import Log, Offsets

_COMMITTED_S: Final = 10.0  # for a transaction whose rows are read already
_POLL_S: Final = 0.05
_ISOLATIONS: Final[tuple[Isolation, ...]] = ("read_committed", "read_uncommitted")


class SchemaChanged(PipelineError):
    """A captured table has other columns than when the pipeline was built."""


class SchemaWatch:
    """Raises SchemaChanged when captured tables of a flow have other columns. Called before each
    batch, so that none is applied with columns left out.

    The capture writes a change of columns into `<capture>.schema`, and its tables' states into the
    topic of positions, in the same Kafka transaction as the first rows that have them, or earlier.
    A reader that has such a row finds them written, if not yet committed: the markers of a
    transaction reach its partitions one after another. So the end offsets are read uncommitted,
    and then waited for.
    """

    def __init__(self, reader: LiveReader, log: Log) -> None:
        self._reader = reader
        self._schemas = dict(reader.captured)
        self._lock = threading.Lock()  # several writes call it
        self._fetchers = (
            {
                isolation: Fetcher(log.bootstrap, log.login, isolation=isolation)
                for isolation in _ISOLATIONS
            }
            if self._schemas
            else {}
        )
        self._partitions: dict[str, int] = {}  # how many the topics have
        self._ends: Offsets = {}
        try:
            # Also now: a change since the columns were read would be missed.
            self()
        except BaseException:
            self.close()
            raise

    def __call__(self) -> None:
        """Raises SchemaChanged."""
        if not self._schemas:
            return
        with self._lock:
            captures = {topic.split(".")[0] for topic in self._schemas}
            ends = self._look([f"{capture}.schema" for capture in captures], "read_uncommitted")
            if ends == self._ends:
                return
            self._await_committed(ends)
            self._await_committed(self._look([positions.TOPIC], "read_uncommitted"))
            self._compare()
            self._ends = ends

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()

    def _look(self, topics: Collection[str], isolation: Isolation) -> Offsets:
        fetcher = self._fetchers[isolation]
        for topic in topics:
            if topic not in self._partitions:  # of these topics they stay as they are
                self._partitions[topic] = fetcher.partitions(topic)
        partitions = [
            (topic, number) for topic in topics for number in range(self._partitions[topic])
        ]
        return by_topic(fetcher.offsets(partitions, LATEST))

    def _await_committed(self, ends: Offsets) -> None:
        until_s = time.monotonic() + _COMMITTED_S
        while lag_of(self._look(ends, "read_committed"), ends):
            if time.monotonic() > until_s:
                raise PipelineError(
                    "a change of its tables' columns cannot be ruled out yet",
                    detail=f"a transaction in {', '.join(sorted(ends))} is open",
                )
            time.sleep(_POLL_S)

    def _compare(self) -> None:
        for topic, schema in self._schemas.items():
            if self._reader.schema_of(topic) != schema:
                raise SchemaChanged(
                    f"the columns of {topic} have changed",
                    hint="--resume continues it",
                )
