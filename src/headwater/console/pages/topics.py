"""/topics: all topics; /topics/NAME/: one, with its partitions and configuration."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from headwater.client.cluster import Cluster
from headwater.console.access import Access
from headwater.console.navigation import Place
from headwater.console.not_found import NoSuchThing
from headwater.console.paging import page_of
from headwater.console.rendering import both, shown
from headwater.console.topic_configs import read_configs
from headwater.console.topic_reading import Topic
from headwater.errors import RequestRefused
from headwater.settings import BrokerSettings, nearest

PLACE: Final = Place("Topics", "/topics")

_COLUMNS: Final = {
    "topic": lambda each: each.name,
    "partitions": lambda each: len(each.partitions),
    "records": lambda each: each.records,
    "size": lambda each: each.size_bytes,
    "rate": lambda each: each.records_per_s,
}


async def _topics(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    reading = await access.topics()
    with_internal = request.query_params.get("internal") == "1"
    topics = [each for each in reading.topics.values() if with_internal or not each.is_internal]
    page = page_of(
        request,
        topics,
        columns=_COLUMNS,
        default_sort="topic",
        text=lambda each: each.name,
        keep=["internal"],
    )
    data: dict[str, Any] = {
        "at": reading.at_s,
        "cluster_id": reading.cluster_id,
        "brokers": reading.brokers,
        **page.as_json(),
        "topics": [each.as_json() for each in page.rows],
    }
    return shown(request, "topics.html", data, listing=page)


async def _topic(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    configs = await access.shared.get(
        ("configs", topic.name), lambda: access.ask(lambda cluster: _configs(cluster, topic.name))
    )
    reading = await access.topics()
    data = {
        **topic.as_json(),
        "partitions": [each.as_json() for each in topic.partitions],
        "brokers": reading.brokers,
        "configs": configs,
    }
    # Where compaction makes holes, the difference of two offsets counts no records.
    is_compacted = any(
        each["name"] == "cleanup.policy" and "compact" in (each["value"] or "")
        for each in configs or ()
    )
    return shown(request, "topic.html", data, tab="overview", is_compacted=is_compacted)


def _configs(cluster: Cluster, topic: str) -> list[dict[str, Any]] | None:
    return read_configs(cluster, topic)


async def existing(access: Access, name: str) -> Topic:
    """The topic of that name; NoSuchThing."""
    topics = (await access.topics()).topics
    found = topics.get(name)
    if found is None and await access.ask(lambda cluster: _is_there(cluster, name)):
        access.shared.forget("topics")  # it is newer than what we know
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
        return False  # a name that cannot be, or one that this user is not to know


def command_for(request: Request, command: str) -> str:
    """The command with the broker's address, unless it is the one that commands find anyway."""
    bootstrap = request.app.state.console.config.bootstrap()
    return command if bootstrap == BrokerSettings().listen else f"{command} -b {bootstrap}"


ROUTES: Final = [*both("/topics", _topics), *both("/topics/{topic}/", _topic)]
