"""One client connection: frames in, responses out, in order, with bounded memory.

Order: requests are begun in the order they came and answered in that order. The next one begins
when the one before is answered, except behind a pipelined API (Produce), whose effect on the log
is fixed before its answer is complete.

Backpressure: reading stops while a request waits for its turn, while too many bytes are in work
(here, or in the whole server), and while the client does not take its responses; then no further
request begins either. Records of a fetch are read from the file piece by piece as the client takes
them. So a client that floods or sleeps costs a few hundred KiB and slows no other client.

Throttling: a client that has used up its quota gets its answer, and nothing more is read from it
for the throttle time of the answer (KIP-219). A producer that a topic's overload policy holds back
is not answered until its consumers have caught up.

What a request holds is counted until it is answered, also when its client has disconnected by then.
"""

import asyncio
import itertools
import logging
import select
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from headwater.broker.api.registry import APIS, Api, Held, RequestContext
from headwater.broker.network.envelope import RequestReader, response_frame
from headwater.broker.network.receiver import Receiver
from headwater.broker.network.sender import Sender
from headwater.broker.security.authentication import UNAUTHENTICATED_MAX_REQUEST_BYTES
from headwater.errors import AuthenticationFailed, HeadwaterError, MalformedMessage
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.primitives import Out, Splice
from headwater.protocol.schema import Message

if TYPE_CHECKING:
    from headwater.broker.admission.batch_checks import BatchCheck
    from headwater.broker.network.server import Server

log = logging.getLogger(__name__)

# In work per connection before reading stops: enough for five produce requests of 1 MiB.
IN_WORK_BYTES = 8 << 20
WRITE_BUFFER_BYTES = 256 << 10
REQUESTS_PER_TURN = 64
# What a request takes besides its bytes: while it waits for its turn, and while it is in work.
# Without them a flood of tiny requests would hold a hundred times what is counted.
FRAME_COST_BYTES = 128
REQUEST_COST_BYTES = 2 << 10
HELD_LOOK_S = 1.0


class _Slot:
    """The slot of one response in the order. `out` is None until it is complete."""

    __slots__ = ("began_s", "is_awaited", "out", "size_bytes")

    def __init__(self, size_bytes: int, began_s: float) -> None:
        self.began_s = began_s  # of the monotonic clock
        self.out: Out | None = None
        self.size_bytes = size_bytes  # of the request, which stays in memory until the answer
        self.is_awaited = False  # then `size_bytes` is released when the answer comes, not before


