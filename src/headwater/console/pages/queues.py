"""/queues: share groups with their backlog; /queues/NAME/: one, and its topics' dead letters, which
can be moved back to where they came from.
"""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.history.plots import Plot
from headwater.console.pages import jobs
from headwater.console.project.overview import no_such, overview_of
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import Question, ask, both, confirmed, shown
from headwater.errors import UsageError
from headwater.inspect.share_groups import ShareGroup

NAVIGATION_ENTRY: Final = NavigationEntry("Queues", "/queues")

_COLUMNS: Final = {
    "queue": lambda queue: queue["queue"],
    "state": lambda queue: queue["state"],
    "members": lambda queue: queue["members"],
    "backlog": lambda queue: queue["backlog"],
    "in_flight": lambda queue: queue["in_flight"],
    "dead_letters": lambda queue: queue["dead_letters"],
}


async def _queues(request: Request) -> Response:
    groups, letters = await overview_of(request).queues()
    rows = [_row(group, letters) for group in groups]
    page = page_of(
        request,
        rows,
        columns=_COLUMNS,
        default_sort="-backlog",
        text=lambda queue: f"{queue['queue']} {' '.join(queue['topics'])}",
    )
    lines = await overview_of(request).small_lines(
        {row["queue"]: f"queue.backlog/{row['queue']}" for row in page.rows}
    )
    data = {**page.as_json(), "queues": page.rows}
    return shown(request, "queues.html", data, listing=page, lines=lines)


async def _queue(request: Request) -> Response:
    groups, letters = await overview_of(request).queues()
    group = _existing(groups, request.path_params["queue"])
    data = {
        **_row(group, letters),
        "members": group.members,
        "partitions": [
            {
                "topic": progress.partition.topic,
                "partition": progress.partition.number,
                "start_offset": progress.start,
                "backlog": progress.backlog,
                "in_flight": progress.in_flight,
                "oldest_lock_s": progress.oldest_lock_s,
            }
            for progress in group.progress
        ],
        "dead_letters_by_topic": {
            topic: letters[topic] for topic in group.topics if topic in letters
        },
        "plots": await overview_of(request).plots(
            request,
            Plot("Backlog in records", "", [("backlog", f"queue.backlog/{group.name}")]),
            Plot("Records in flight", "", [("in flight", f"queue.in_flight/{group.name}")]),
        ),
    }
    recent = await jobs.about(request, address_of(group.name))
    return shown(request, "queue.html", data, address=address_of(group.name), recent=recent[:5])


async def _redrive(request: Request) -> Response:
    """First it is counted by what they died of, then, confirmed, they are moved."""
    groups, _ = await overview_of(request).queues()
    group = _existing(groups, request.path_params["queue"])
    form = request.state.form
    topic, cause = str(form.get("topic", "")), str(form.get("cause", "")).strip()
    if topic not in group.topics:
        raise UsageError(f"queue {group.name} does not read a topic {topic}")
    about = address_of(group.name)
    # What begins with "-" must not be taken for an option.
    arguments = ["queue", "redrive", f"--group={group.name}"]
    arguments += [f"--cause={cause}"] if cause else []
    if form.get("dry_run"):
        title = f"Count the dead letters of {topic}"
        return await jobs.start(
            request, "count", title, [*arguments, "--dry-run", "--", topic], about=about
        )
    if not confirmed(request):
        which = f" whose cause has “{cause}”" if cause else ""
        return ask(
            request,
            Question(
                f"Move dead letters back to {topic}?",
                "Move them",
                f"All letters of queue {group.name}{which} go back to {topic}, exactly once, and"
                " are delivered again.",
                back=about,
            ),
        )
    title = f"Redrive the dead letters of {topic}"
    return await jobs.start(request, "redrive", title, [*arguments, "--", topic], about=about)


def _existing(groups: list[ShareGroup], name: str) -> ShareGroup:
    found = next((group for group in groups if group.name == name), None)
    if found is None:
        raise no_such("queue", name, [group.name for group in groups[:1000]])
    return found


def _row(group: ShareGroup, letters: dict[str, int]) -> dict[str, Any]:
    return {
        "queue": group.name,
        "state": group.state,
        "members": len(group.members),
        "topics": group.topics,
        "backlog": group.total("backlog"),
        "in_flight": group.total("in_flight"),
        "dead_letters": sum(letters.get(topic, 0) for topic in group.topics),
    }


def address_of(name: str) -> str:
    return f"/queues/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/queues", _queues),
    Route("/queues/{queue:path}/redrive", _redrive, methods=["POST"]),
    *both("/queues/{queue:path}/", _queue),
]
