"""The readings behind the pages, for one user: cached, shared by requests, sampled over time."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

from headwater.client import login
from headwater.client.groups import SHARE
from headwater.config import Config
from headwater.console.flow.flow import TopicFlow, graph_of
from headwater.console.flow.graph import Graph
from headwater.console.history.broker_requests import BrokerMeter, address_of
from headwater.console.history.plots import Plot, plots_of, small_lines
from headwater.console.history.process_usage import Meter
from headwater.console.history.ranges import FINE_S
from headwater.console.history.samples import figures
from headwater.console.history.store import Histories, History
from headwater.console.project.definitions import Project, ProjectState
from headwater.console.project.group_lags import GroupLag, read_groups
from headwater.console.project.processes import read_processes
from headwater.console.project.write_history import WriteHistory
from headwater.console.topics.topic_list import Reading
from headwater.console.web.access import Access
from headwater.console.web.not_found import NoSuchThing
from headwater.errors import HeadwaterError
from headwater.inspect.groups import committed, described, group_as_json, name_of
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.inspect.share_groups import ShareGroup, dead_letters, share_groups
from headwater.spelling import nearest
from headwater.web.listener import require_listener

log = logging.getLogger(__name__)

_FLOW_AGE_S: Final = 1.0
_PROJECT_AGE_S: Final = 2.0
_GROUPS_AGE_S: Final = 5.0
_QUEUES_AGE_S: Final = 3.0
_SAMPLE_S: Final = 5.0  # while pages are shown
_LOOKS_S: Final = 60.0  # for how long a page counts as shown after its last request
_FORGOTTEN_S: Final = 3600.0  # after which a signed-in user's readings stop
_MOST_TOPICS: Final = 200  # that nothing reads or writes, in the picture


class Overview:
    """Used on the event loop; made by `Access.part`, and closed with it."""

    def __init__(
        self, access: Access, config: Config, histories: Histories, *, is_recording: bool
    ) -> None:
        """What one that records has read goes into the history."""
        self.access = access
        self.config = config
        self.histories = histories
        self._is_recording = is_recording
        self._meter = Meter()
        self._requests = BrokerMeter()
        self.writes = WriteHistory()
        self.kafka = KafkaCluster(access.bootstrap, login.properties_of(access.login))
        self._project = Project(config, access.bootstrap, access.login)
        self._cluster_id: str | None = None
        self._asked_s = -math.inf  # when a page was last requested
        self._sampler: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._project.close()
        if self._sampler is not None:
            with contextlib.suppress(RuntimeError):  # a loop that has ended has ended it, too
                self._sampler.get_loop().call_soon_threadsafe(self._sampler.cancel)

    # Readings

    async def project(self) -> ProjectState:
        """Raises BrokerUnreachable, RequestRefused."""
        self._look()
        return await self._read_project()

    async def groups(self) -> list[GroupLag]:
        self._look()
        return await self._read_groups()

    async def group(self, name: str) -> dict[str, Any]:
        """One group as `headwater group describe --json` prints it. Raises NoSuchThing."""
        self._look()
        self.histories.watch(f"group/{name}")
        return await self.access.read(("group", name), self._describe, name)

    async def queues(self) -> tuple[list[ShareGroup], dict[str, int]]:
        """The share groups, and the dead letters that wait, by topic."""
        self._look()
        return await self._read_all_queues()

    async def _read_all_queues(self) -> tuple[list[ShareGroup], dict[str, int]]:
        return await self.access.read("queues", self._read_queues, max_age_s=_QUEUES_AGE_S)

    async def flow(self) -> Graph:
        self._look()
        return await self.access.shared.get("flow", self._read_flow, _FLOW_AGE_S)

    async def _read_flow(self) -> Graph:
        topics, project = await self.access.topics(), await self._read_project()
        try:
            groups = await self._read_groups()
        except HeadwaterError:
            groups = []  # one may see the flow without the right to see groups
        if any(group.kind == SHARE for group in groups):
            groups = await self.with_backlogs(groups)
        # In a thread: thousands of groups take a while.
        return await self.access.call(
            graph_of,
            project.captures,
            project.pipelines,
            _topic_flows(topics, project, groups),
            groups,
            self.writes.lags_s(),
            self.writes.read_per_s(),
            {name for name in (*self.config.sinks, "topic") if self.is_topic(name)},
        )

    def is_topic(self, sink: str) -> bool:
        """Whether its tables are topics."""
        settings = self.config.sinks.get(sink)
        return sink == "topic" if settings is None else settings.kind == "topic"

    async def with_backlogs(self, groups: list[GroupLag]) -> list[GroupLag]:
        """With the topics and the backlog of share groups, which are read from their queues."""
        try:
            queues, _ = await self._read_all_queues()
        except HeadwaterError:
            return groups
        by_name = {
            queue.name: GroupLag(
                queue.name, queue.state, SHARE, tuple(queue.topics), queue.total("backlog")
            )
            for queue in queues
        }
        return [by_name.get(group.name, group) for group in groups]

    def forget(self, *names: Any) -> None:
        """After a change: the next request reads the new state."""
        for name in names:
            self.access.shared.forget(name)

    async def _read_project(self) -> ProjectState:
        def read() -> ProjectState:
            require_listener(self.access.bootstrap)
            return self._project.read()

        state = await self.access.read("project", read, max_age_s=_PROJECT_AGE_S)
        self.writes.add(state.pipelines, state.at)
        return state

    async def _read_groups(self) -> list[GroupLag]:
        return await self.access.shared.get(
            "groups", lambda: self.access.ask(read_groups), _GROUPS_AGE_S
        )

    def _describe(self, name: str) -> dict[str, Any]:
        require_listener(self.access.bootstrap)
        group = described(self.kafka, [name])[name]
        commits = committed(self.kafka, [name])[name]
        if not commits and not group.members and name_of(group.state) in ("dead", "unknown"):
            raise NoSuchThing(f"there is no group {name}", hint="/groups shows those that exist")
        return group_as_json(self.kafka, name, group, commits)

    def _read_queues(self) -> tuple[list[ShareGroup], dict[str, int]]:
        require_listener(self.access.bootstrap)
        groups = share_groups(self.kafka)
        letters: dict[str, int] = {}
        topics = {topic for group in groups for topic in group.topics}
        waiting = dead_letters(self.kafka, topics) if topics else {}  # it asks for all topics
        for partition, number in waiting.items():
            letters[partition.topic] = letters.get(partition.topic, 0) + number
        return groups, letters

    # Samples

    def start(self) -> None:
        """Begins to sample, once; on the event loop."""
        if self._sampler is None or self._sampler.done():
            self._sampler = asyncio.get_running_loop().create_task(self._sample())

    def _look(self) -> None:
        self._asked_s = time.monotonic()
        self.start()

    async def _sample(self) -> None:
        """Samples also while no page is shown, less often: charts and rates need earlier values."""
        while True:
            try:
                await self._sample_once()
            except Exception as error:  # the next sample may succeed
                log.warning("no sample was taken: %s", error, exc_info=error)
            idle_s = time.monotonic() - self._asked_s
            if idle_s > _FORGOTTEN_S and self.access.user:
                return
            until_moment_s = FINE_S - time.time() % FINE_S
            await asyncio.sleep(
                min(_SAMPLE_S, until_moment_s) if idle_s < _LOOKS_S else until_moment_s
            )

    async def _sample_once(self) -> None:
        project: ProjectState | None = None
        groups: list[GroupLag] = []
        queues: list[ShareGroup] = []
        try:
            topics = await self.access.topics()
        except HeadwaterError:
            return
        with contextlib.suppress(HeadwaterError):
            project = await self._read_project()
        with contextlib.suppress(HeadwaterError):
            groups = await self._read_groups()
        if not self._is_recording:
            return
        if any(group.kind == SHARE for group in groups):
            with contextlib.suppress(HeadwaterError):
                queues, _ = await self._read_all_queues()
        now_s = time.time()

        def record() -> None:
            children = read_processes(self.config)
            broker = self.config.broker
            found = figures(
                topics,
                project,
                groups,
                queues,
                self._meter.read(children),
                self._requests.read(address_of(children, broker.metrics_listen)),
                self.histories.watched,
            )
            self.histories.of(topics.cluster_id).add(found, now_s)

        await self.access.call(record)

    # The history

    async def plots(self, request: Request, *wanted: Plot) -> list[dict[str, Any]]:
        """In the range that the request chooses; those without a value are left out."""
        history = await self._history()
        return await plots_of(request, self.access, history, wanted) if history else []

    async def small_lines(self, names: Mapping[str, str]) -> dict[str, list[float | None]]:
        """The last hour of series, by the keys of `names`, for a list."""
        history = await self._history()
        if history is None:
            return {key: [] for key in names}
        return await small_lines(self.access, history, names)

    async def _history(self) -> History | None:
        """Also while the broker does not answer, if it has before: its id names the history."""
        self._look()
        try:
            self._cluster_id = (await self.access.topics()).cluster_id
        except HeadwaterError:
            if self._cluster_id is None:
                return None
        return await self.access.call(self.histories.of, self._cluster_id)


def _topic_flows(
    topics: Reading, project: ProjectState, groups: list[GroupLag]
) -> dict[str, TopicFlow]:
    """Those that something here reads or writes, and so many of the others, the busiest first."""
    shown = [topic for topic in topics.topics.values() if not topic.is_internal]
    joined = {name for group in groups for name in group.topics}
    joined |= {
        name
        for pipeline in project.pipelines
        for write in pipeline.writes
        for name in (*write.reported.get("topics", ()), write.reported["table"])
    }
    captured = tuple(f"{capture.name}." for capture in project.captures)
    others = [
        topic
        for topic in shown
        if topic.name not in joined and not (captured and topic.name.startswith(captured))
    ]
    others.sort(key=lambda topic: (-(topic.records_per_s or 0), topic.name))
    left_out = {other.name for other in others[_MOST_TOPICS:]}
    return {
        topic.name: TopicFlow(topic.records, topic.records_per_s)
        for topic in shown
        if topic.name not in left_out
    }


def overview_of(request: Request) -> Overview:
    """Of the user who sent the request."""
    console = request.app.state.console
    access: Access = console.access(request)
    found: Overview = console.overview(access)
    return found


def no_such(kind: str, name: str, existing: list[str]) -> NoSuchThing:
    meant = nearest(name, existing)
    return NoSuchThing(
        f"there is no {kind} {name}",
        hint=f"did you mean {meant}?" if meant else f"/{kind}s shows those that exist",
    )
