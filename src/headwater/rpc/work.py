"""Handlers: what a server runs for a request. A function, a coroutine function, or a command.

A handler gets the body of the request, or the Request if its only parameter is annotated so. What
it returns is the reply, what it raises is an error at the caller. A coroutine is cancelled when its
caller no longer waits; a command is ended; a function may look at `request.cancelled`.
"""

import asyncio
import inspect
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from headwater.errors import CallFailed
from headwater.rpc.messages import Request

Handler = Callable[[Request], Any]  # blocks
_LOOK_S: Final = 0.05
_ENDING_S: Final = 2.0
_MAX_ERROR_CHARACTERS: Final = 2000


def handler_of(function: Callable[..., Any]) -> Handler:
    """What a server calls in a thread of its own."""
    takes_request = _takes_request(function)

    def arguments(request: Request) -> Any:
        return request if takes_request else request.body

    if inspect.iscoroutinefunction(function):
        loop = _Loop()
        return lambda request: loop.run(function(arguments(request)), request)
    return lambda request: function(arguments(request))


def _takes_request(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and parameters[0].annotation in (Request, "Request", "hw.rpc.Request")


class _Loop:
    """One event loop for all coroutines of a handler."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rpc-loop", daemon=True).start()

    def run(self, coroutine: Any, request: Request) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
                if request.cancelled.is_set() or request.left_s < 0:
                    future.cancel()
                    raise CallFailed("the caller no longer waits") from None


def command_handler(command: Sequence[str]) -> Handler:
    """Runs the command with the body as JSON on its standard input; what it writes is the reply, as
    JSON, or as a text if it is none.
    """

    def run(request: Request) -> Any:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            body: bytes | None = orjson.dumps(request.body)
            while True:
                try:
                    written, complaints = process.communicate(body, timeout=_LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    body = None
                    if request.cancelled.is_set() or request.left_s < 0:
                        _end(process)
                        raise CallFailed("the caller no longer waits") from None
        if process.returncode:
            raise CallFailed(
                f"{command[0]} ended with exit code {process.returncode}",
                detail=complaints.decode(errors="replace")[-_MAX_ERROR_CHARACTERS:].strip(),
            )
        try:
            return orjson.loads(written)
        except orjson.JSONDecodeError:
            return written.decode(errors="replace").rstrip("\n")

    return run


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    until_s = time.monotonic() + _ENDING_S
    while process.poll() is None and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if process.poll() is None:
        process.kill()
