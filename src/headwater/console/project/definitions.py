"""The state of captures, pipelines and their stores, read without Spark.

Each reading asks the broker for the ends of the topics that pipelines read and for what is new in
the topic of positions, over connections that stay open, and reads the files that pipelines'
processes write. Stores are asked in threads of their own: one that does not answer delays no
other, and its last state is shown.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

from headwater.capture import positions
from headwater.client.cluster import Cluster
from headwater.client.offsets import COMMITTED, LATEST, list_offsets
from headwater.client.reading.compacted import CommittedLatest
from headwater.config import Config
from headwater.errors import MissingExtra
from headwater.inspect.captures import CaptureState, capture_states
from headwater.inspect.pipelines import (
    PipelineState,
    StoreState,
    pipeline_state,
    read_store,
    reported_writes,
    require_extra,
    state_without_extra,
    write_state,
)
from headwater.pipelines.running import status
from headwater.settings import ClientSettings

_PATIENCE_S: Final = 10.0
_STORES_AT_ONCE: Final = 4
_STORE_WAIT_S: Final = 1.5  # then its last answer is shown
_STORE_AGE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ProjectState:
    """One reading."""

    at: float  # of time.time()
    captures: list[CaptureState]
    pipelines: list[PipelineState]
    missing: MissingExtra | None = None  # why of pipelines only the reported status is shown

    def capture(self, name: str) -> CaptureState | None:
        return next((capture for capture in self.captures if capture.name == name), None)

    def pipeline(self, name: str) -> PipelineState | None:
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)


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
        captures = capture_states(
            loaded.captures,
            {name: positions.decode(name, stored) for name in positions.captures_in(stored)},
        )
        state_dir = loaded.state_dir()
        statuses = {name: status.read(state_dir, name) for name in loaded.pipelines}
        try:
            if statuses:
                require_extra()
        except MissingExtra as missing:
            pipelines = [
                state_without_extra(settings, statuses[name], missing)
                for name, settings in loaded.pipelines.items()
            ]
            return ProjectState(time.time(), captures, pipelines, missing)
        writes = {name: reported_writes(reported) for name, reported in statuses.items()}
        ends = self._ends(
            {
                topic
                for of_pipeline in writes.values()
                for write in of_pipeline.values()
                for topic in write.get("topics", ())
            }
        )
        asked = self._stores.ask(
            {(name, write): about for name in writes for write, about in writes[name].items()}
        )
        pipelines = [
            pipeline_state(
                settings,
                statuses[name],
                stored,
                [
                    write_state(
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
        partition_counts = self._cluster.find_all_partitions(sorted(topics))
        led = [
            (topic, number)
            for topic, partitions in partition_counts.items()
            for number in range(partitions)
            if self._cluster.leader(topic, number) is not None
        ]
        for (topic, number), offset in list_offsets(self._cluster, led, LATEST, COMMITTED).items():
            found.setdefault(topic, {})[number] = offset
        return found


@dataclass(slots=True)
class _Asked:
    reported: dict[str, Any]
    answer: StoreState | None
    at_s: float
    under_way: Future[StoreState] | None = None


class _Stores:
    """The states of the stores, each read at most every few seconds."""

    def __init__(self, loaded: Config) -> None:
        self._loaded = loaded
        self._threads = ThreadPoolExecutor(_STORES_AT_ONCE, thread_name_prefix="store")
        self._asked: dict[tuple[str, str], _Asked] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def ask(
        self, writes: Mapping[tuple[str, str], dict[str, Any]]
    ) -> dict[tuple[str, str], StoreState]:
        now_s = time.monotonic()
        for name, reported in writes.items():
            store = self._asked.setdefault(name, _Asked(reported, None, 0.0))
            store.reported = reported
            if store.under_way is None and now_s - store.at_s >= _STORE_AGE_S:
                store.under_way = self._threads.submit(
                    read_store, self._loaded, name[0], dict(reported)
                )
        wait([store.under_way for store in self._asked.values() if store.under_way], _STORE_WAIT_S)
        for store in self._asked.values():
            if store.under_way is not None and store.under_way.done():
                store.answer, store.at_s = store.under_way.result(), time.monotonic()
                store.under_way = None
        silent = StoreState([], "it has not answered yet")
        return {name: self._asked[name].answer or silent for name in writes}
