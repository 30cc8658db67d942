"""Which Kafka APIs the broker serves, and the function behind each.

A module of this folder serves one API. It registers its handler with `serves`, and its docstring
is the contract: versions, behaviour, deviations from Kafka. docs/apis.md is generated from it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headwater.broker.security.audited_changes import audited
from headwater.broker.security.authorizer import ANONYMOUS, Principal
from headwater.protocol.schema import Message

if TYPE_CHECKING:
    import asyncio

    from headwater.broker.admission.batch_checks import BatchCheck
    from headwater.broker.broker import Broker
    from headwater.broker.security.authentication import Session


class ClientConnection(Protocol):
    """The connection that a request came on, as a handler sees it."""

    @property
    def id(self) -> int:
        """Never used twice while the process runs."""
        ...

    @property
    def session(self) -> "Session":
        """The identity of the client, and the state of its login."""
        ...

    def authentication_failed(self, reason: str) -> None:
        """The connection ends when the answer to this request is sent; `reason` is logged."""
        ...

    def took(self, size_bytes: int) -> None:
        """A request holds so much besides its own bytes: beyond a limit no client is read from."""
        ...

    def released(self, size_bytes: int) -> None:
        """It has released that; also when the connection has ended meanwhile."""
        ...

    def when_lost(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, on the event loop, when the connection has ended."""
        ...


@dataclass(slots=True)
class RequestContext:
    """What a handler knows of the request besides its body."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection: ClientConnection
    principal: Principal = ANONYMOUS
    api_name: str = ""
    # Set by a quota: the answer contains it, and nothing is read from the client for so long.
    throttle_ms: int = 0
    # What a held request has begun; the same request gets it again when it begins again.
    pending_check: "BatchCheck | None" = None


class Held(Exception):
    """Raised by a handler that has changed nothing yet: the request begins again in a while.

    No later request of its connection overtakes it, and it is never begun again once its client
    has disconnected: that client sends it again by itself.
    """

    def __init__(self, until: "asyncio.Future[None]") -> None:
        super().__init__()
        self.until = until  # when to look again, at the latest after a second


# A handler answers at once, or returns something to wait for. None: no response is sent (acks=0).
Answer = Message | None
Handler = Callable[["Broker", Any, RequestContext], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Api:
    """One served API. `advertised_from` may lie below `first` (Produce: see its docstring)."""

    key: int
    name: str
    first: int
    last: int
    advertised_from: int
    request: type[Message]
    handle: Handler
    contract: str
    pipelined: bool


APIS: dict[int, Api] = {}


def serves(
    request: type[Message],
    *,
    first: int,
    last: int,
    advertised_from: int | None = None,
    pipelined: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of `request` in versions first..last.

    `pipelined`: the handler fixes its effect on the log before it returns, so the next request of
    the same connection may begin while this one's answer is still awaited.
    """

    def register(handle: Handler) -> Handler:
        module = __import__(handle.__module__, fromlist=["__doc__"])
        name = request.__name__.removesuffix("Request")
        APIS[request.api_key] = Api(
            key=request.api_key,
            name=name,
            first=first,
            last=last,
            advertised_from=first if advertised_from is None else advertised_from,
            request=request,
            handle=audited(name, handle),
            contract=module.__doc__ or "",
            pipelined=pipelined,
        )
        return handle

    return register