class Connection(asyncio.BufferedProtocol):
    """See the module."""

    _ids = itertools.count(1)

    def __init__(self, server: "Server") -> None:
        self._server = server
        self.id = next(self._ids)
        self.session = server.broker.authentication.session(self._authenticated)
        self._when_lost: list[Callable[[], None]] = []
        self._transport: Any = None
        self.client_host = ""
        self.peer = ""
        self.active_at_s = 0.0
        self.receiver = Receiver(server.scratch)
        self.is_admitted = False  # the server has set aside room for all of the frame
        self.stands_in_line = False  # for that room, or in it; see `Server`
        self.unauthenticated_bytes = 0  # held before it has authenticated
        self._inbox: deque[bytearray] = deque()
        # Answering.
        self._slots: deque[_Slot] = deque()
        self._in_work_bytes = 0
        # The API whose answer is awaited; the next request must not overtake it.
        self._awaited: Api | None = None
        self._unanswered = 0
        self._reading = True
        self._starved = False  # waits, between two requests, because the whole server is full
        # The first request of the inbox waits for a check of its batches, or for consumers.
        self._is_held = False
        self._pending_check: BatchCheck | None = None  # of the held request
        self._muted_until_s = 0.0
        self._sender = Sender(self._read_splice, self.close, self._pump_on)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False  # nothing is begun, read or sent any more
        self._closed = False

    # ── the transport's side ──────────────────────────────────────────────────────────────────

    def connection_made(self, transport: Any) -> None:
        self._transport = self._sender.transport = transport
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.client_host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.active_at_s = self._server.broker.clock.monotonic_s()
        self._server.opened(self)

    def secured(self, subject: str) -> None:
        """The TLS handshake is done; `subject` is that of the client's certificate, or empty."""
        self.session.secured(subject)
        if subject:
            self._server.broker.audit.authentication(f"User:{subject}", self.client_host, "TLS")

    def _authenticated(self) -> None:
        self._server.authenticated(self)

    def authentication_failed(self, reason: str) -> None:
        """The answer that is being made is the last one."""
        self.session.fail()
        self._server.broker.metrics.logins_failed += 1
        self._server.refused(self, reason)

    def certificate_refused(self, reason: str) -> None:
        """The TLS handshake fails because the client's certificate is not accepted."""
        self._server.broker.metrics.logins_failed += 1
        self._server.broker.audit.authentication("", self.client_host, "TLS", error=reason)

    def connection_lost(self, error: Exception | None) -> None:
        self._ending = self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._pending_check is not None:
            self._pending_check.abandon()
        self._sender.end()
        for slot in self._slots:
            if slot.out is not None:
                self._sender.send(slot.out)
        awaited_bytes = sum(slot.size_bytes for slot in self._slots if slot.is_awaited)
        held_bytes = self._in_work_bytes - awaited_bytes
        if self.is_admitted:
            self._server.finished(self)
            held_bytes += self.receiver.frame_bytes
        elif self.receiver.has_begun:
            self._server.gave_up(self)
        self._slots.clear()
        self._inbox.clear()
        self._in_work_bytes = 0
        self.receiver.clear()
        self._server.lost(self)
        self._server.released(self, held_bytes)

        for callback in self._when_lost:
            try:
                callback()
            except Exception:
                log.exception("what follows the end of a connection failed")

    def took(self, size_bytes: int) -> None:
        self._server.took(self, size_bytes)

    def released(self, size_bytes: int) -> None:
        self._server.released(self, size_bytes)

    def when_lost(self, callback: Callable[[], None]) -> None:
        self._when_lost.append(callback)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.active_at_s = self._server.broker.clock.monotonic_s()
        try:
            if self.receiver.has_begun:
                frame = self.receiver.filled(nbytes)
                if frame is not None:
                    self._end_frame(frame)
            else:
                for frame in self.receiver.cut(nbytes, self._max_request_bytes):
                    self._server.took(self, len(frame) + FRAME_COST_BYTES)
                    self._in_work_bytes += len(frame) + FRAME_COST_BYTES
                    self._inbox.append(frame)
                if self.receiver.has_begun:
                    self._server.wait_for_room(self)
            self._pump()
        except Exception as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._sender.is_writable = False

    def resume_writing(self) -> None:
        self._sender.is_writable = True
        self.active_at_s = self._server.broker.clock.monotonic_s()
        self._sender.flush()
        self._pump_on()

    def close(self, reason: str) -> None:
        """Ends the connection and logs the reason."""
        if not self._ending and self._transport is not None:
            self._server.refused(self, reason)
            self.drop()

    def drop(self) -> None:
        """Ends the connection without a log line: the server stops, or the client was idle."""
        if not self._closed and self._transport is not None:
            self._ending = True
            self._sender.end()
            self._transport.abort()

    def _refuse(self, error: BaseException) -> None:
        """Ends the connection for what its client sent, or for an internal error."""
        if isinstance(error, HeadwaterError):
            self.close(str(error))
        else:
            log.error("a request failed", exc_info=error)
            self.close(f"internal: {error!r}")

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do, or the client does not take what it asked for."""
        is_done = not self._slots and not self._inbox and self._sender.is_idle
        return is_done or not self._sender.is_writable

    # ── frames ────────────────────────────────────────────────────────────────────────────────

    @property
    def _max_request_bytes(self) -> int:
        most = self._server.max_request_bytes
        return (
            most if self.session.is_authenticated else min(most, UNAUTHENTICATED_MAX_REQUEST_BYTES)
        )

    def admit(self) -> None:
        """There is room for the frame that has begun: it is read on."""
        self.is_admitted = True
        self._steer_reading()

    def _end_frame(self, frame: bytearray) -> None:
        self._server.finished(self)
        self.is_admitted = False
        self._server.took(self, FRAME_COST_BYTES)
        self._in_work_bytes += len(frame) + FRAME_COST_BYTES
        self._inbox.append(frame)

    @property
    def waits_for_client(self) -> bool:
        """Whether it is for the client to go on: to send, or to take its answers."""
        return self._reading or not self._sender.is_writable

    @property
    def is_in_frame(self) -> bool:
        """Whether we wait for the rest of a request that has begun to arrive."""
        return self._reading and self.receiver.is_in_frame

    # ── requests ──────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Begins the requests whose turn it is, then reads on or not."""
        for _ in range(REQUESTS_PER_TURN):
            if not self._inbox or self._ending or not self._may_begin():
                break
            self._begin(self._inbox.popleft())
        else:  # a flood of small requests: the others have their turn first
            asyncio.get_running_loop().call_soon(self._pump_on)
        self._steer_reading()

    def _pump_on(self) -> None:
        try:
            self._pump()
        except Exception as error:
            self._refuse(error)

    def _may_begin(self) -> bool:
        if not self._takes_answers or (self._slots and self._in_work_bytes >= IN_WORK_BYTES):
            return False
        if self._transport.is_closing():
            # `connection_lost` comes next, and would cancel a task before its first step.
            return False
        if self._is_held or self._is_muted:
            return False
        if self._awaited is None:
            return True
        following = APIS.get(int.from_bytes(self._inbox[0][:2], "big"))
        return self._awaited.pipelined and following is not None and following.pipelined

    @property
    def _takes_answers(self) -> bool:
        """Whether a further answer could be sent, or wait behind one at most."""
        return self._sender.is_writable and not self._sender.is_behind

    def _steer_reading(self) -> None:
        if self._ending:
            return
        has_room = self.is_admitted if self.receiver.has_begun else not self._server.is_full
        want = (
            not self._inbox
            and not self._is_muted
            and self._takes_answers
            and self._in_work_bytes < IN_WORK_BYTES
            and has_room
        )
        if want and not self._reading:
            self._reading = True
            self.active_at_s = self._server.broker.clock.monotonic_s()
            self._transport.resume_reading()
        elif not want and self._reading:
            self._reading = False
            self._transport.pause_reading()
        if not has_room and not self.receiver.has_begun and not self._starved:
            self._starved = True
            self._server.starved.append(self)

    def room_again(self) -> None:
        """The server has room again; see `Server.released`."""
        self._starved = False
        self._steer_reading()

    def _begin(self, frame: bytearray) -> None:
        began_s = self._server.broker.clock.monotonic_s()
        slot = _Slot(len(frame) + FRAME_COST_BYTES + REQUEST_COST_BYTES, began_s)
        self._in_work_bytes += REQUEST_COST_BYTES
        self._server.took(self, REQUEST_COST_BYTES)
        reader = RequestReader(frame)
        key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        client_id = reader.string()
        api = APIS.get(key)
        if api is None:
            raise MalformedMessage(f"API key {key} is not served")
        refusal = self.session.refusal_of(key)
        if refusal is not None:
            raise AuthenticationFailed(refusal, detail=api.name)
        context = RequestContext(
            version,
            correlation_id,
            client_id,
            self.client_host,
            self,
            self.session.principal,
            api_name=api.name,
            pending_check=self._pending_check,
        )
        self._slots.append(slot)
        self._unanswered += 1
        if not api.first <= version <= api.last:
            self._refuse_version(slot, api, context)
            return
        if version >= api.request.flexible:
            reader.skip_tagged_fields()
        request = api.request.read(reader, version)
        broker = self._server.broker
        try:
            answer = api.handle(broker, request, context)
        except Held as held:
            self._pending_check = context.pending_check
            self._hold(frame, held)
            return
        self._pending_check = None
        broker.metrics.requests[key] += 1
        if (
            broker.quotas.is_any and self.session.is_authenticated
        ):  # an unauthenticated client has no quota
            broker.quotas.charge_time(context, broker.clock.monotonic_s() - began_s)
            if context.throttle_ms:  # at once: pipelined requests come before the answer
                self._mute(context.throttle_ms)
        if answer is None or isinstance(answer, Message):
            self._answer(slot, api, context, answer)
            return
        self._awaited = api
        self._await(slot, api, context, answer)

    def _hold(self, frame: bytearray, held: Held) -> None:
        """Takes back what `_begin` has begun, to begin it again."""
        self._slots.pop()
        self._unanswered -= 1
        self._in_work_bytes -= REQUEST_COST_BYTES
        self._server.released(self, REQUEST_COST_BYTES)
        self._inbox.appendleft(frame)
        self._is_held = True

        def again(_: object) -> None:
            timer.cancel()
            if self._is_held and not self._ending:
                self._is_held = False
                if self._has_hung_up():
                    self.drop()
                else:
                    self._pump_on()

        timer = self._server.broker.clock.call_later(HELD_LOOK_S, again, None)
        held.until.add_done_callback(again)

    def _has_hung_up(self) -> bool:
        """Whether the client has closed its end; without reading, the transport does not see it."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    @property
    def _is_muted(self) -> bool:
        return (
            bool(self._muted_until_s)
            and self._muted_until_s > self._server.broker.clock.monotonic_s()
        )

    def _mute(self, throttle_ms: int) -> None:
        clock = self._server.broker.clock
        until_s = clock.monotonic_s() + throttle_ms / 1000
        if until_s > self._muted_until_s:
            self._muted_until_s = until_s
            clock.call_later(throttle_ms / 1000 + 0.001, self._pump_on)

    def _refuse_version(self, slot: _Slot, api: Api, context: RequestContext) -> None:
        if api.key != ApiVersionsRequest.api_key:
            raise MalformedMessage(f"{api.name} version {context.api_version} is not served")
        # A client that is newer than the broker asks again with a version of this answer (KIP-511).
        response = self._server.broker.api_versions()
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        context.api_version = 0
        self._answer(slot, api, context, response)

    def _await(
        self, slot: _Slot, api: Api, context: RequestContext, answer: Awaitable[Message | None]
    ) -> None:
        slot.is_awaited = True
        future = asyncio.ensure_future(answer)
        if isinstance(future, asyncio.Task):
            self._tasks.add(future)
            future.add_done_callback(self._tasks.discard)

        def done(finished: "asyncio.Future[Message | None]") -> None:
            slot.is_awaited = False
            if self._closed:
                self._server.released(self, slot.size_bytes)
            if finished.cancelled():
                return
            try:
                self._answer(slot, api, context, finished.result())
            except Exception as error:
                self._refuse(error)
            else:
                self._pump_on()

        future.add_done_callback(done)

    # ── responses ─────────────────────────────────────────────────────────────────────────────

    def _answer(
        self, slot: _Slot, api: Api, context: RequestContext, response: Message | None
    ) -> None:
        if context.throttle_ms and not self._closed:
            self._mute(context.throttle_ms)
            if response is not None and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = context.throttle_ms
        out = (
            Out()
            if response is None
            else response_frame(response, context.api_version, context.correlation_id)
        )
        if self._closed:
            self._sender.send(out)  # which releases it
            return
        slot.out = out
        broker = self._server.broker
        broker.metrics.latency[api.key].observe(broker.clock.monotonic_s() - slot.began_s)
        self._in_work_bytes -= slot.size_bytes
        self._server.released(self, slot.size_bytes)
        self._unanswered -= 1
        if self._unanswered == 0:
            self._awaited = None
        while self._slots and (ready := self._slots[0].out) is not None:
            self._slots.popleft()
            self._sender.send(ready)
        if self.session.has_failed:
            self._ending = True
            self._transport.close()  # when the answer is sent

    def _read_splice(self, splice: Splice, buffer: memoryview, at: int) -> Coroutine[Any, Any, int]:
        return self._server.broker.store.in_reader(splice.read, buffer, at)
