"""`headwater up -d`: the supervisor as a process of its own session, with its log in a file.

The process that was called forks. The child supervises; it reports what happens through a pipe
until the parent, which waits for readiness, has ended. What ends the supervisor is in its log, too:
it may fail after the parent has stopped waiting.
"""

import asyncio
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from headwater.cli.up_view import JsonView
from headwater.config import Config
from headwater.errors import HeadwaterError, NotReady
from headwater.supervisor import status_file
from headwater.supervisor.log_file import FILE_NAME, LogFile
from headwater.supervisor.plan import data_dir_of
from headwater.supervisor.supervisor import Supervisor
from headwater.terminal.output import note, print_json, say, styled

_LOG_LINE: Final = '{"event": "log"'
_READ_BYTES: Final = 64 << 10


def start(
    loaded: Config, secrets: Mapping[str, str], *, timeout_s: float, as_json: bool = False
) -> int:
    """Returns when everything is ready. Raises NotReady if a child fails by a mistake of its user,
    or after `timeout_s`; the supervisor goes on then. Raises what keeps that from starting.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _supervise(loaded, secrets, writable)
    os.close(writable)
    try:
        _wait_until_ready(_events(readable, time.monotonic() + timeout_s), timeout_s, as_json)
    except KeyboardInterrupt:
        note("it goes on; `headwater down` stops it")
        raise
    finally:
        os.close(readable)
    if as_json:
        print_json({"pid": pid, "ready": True, "log": str(data_dir_of(loaded) / FILE_NAME)})
    else:
        say(f"{styled('everything is ready', 'bold green')}, process {pid}")
        say("`headwater logs -f` follows its log, `headwater down` stops it")
    return 0


class _ReportedLog(LogFile):
    """A log whose events, but for the lines of children, go into a pipe, too."""

    def __init__(self, data_dir: Path, pipe: int) -> None:
        super().__init__(data_dir)
        os.set_blocking(pipe, False)
        self._pipe = pipe

    def write(self, text: str) -> None:
        super().write(text)
        if not text.startswith(_LOG_LINE):
            with suppress(OSError):  # no process waits any more
                os.write(self._pipe, text.encode() + b"\n")


def _supervise(loaded: Config, secrets: Mapping[str, str], pipe: int) -> NoReturn:
    """The child: ends when the supervisor does."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        data_dir = data_dir_of(loaded)
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = _ReportedLog(data_dir, pipe)
        except OSError as error:
            # Not by the supervisor's own check: there is no log yet to report it.
            failed = {"event": "error", "error": f"{data_dir} cannot be written: {error}"}
            os.write(pipe, json.dumps(failed).encode() + b"\n")
            os._exit(code)
        try:
            asyncio.run(_run(Supervisor(loaded, JsonView(log), secrets, log=log.path)))
            code = 0
        except HeadwaterError as error:
            parts = {"error": error.what, "detail": error.detail, "hint": error.hint}
            about = {"at": time.time(), "level": "error", "code": error.exit_code}
            log.write(json.dumps({"event": "error", **about, **parts}))
            code = error.exit_code
        finally:
            log.close()
    except BaseException:
        import traceback

        traceback.print_exc()  # into the log
    finally:
        os._exit(code)


async def _run(supervisor: Supervisor) -> None:
    await supervisor.run()


def _events(pipe: int, until_s: float) -> Iterator[dict[str, Any]]:
    """What the child reports, until it ends or the time is over; {} then."""
    rest = b""
    while select.select([pipe], [], [], max(0.0, until_s - time.monotonic()))[0]:
        data = os.read(pipe, _READ_BYTES)
        if not data:
            yield {"event": "error", "error": "the supervisor has ended",
                   "hint": "`headwater logs` shows why"}  # fmt: skip
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)
    yield {}


def _wait_until_ready(events: Iterator[dict[str, Any]], timeout_s: float, as_json: bool) -> None:
    states: dict[str, str] = {}
    for event in events:
        match event.get("event"):
            case "ready":
                return
            case "error":
                kind = NotReady if event.get("code") == NotReady.exit_code else HeadwaterError
                raise kind(
                    event["error"], detail=event.get("detail", ""), hint=event.get("hint", "")
                )
            case "note":
                note(event["message"])
            case "child":
                states[event["name"]] = event["state"]
                _check(event)
                if event["state"] == status_file.READY != event["before"] and not as_json:
                    at = f" at {event['address']}" if event["address"] else ""
                    say(f"{event['name']}: ready{at}")
                    sys.stdout.flush()
            case None:
                late = [
                    f"{name}: {state}"
                    for name, state in states.items()
                    if state != status_file.READY
                ]
                raise NotReady(
                    f"not everything is ready after {timeout_s:g} s",
                    detail="\n".join(late),
                    hint="it goes on: `headwater status --watch`, or `headwater down` to stop it",
                )


def _check(event: dict[str, Any]) -> None:
    if event["state"] == status_file.FAILED:
        raise NotReady(
            f"{event['name']} has failed",
            detail=event["reason"],
            hint="; ".join(
                filter(None, (event["hint"], "the others go on, `headwater down` stops them"))
            ),
        )
