"""Request and reply over topics: calls of functions that other processes serve.

    caller          sends requests, and hands each its reply       ──▶ rpc.NAME
    server          takes requests, runs the handler, replies      ◀──
    ├── assignments     partitions that a server has, and how far they are done
    ├── work            handlers: functions, coroutines, commands
    └── owned_rows      the rows of the partitions that a server owns, to answer questions about
    messages        what is in the records
    api             the functions that users call: serve, run, call, ask

Requests are in the topic `rpc.NAME`, whose partitions the servers of a consumer group share.
Replies are in one topic for all callers, of which each reads one partition.
"""

from typing import TYPE_CHECKING

from headwater.lazy_imports import lazy_names

if TYPE_CHECKING:
    from headwater.errors import CallFailed, CallTimedOut
    from headwater.rpc.api import answer, ask, call, call_async, run, serve
    from headwater.rpc.caller import Caller
    from headwater.rpc.messages import Request
    from headwater.rpc.server import Server

__all__ = [
    "CallFailed",
    "CallTimedOut",
    "Caller",
    "Request",
    "Server",
    "answer",
    "ask",
    "call",
    "call_async",
    "run",
    "serve",
]

_HOMES = {
    "CallFailed": "headwater.errors",
    "CallTimedOut": "headwater.errors",
    "Caller": "headwater.rpc.caller",
    "Request": "headwater.rpc.messages",
    "Server": "headwater.rpc.server",
    **dict.fromkeys(("answer", "ask", "call", "call_async", "run", "serve"), "headwater.rpc.api"),
}

__getattr__ = lazy_names(__name__, _HOMES)
