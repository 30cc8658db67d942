"""/topics/NAME/settings: configs changed, partitions added, records trimmed, the topic deleted."""

import shlex
import time
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.pages.topics.overview import command_for, existing
from headwater.console.project.overview import Overview, overview_of
from headwater.console.topics.configs import read_configs
from headwater.console.topics.topic_list import Topic
from headwater.console.web.paging import whole
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import RequestRefused, UsageError
from headwater.inspect.kafka_cluster import Partition
from headwater.inspect.positions import Range, parse_position, resolve
from headwater.inspect.topic_changes import add_partitions, alter_configs, trim
from headwater.inspect.topic_configs import configs_of
from headwater.terminal.output import plural
from headwater.web.listener import require_listener

_MOST_PARTITIONS: Final = 10_000
_DELETING: Final = ("retention.", "cleanup.policy", "headwater.archive")


async def _settings(request: Request) -> Response:
    overview = overview_of(request)
    topic = await existing(overview.access, request.path_params["topic"])
    data = {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "records": topic.records,
        "configs": await _configs(overview, topic.name),
    }
    name = shlex.quote(topic.name)
    return shown(
        request,
        "topic_settings.html",
        data,
        tab="settings",
        address=address_of(topic.name),
        command=command_for(request, f"headwater topic alter {name} -c retention.ms=7d"),
    )


async def _config(request: Request) -> Response:
    """Sets one config, or takes it back to its default."""
    overview = overview_of(request)
    topic = await existing(overview.access, request.path_params["topic"])
    form = request.state.form
    name, text = str(form.get("name", "")), str(form.get("value", "")).strip()
    is_unset = bool(form.get("unset"))
    present = {config["name"]: config for config in await _configs(overview, topic.name) or ()}
    if present and name not in present:
        raise UsageError(f"a topic has no config {name}", hint="the page lists those that it has")
    if not is_unset and not text:
        raise UsageError(f"no value for {name}", hint="or set it back to its default")
    configs = {} if is_unset else configs_of([(name, text)])
    if not confirmed(request):
        before = present.get(name, {}).get("value", "unknown")
        after = "its default" if is_unset else configs[name]
        may_delete = name.startswith(_DELETING)
        question = Question(
            f"Change {name} of {topic.name}?",
            "Change it",
            f"From {before} to {after}."
            + (
                " What the new value does not retain is deleted within minutes, and cannot be"
                " restored."
                if may_delete
                else ""
            ),
            is_dangerous=may_delete,
            back=address_of(topic.name),
        )
        return ask(request, question)
    await _changed(overview, topic, alter_configs, configs, [name] if is_unset else [])
    return seen(address_of(topic.name))


async def _partitions(request: Request) -> Response:
    overview = overview_of(request)
    topic = await existing(overview.access, request.path_params["topic"])
    text = str(request.state.form.get("partitions", "")).strip()
    total, present = whole(text, 0), len(topic.partitions)
    if not present < total <= _MOST_PARTITIONS:
        raise UsageError(
            f"no number of partitions: {text or 'none was given'}",
            detail=f"the topic has {present}, and partitions cannot be removed",
            hint=f"a whole number from {present + 1} to {_MOST_PARTITIONS}",
        )
    if not confirmed(request):
        question = Question(
            f"Add {plural(total - present, 'partition')} to {topic.name}?",
            "Add them",
            f"It has {present}, and will have {total}. New records of a key may go to another"
            " partition than its former ones, so their order is not kept across this change."
            " Partitions cannot be removed.",
            is_dangerous=True,
            back=address_of(topic.name),
        )
        return ask(request, question)
    await _changed(overview, topic, add_partitions, total)
    return seen(f"/topics/{quote(topic.name, safe='')}/")


async def _trim(request: Request) -> Response:
    """Deletes the records in front of a position; what is confirmed are the offsets shown."""
    overview = overview_of(request)
    topic = await existing(overview.access, request.path_params["topic"])
    before = await overview.access.call(_trimmed, overview, topic, request.state.form)
    starts = {partition.number: partition.start_offset or 0 for partition in topic.partitions}
    lost = sum(max(0, offset - starts[one.number]) for one, offset in before.items())
    if not lost:
        raise RequestRefused(
            "there are no records in front of that position", hint="choose a later one"
        )
    if not confirmed(request, type_name=topic.name):
        question = Question(
            f"Delete the oldest records of {topic.name}?",
            "Delete them permanently",
            f"{plural(lost, 'record')} in {plural(len(before), 'partition')} will be deleted, up"
            f" to {_shown(before)}. This cannot be undone.",
            type_name=topic.name,
            is_dangerous=True,
            back=address_of(topic.name),
        )
        offsets = {"offsets": ",".join(f"{one.number}:{at}" for one, at in before.items())}
        return ask(request, question, offsets)
    await overview.access.call(trim, overview.kafka, before)
    overview.forget("topics")
    return seen(f"/topics/{quote(topic.name, safe='')}/")


def _trimmed(overview: Overview, topic: Topic, form: Any) -> dict[Partition, int]:
    """The new start of each partition. Raises UsageError."""
    offsets = str(form.get("offsets", ""))
    if offsets:
        pairs = [text.partition(":") for text in offsets.split(",")]
        return {
            Partition(topic.name, whole(number, 0)): int(offset)
            for number, _, offset in pairs
            if offset.isascii() and offset.isdigit() and len(offset) < 19
        }
    number, value = str(form.get("partition", "")).strip(), str(form.get("value", "")).strip()
    kind = str(form.get("to", ""))
    text = {"end": "end", "offset": value, "time": f"@{value}"}.get(kind, "")
    position = parse_position(text, time.time_ns() // 1_000_000)
    if position is None:
        raise UsageError(
            f"not a position: {value or 'nothing was given'}",
            hint="an offset, or a time: 2026-11-15T10:00, -1h",
        )
    partitions = [
        Partition(topic.name, partition.number)
        for partition in topic.partitions
        if not number or number == str(partition.number)
    ]
    if not partitions:
        raise UsageError(f"topic {topic.name} has no partition {number}")
    require_listener(overview.access.bootstrap)
    spans = resolve(Range(position), overview.kafka, partitions)
    return {one: min(max(span.first, span.low), span.high) for one, span in spans.items()}


def _shown(before: dict[Partition, int]) -> str:
    some = [f"offset {offset:,} of partition {one.number}" for one, offset in before.items()]
    return ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")


async def _configs(overview: Overview, topic: str) -> list[dict[str, Any]] | None:
    return await overview.access.shared.get(
        ("configs", topic),
        lambda: overview.access.ask(lambda cluster: read_configs(cluster, topic)),
    )


async def _changed(overview: Overview, topic: Topic, change: Any, *arguments: Any) -> None:
    def do() -> None:
        require_listener(overview.access.bootstrap)
        change(overview.kafka, topic.name, *arguments)

    await overview.access.call(do)
    overview.forget("topics", ("configs", topic.name))


def address_of(topic: str) -> str:
    return f"/topics/{quote(topic, safe='')}/settings"


ROUTES: Final = [
    *both("/topics/{topic}/settings", _settings),
    Route("/topics/{topic}/config", _config, methods=["POST"]),
    Route("/topics/{topic}/partitions", _partitions, methods=["POST"]),
    Route("/topics/{topic}/trim", _trim, methods=["POST"]),
]
