"""/topics: all topics; /topics/NAME/: one, with its partitions and configuration."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from headwater.client.cluster import Cluster
from headwater.console.history.plots import Plot
from headwater.console.project.overview import overview_of
from headwater.console.topics.clients import readers_of, writers_of
from headwater.console.topics.configs import read_configs
from headwater.console.topics.topic_list import Topic
from headwater.console.web.access import Access
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import both, shown
from headwater.errors import RequestRefused
from headwater.settings import BrokerSettings
from headwater.spelling import nearest

NAVIGATION_ENTRY: Final = NavigationEntry("Topics", "/topics")

_COLUMNS: Final = {
    "topic": lambda topic: topic.name,
    "partitions": lambda topic: len(topic.partitions),
    "records": lambda topic: topic.records,
    "size": lambda topic: topic.size_bytes,
    "rate": lambda topic: topic.records_per_s,
}


async def _topics(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    reading = await access.topics()
    with_internal = request.query_params.get("internal") == "1"
    topics = [topic for topic in reading.topics.values() if with_internal or not topic.is_internal]
    page = page_of(
        request,
        topics,
        columns=_COLUMNS,
        default_sort="topic",
        text=lambda topic: topic.name,
        keep=["internal"],
    )
    data: dict[str, Any] = {
        "at": reading.at_s,
        "cluster_id": reading.cluster_id,
        "brokers": reading.brokers,
        **page.as_json(),
        "topics": [row.as_json() for row in page.rows],
    }
    lines = await overview_of(request).small_lines(
        {topic.name: f"topic.rate/{topic.name}" for topic in page.rows}
    )
    return shown(request, "topics.html", data, listing=page, lines=lines)


async def _topic(request: Request) -> Response:
    overview = overview_of(request)
    access = overview.access
    topic = await existing(access, request.path_params["topic"])
    overview.histories.watch(f"topic/{topic.name}")
    configs = await access.shared.get(
        ("configs", topic.name), lambda: access.ask(lambda cluster: _configs(cluster, topic.name))
    )
    reading = await access.topics()
    data = {
        **topic.as_json(),
        "partitions": [partition.as_json() for partition in topic.partitions],
        "brokers": reading.brokers,
        "configs": configs,
        "writers": await writers_of(overview, topic),
        "readers": await readers_of(overview, topic),
        "plots": await overview.plots(
            request,
            Plot("Records per second", "/s", [("records/s", f"topic.rate/{topic.name}")]),
            Plot("Size on disk", "B", [("size", f"topic.size/{topic.name}")]),
            Plot(
                "Largest partition, in means of all partitions",
                "",
                [("largest ÷ mean", f"topic.skew/{topic.name}")],
            ),
        ),
    }
    # Where compaction makes holes, the difference of two offsets counts no records.
    is_compacted = any(
        config["name"] == "cleanup.policy" and "compact" in (config["value"] or "")
        for config in configs or ()
    )
    return shown(request, "topic.html", data, tab="overview", is_compacted=is_compacted)


def _configs(cluster: Cluster, topic: str) -> list[dict[str, Any]] | None:
    return read_configs(cluster, topic)


async def existing(access: Access, name: str) -> Topic:
    """The topic of that name; NoSuchThing."""
    topics = (await access.topics()).topics
    found = topics.get(name)
    if found is None and await access.ask(lambda cluster: _is_there(cluster, name)):
        access.shared.forget("topics")  # it is newer than the cached reading
        topics = (await access.topics()).topics
        found = topics.get(name)
    if found is None:
        meant = nearest(name, list(topics)) if len(topics) < 1000 else ""
        raise NoSuchThing(
            f"there is no topic {name}", hint=f"did you mean {meant}?" if meant else ""
        )
    return found


def _is_there(cluster: Cluster, name: str) -> bool:
    """Asks for this one only, which costs nothing, however many there are."""
    try:
        return cluster.find_partitions(name) is not None
    except RequestRefused:
        return False  # a name that cannot be, or one that this user may not see


def command_for(request: Request, command: str) -> str:
    """The command with the broker's address, unless it is the one that commands find anyway."""
    bootstrap = request.app.state.console.config.bootstrap()
    return command if bootstrap == BrokerSettings().listen else f"{command} -b {bootstrap}"


ROUTES: Final = [*both("/topics", _topics), *both("/topics/{topic}/", _topic)]
