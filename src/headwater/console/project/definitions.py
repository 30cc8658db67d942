"""What is known of the project without Spark: captures, pipelines, their stores.

Each reading asks the broker for the ends of the topics that pipelines read and for what is new in
the topic of positions, over connections that stay open, and reads the files that pipelines'
processes write. Stores are asked in threads of their own: one that does not answer holds up nobody,
and is told of as it was.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

from headwater.capture import positions
from headwater.client.cluster import Cluster
from headwater.client.compacted import CommittedLatest
from headwater.client.offsets import COMMITTED, LATEST, list_offsets
from headwater.config import Config
from headwater.inspect.captures import Known as KnownCapture
from headwater.inspect.captures import known_captures
from headwater.inspect.pipelines import (
    AskedStore,
    asked_store,
    known,
    known_write,
    writes_told,
)
from headwater.inspect.pipelines import Known as KnownPipeline
from headwater.pipelines.running import status
from headwater.pipelines.running.store_lookup import state_dir_of
from headwater.settings import ClientSettings

_PATIENCE_S: Final = 10.0
_STORES_AT_ONCE: Final = 4
_STORE_WAIT_S: Final = 1.5  # then what it said before is told
_STORE_AGE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ProjectState:
    """One reading."""

    at: float  # of time.time()
    captures: list[KnownCapture]
    pipelines: list[KnownPipeline]

    def capture(self, name: str) -> KnownCapture | None:
        return next((each for each in self.captures if each.name == name), None)

    def pipeline(self, name: str) -> KnownPipeline | None:
        return next((each for each in self.pipelines if each.name == name), None)


class Project:
    """Reads it, with one user's login. To be used by one thread at a time."""

    def __init__(self, loaded: Config, bootstrap: str, login: ClientSettings) -> None:
        self.loaded = loaded
        self._cluster = Cluster(bootstrap, login, patience_s=_PATIENCE_S)
        self._positions = CommittedLatest(bootstrap, login, positions.TOPIC, patience_s=_PATIENCE_S)
        self._stores = _Stores(loaded)

    def close(self) -> None:
        self._cluster.close()
        self._positions.close()
        self._stores.close()

    def read(self) -> ProjectState:
        """Raises BrokerUnreachable, RequestRefused."""
        loaded = self.loaded
        stored = self._positions.read()
        captures = known_captures(
            loaded.captures,
            {name: positions.decode(name, stored) for name in positions.captures_in(stored)},
        )
        state_dir = state_dir_of(loaded)
        told = {name: status.read(state_dir, name) for name in loaded.pipelines}
        writes = {name: writes_told(each) for name, each in told.items()}
        ends = self._ends(
            {
                topic
                for of_pipeline in writes.values()
                for each in of_pipeline.values()
                for topic in each.get("topics", ())
            }
        )
        asked = self._stores.ask(
            {(name, write): about for name in writes for write, about in writes[name].items()}
        )
        pipelines = [
            known(
                settings,
                told[name],
                stored,
                [
                    known_write(
                        name,
                        write,
                        about,
                        asked[name, write],
                        {t: ends[t] for t in about.get("topics", ()) if t in ends},
                        stored,
                    )
                    for write, about in writes[name].items()
                ],
            )
            for name, settings in loaded.pipelines.items()
        ]
        return ProjectState(time.time(), captures, pipelines)

    def _ends(self, topics: set[str]) -> dict[str, dict[int, int]]:
        """Where they end for readers of what is committed; of those that exist and have leaders."""
        found: dict[str, dict[int, int]] = {}
        known = self._cluster.find_all_partitions(sorted(topics))
        led = [
            (topic, number)
            for topic, partitions in known.items()
            for number in range(partitions)
            if self._cluster.leader(topic, number) is not None
        ]
        for (topic, number), offset in list_offsets(self._cluster, led, LATEST, COMMITTED).items():
            found.setdefault(topic, {})[number] = offset
        return found


@dataclass(slots=True)
class _Asked:
    told: dict[str, Any]
    answer: AskedStore | None
    at_s: float
    under_way: Future[AskedStore] | None = None


class _Stores:
    """What the stores say of themselves, each asked at most every few seconds."""

    def __init__(self, loaded: Config) -> None:
        self._loaded = loaded
        self._threads = ThreadPoolExecutor(_STORES_AT_ONCE, thread_name_prefix="store")
        self._asked: dict[tuple[str, str], _Asked] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def ask(
        self, writes: Mapping[tuple[str, str], dict[str, Any]]
    ) -> dict[tuple[str, str], AskedStore]:
        now_s = time.monotonic()
        for name, told in writes.items():
            each = self._asked.setdefault(name, _Asked(told, None, 0.0))
            each.told = told
            if each.under_way is None and now_s - each.at_s >= _STORE_AGE_S:
                each.under_way = self._threads.submit(
                    asked_store, self._loaded, name[0], dict(told)
                )
        wait([each.under_way for each in self._asked.values() if each.under_way], _STORE_WAIT_S)
        for each in self._asked.values():
            if each.under_way is not None and each.under_way.done():
                each.answer, each.at_s = each.under_way.result(), time.monotonic()
                each.under_way = None
        silent = AskedStore([], "it has not answered yet")
        return {name: self._asked[name].answer or silent for name in writes}
