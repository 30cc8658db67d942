"""/jobs: all jobs that pages have started; /jobs/ID/: one, with its progress and result."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.project.jobs import Job, Jobs, environment_of
from headwater.console.project.operators import is_operator, require_operator
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.rendering import both, seen, shown
from headwater.errors import RequestRefused

NAVIGATION_ENTRY: Final = NavigationEntry("Jobs", "/jobs")


async def start(
    request: Request, kind: str, title: str, arguments: Sequence[str], *, about: str
) -> Response:
    """Begins a job, and shows it. Raises RequestRefused."""
    console = request.app.state.console
    access = console.access(request)
    await require_operator(access)
    if access.user and console.config.client.token_file:
        raise RequestRefused(
            "no job can be run as you",
            detail="client.token_file would be stronger than your password",
            hint="run it by hand",
        )
    job = console.jobs.start(
        kind,
        title,
        arguments,
        about=about,
        user=access.user,
        environment=environment_of(access.login) if access.user else None,
    )
    return seen(f"/jobs/{job.id}/")


async def about(request: Request, address: str) -> list[Job]:
    """Those of one page, the newest first; none for a user who may not see them."""
    console = request.app.state.console
    jobs: Jobs = console.jobs
    found = jobs.about(address)
    return found if found and await is_operator(console.access(request)) else []


async def _jobs(request: Request) -> Response:
    console = request.app.state.console
    jobs: Jobs = console.jobs
    listed = jobs.all() if await is_operator(console.access(request)) else []
    return shown(
        request,
        "jobs.html",
        {"jobs": [{**job.as_json(), "result": None} for job in listed]},
        listed=listed,
    )


async def _job(request: Request) -> Response:
    await require_operator(request.app.state.console.access(request), to_look=True)
    return shown(request, "job.html", (job := _existing(request)).as_json(), this=job)


async def _cancel(request: Request) -> Response:
    jobs: Jobs = request.app.state.console.jobs
    job = _existing(request)
    await require_operator(request.app.state.console.access(request))
    await jobs.cancel(job)
    return seen(f"/jobs/{job.id}/")


def _existing(request: Request) -> Job:
    jobs: Jobs = request.app.state.console.jobs
    job = jobs.get(request.path_params["job"])
    if job is None:
        raise NoSuchThing(
            "there is no such job", hint="old ones are forgotten, all when the console restarts"
        )
    return job


ROUTES: Final = [
    *both("/jobs", _jobs),
    *both("/jobs/{job:number}/", _job),
    Route("/jobs/{job:number}/cancel", _cancel, methods=["POST"]),
]
