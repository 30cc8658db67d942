"""The functions that users call: `hw.rpc.serve`, `answer`, `run`, `call`, `call_async`, `ask`.

Without a `bootstrap` the broker is that of headwater.toml. A process has one caller for each
broker, made with its first call.
"""

import asyncio
import atexit
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headwater import config
from headwater.errors import UsageError
from headwater.rpc.caller import DEFAULT_TIMEOUT_S, Caller, answers_of, timed_out
from headwater.rpc.owned_rows import OwnedRows
from headwater.rpc.server import DEFAULT_CONCURRENCY, DEFAULT_PARTITIONS, Server
from headwater.rpc.work import Handler, handler_of
from headwater.settings import ClientSettings

_F = TypeVar("_F", bound=Callable[..., Any])
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Service:
    name: str
    function: Callable[..., Any]
    concurrency: int
    partitions: int
    rows_of: str | None


_services: dict[str, _Service] = {}
_callers: dict[tuple[str, ClientSettings], Caller] = {}
_lock = threading.Lock()


def serve(
    name: str, *, concurrency: int = DEFAULT_CONCURRENCY, partitions: int = DEFAULT_PARTITIONS
) -> Callable[[_F], _F]:
    """Decorates the function that serves `name` when `run` is called. `concurrency` requests run at
    the same time in a server; `partitions` is how many servers there can be (of a topic that does
    not exist yet).
    """
    return lambda function: _registered(
        _Service(name, function, concurrency, partitions, None), function
    )


def answer(
    name: str, *, rows_of: str, concurrency: int = DEFAULT_CONCURRENCY
) -> Callable[[_F], _F]:
    """Decorates the function that answers `ask(name, …)`: it is called for each partition of the
    topic `rows_of`, with its rows (the latest document of each key) and the question.
    """
    return lambda function: _registered(_Service(name, function, concurrency, 0, rows_of), function)


def _registered(service: _Service, function: _F) -> _F:
    with _lock:
        if service.name in _services:
            raise UsageError(f"{service.name} is served twice in this process")
        _services[service.name] = service
    return function


def run(
    *, bootstrap: str | None = None, loaded: config.Config | None = None,
    ready: Callable[[list[Server]], None] | None = None,
) -> None:  # fmt: skip
    """Serves all that was decorated, until SIGINT or SIGTERM. Called by the main thread."""
    found = loaded or config.load({"broker.bootstrap": bootstrap})
    with _lock:
        services = list(_services.values())
    if not services:
        raise UsageError("nothing is served", hint='@hw.rpc.serve("name") decorates a function')
    run_servers([_server(found, service) for service in services], ready)


def run_servers(servers: list[Server], ready: Callable[[list[Server]], None] | None = None) -> None:
    """Until SIGINT or SIGTERM."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        for server in servers:
            server.start()
        is_said = False
        while not stopping.wait(_LOOK_S):
            if ready is not None and not is_said and all(one.is_ready.is_set() for one in servers):
                is_said = True
                ready(servers)
    finally:
        for server in servers:
            server.close()


def _server(found: config.Config, service: _Service) -> Server:
    bootstrap, login = found.bootstrap(), found.client
    if service.rows_of is None:
        return Server(
            bootstrap, login, service.name, handler_of(service.function),
            concurrency=service.concurrency, partitions=service.partitions,
        )  # fmt: skip
    rows = OwnedRows(bootstrap, login, service.rows_of)
    return Server(
        bootstrap, login, service.name, rows.handler(service.function),
        concurrency=service.concurrency, rows=rows,
    )  # fmt: skip


def new_server(
    found: config.Config, name: str, handler: Handler, *, concurrency: int = DEFAULT_CONCURRENCY
) -> Server:
    """One that is not decorated: for the command line."""
    return Server(found.bootstrap(), found.client, name, handler, concurrency=concurrency)


def caller(bootstrap: str | None = None, loaded: config.Config | None = None) -> Caller:
    """The caller of this process for the broker."""
    found = loaded or config.load({"broker.bootstrap": bootstrap})
    key = (found.bootstrap(), found.client)
    with _lock:
        if key not in _callers:
            if not _callers:
                atexit.register(_close_callers)
            _callers[key] = Caller(*key)
        return _callers[key]


def _close_callers() -> None:
    with _lock:
        callers = list(_callers.values())
        _callers.clear()
    for one in callers:
        one.close()


def call(
    name: str,
    body: Any = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    request_id: str | None = None,
    bootstrap: str | None = None,
) -> Any:
    """The reply of a server of `name`. Raises CallTimedOut, CallFailed with the handler's error. A
    `request_id` makes the call one that may be repeated: handlers see it, and a server that has
    replied to it replies the same.
    """
    return caller(bootstrap).call(name, body, timeout_s=timeout_s, request_id=request_id)


async def call_async(
    name: str,
    body: Any = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    request_id: str | None = None,
    bootstrap: str | None = None,
) -> Any:
    """As `call`. A task that is cancelled cancels the request."""
    found = await asyncio.to_thread(caller, bootstrap)
    return await awaited(found, name, body, timeout_s=timeout_s, request_id=request_id)


async def awaited(
    found: Caller, name: str, body: Any, *, timeout_s: float, request_id: str | None = None
) -> Any:
    """As `call_async`, of a caller."""
    await asyncio.to_thread(found.partitions, name)  # may ask the broker
    call = found.submit(name, body, timeout_s=timeout_s, request_id=request_id)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(call.future), timeout_s)
    except TimeoutError:
        raise timed_out(name, timeout_s) from None
    finally:
        found.cancel(call)


async def asked(found: Caller, name: str, question: Any, *, timeout_s: float) -> list[Any]:
    """As `ask`, of a caller. A task that is cancelled cancels the question."""
    await asyncio.to_thread(found.partitions, name)  # may ask the broker
    calls = found.submit_to_all(name, question, timeout_s=timeout_s)
    try:
        waiting = [asyncio.wrap_future(call.future) for call in calls]
        done, _ = await asyncio.wait(
            waiting, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
        )
        for one in done:
            one.exception()  # of several, one is raised below
        return answers_of(calls, timeout_s)
    finally:
        for call in calls:
            found.cancel(call)


def ask(
    name: str,
    question: Any = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    merge: Callable[[list[Any]], Any] | None = None,
    bootstrap: str | None = None,
) -> Any:
    """The answers of all partitions (see `answer`), or what `merge` makes of their list. Raises
    CallTimedOut that names the partitions without an answer.
    """
    return caller(bootstrap).ask(name, question, timeout_s=timeout_s, merge=merge)
