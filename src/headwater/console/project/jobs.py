"""Jobs: commands that pages start as child processes, each with its progress and result.

A job outlives the page that started it and the browser's reload; it ends with the console. The
number of jobs that run and wait is bounded, and so are the part of its stderr and of its result
that a job holds.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import orjson

from headwater.config import Config
from headwater.errors import RequestRefused
from headwater.settings import ClientSettings, Secret
from headwater.supervisor import parent_death

_RUNNING: Final = 2  # at once; each may be a Spark
_WAITING: Final = 8
_RETAINED: Final = 30  # ended jobs; older ones are dropped
_RESULT_BYTES: Final = 8 << 20
_STDERR_BYTES: Final = 64 << 10
_READ_BYTES: Final = 64 << 10
_STOP_S: Final = 8.0  # then it is killed
_SHARE: Final = re.compile(r"\((\d{1,3})%\)$")
_REPORT_PROGRESS: Final = {"HEADWATER_PROGRESS": "1"}  # also with --json (terminal/progress.py)
_COMMAND: Final = (sys.executable, "-m", "headwater.cli.main")

WAITING, RUNNING, DONE, DIFFERS, FAILED, CANCELLED = (
    "waiting",
    "running",
    "done",
    "not equal",
    "failed",
    "cancelled",
)
_ENDED: Final = (DONE, DIFFERS, FAILED, CANCELLED)


def options_of(config: Config) -> tuple[str, ...]:
    """By which a command reads the same configuration, and talks to the same broker."""
    file = ("--config", str(config.path.resolve())) if config.path else ()
    return (*file, "--bootstrap", config.bootstrap())


def environment_of(login: ClientSettings) -> dict[str, str]:
    """By which a command logs in as this user does."""
    found = {}
    for field_ in fields(login):
        value = getattr(login, field_.name)
        if value is not None:
            text = value.reveal() if isinstance(value, Secret) else value
            found[f"HEADWATER_CLIENT__{field_.name.upper()}"] = (
                str(text).lower() if isinstance(text, bool) else str(text)
            )
    return found


@dataclass(slots=True)
class Job:
    """One command. `about` is the page's path that it belongs to; `result` the JSON that it wrote
    (None: none yet, or larger than the limit).
    """

    id: int
    kind: str  # verify, why, rebuild, promote, redrive, snapshot
    about: str
    title: str
    arguments: tuple[str, ...]
    user: str
    began_at: float
    state: str = WAITING
    ended_at: float | None = None
    stderr_tail: str = ""  # bounded
    result: Any = None
    error: dict[str, str] = field(default_factory=dict)  # error, detail, hint
    pid: int | None = None  # while it runs
    task: "asyncio.Task[None] | None" = None

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def progress(self) -> str:
        """The last line of its stderr."""
        lines = self.stderr_tail.strip().splitlines()
        return lines[-1] if lines else ""

    @property
    def share(self) -> float | None:
        """From 0 to 1, if the last line ends with a share, as terminal/progress.py writes it."""
        found = _SHARE.search(self.progress)
        return min(int(found[1]), 100) / 100 if found else None

    @property
    def took_s(self) -> float:
        return (self.ended_at or time.time()) - self.began_at

    @property
    def command(self) -> str:
        """As a person would type it."""
        import shlex

        return shlex.join(
            ("headwater", *(argument for argument in self.arguments if argument != "--"))
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "job": self.id,
            "kind": self.kind,
            "title": self.title,
            "command": self.command,
            "state": self.state,
            "began_at": self.began_at,
            "seconds": self.took_s,
            "progress": self.progress,
            "share_done": self.share,
            "result": self.result,
            "error": self.error or None,
        }


class Jobs:
    """Used on the event loop only."""

    def __init__(
        self, options: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """`options` are given to every command: which configuration it reads."""
        self._options = tuple(options)
        self._environment = dict(environment or {})
        self._jobs: dict[int, Job] = {}
        self._next_id = 1
        self._turn = asyncio.Semaphore(_RUNNING)

    def start(
        self,
        kind: str,
        title: str,
        arguments: Sequence[str],
        *,
        about: str,
        user: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Job:
        """Raises RequestRefused if too many wait, or the same one is under way already."""
        open_jobs = [job for job in self._jobs.values() if not job.has_ended]
        for open_job in open_jobs:
            if open_job.arguments == tuple(arguments):
                raise RequestRefused(
                    f"{title} is under way already", hint="wait for it, or cancel it"
                )
        if len(open_jobs) >= _RUNNING + _WAITING:
            raise RequestRefused(
                "too many jobs wait already", hint="wait until one has ended, or cancel one"
            )
        job = Job(self._next_id, kind, about, title, tuple(arguments), user, time.time())
        self._next_id += 1
        self._jobs[job.id] = job
        self._forget_old()
        job.task = asyncio.create_task(self._run(job, environment or {}))
        return job

    def get(self, job_id: int) -> Job | None:
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """The newest first."""
        return sorted(self._jobs.values(), key=lambda job: -job.id)

    def about(self, about: str, *kinds: str) -> list[Job]:
        """Those of one page, the newest first."""
        return [
            job for job in self.all() if job.about == about and (not kinds or job.kind in kinds)
        ]

    async def cancel(self, job: Job) -> None:
        """Stops it by SIGTERM, then kills it."""
        if job.has_ended or job.task is None:
            return
        job.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(job.task)

    async def close(self) -> None:
        await asyncio.gather(*(self.cancel(job) for job in self.all()))

    def kill(self) -> None:
        """At once, and without an event loop: the jobs that a stopping console has not stopped."""
        for job in self._jobs.values():
            if job.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if job.has_ended]
        for job in ended[: max(0, len(ended) - _RETAINED)]:
            del self._jobs[job.id]

    async def _run(self, job: Job, environment: Mapping[str, str]) -> None:
        try:
            async with self._turn:
                job.state = RUNNING
                await self._child(
                    job, {**os.environ, **self._environment, **environment, **_REPORT_PROGRESS}
                )
        except asyncio.CancelledError:
            job.state = CANCELLED
        except (OSError, ValueError) as error:  # ValueError: an argument with a zero byte
            job.state, job.error = FAILED, {"error": f"the command cannot be started: {error}"}
        finally:
            job.ended_at = time.time()

    async def _child(self, job: Job, environment: Mapping[str, str]) -> None:
        end = job.arguments.index("--") if "--" in job.arguments else len(job.arguments)
        process = await asyncio.create_subprocess_exec(
            # Asked to end also by a console that is killed.
            *(sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())),
            *_COMMAND,
            *job.arguments[:end],
            *self._options,
            "--json",
            *job.arguments[end:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the console is ours to pass on
        )
        job.pid = process.pid
        try:
            written, _ = await asyncio.gather(_result_of(process), _listen(process, job))
            code = await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise
        finally:
            job.pid = None
        if written is not None:
            with contextlib.suppress(orjson.JSONDecodeError):
                job.result = orjson.loads(written)
        if code in (0, 3) and job.result is not None:
            job.state = DONE if code == 0 else DIFFERS
            return
        job.state = FAILED
        if written is None:
            job.error = {"error": f"its result has more than {_RESULT_BYTES >> 20} MiB"}
        else:
            job.error = _error_of(job.stderr_tail) or {
                "error": f"it ended with code {code}",
                "detail": job.stderr_tail[-2000:],
            }


async def _result_of(process: asyncio.subprocess.Process) -> bytes | None:
    """All of stdout; None if it exceeds the limit."""
    assert process.stdout is not None
    result = bytearray()
    while piece := await process.stdout.read(_READ_BYTES):
        if len(result) <= _RESULT_BYTES:
            result += piece
    return bytes(result) if len(result) <= _RESULT_BYTES else None


async def _listen(process: asyncio.subprocess.Process, job: Job) -> None:
    assert process.stderr is not None
    said = bytearray()
    while piece := await process.stderr.read(_READ_BYTES):
        said += piece
        del said[:-_STDERR_BYTES]
        job.stderr_tail = said.decode("utf-8", "replace")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """The whole of its process group: Spark's JVM and Python's workers belong to it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # processes that are left in it


def _error_of(said: str) -> dict[str, str] | None:
    """The last line of a command that failed with --json."""
    for line in reversed(said.strip().splitlines()):
        try:
            parts = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(parts, dict) and "error" in parts:
            return {str(name): str(text) for name, text in parts.items()}
    return None
