"""Sockets, clocks and threads around the two sides of a session."""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from headwater.direct.multicast.memory import RememberingSender
from headwater.direct.multicast.packets import (
    HEADER_BYTES,
    MAX_DATAGRAM_BYTES,
    REQUEST,
    decode,
    requested,
)
from headwater.direct.multicast.sockets import Address
from headwater.direct.multicast.streams import Event, Receiver
from headwater.errors import HeadwaterError

_FIRST_HEARTBEAT_S: Final = 0.02
_LONGEST_HEARTBEAT_S: Final = 1.0
_ENDING_HEARTBEAT_S: Final = 0.05
_BURST_S: Final = 0.005  # how much of the rate may be sent at once
_SLOWER_EVERY_S: Final = 0.1  # each time the rate is halved, or grows by a tenth of the full one
_LEAST_SHARE: Final = 1 / 16  # of the rate
_MAX_READ: Final = 256  # datagrams between two looks at the time


def _poll(*sockets: socket.socket) -> select.poll:
    """For reading. (`select.select` takes no descriptor above 1023.)"""
    poll = select.poll()
    for opened in sockets:
        poll.register(opened, select.POLLIN)
    return poll


class Sending:
    """A session on a group. `send` waits as the rate requires; a thread answers requests and sends
    heartbeats: soon behind the last packet, so that its loss is noticed, then less and less often.

    Requests mean that somebody cannot follow: what is sent again counts towards the rate, and while
    requests come the rate is halved again and again, as TCP does it. It recovers without them.
    """

    def __init__(
        self, opened: socket.socket, group: Address, sender: RememberingSender, rate_bytes_s: int
    ) -> None:
        self.sender = sender
        self._socket = opened
        self._group = group
        self._full_rate_bytes_s = self._rate_bytes_s = float(rate_bytes_s)
        self._rate_changed_s = time.monotonic()
        self._lock = threading.Lock()
        self._may_send_s = time.monotonic()
        self._heartbeat_s = time.monotonic()
        self._pause_s = _FIRST_HEARTBEAT_S
        self._asked_s = time.monotonic()  # when something was last sent again
        self._is_ending = False
        self._failure: OSError | None = None
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="multicast", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: bytes) -> None:
        """Returns when all packets of the message are sent. Raises HeadwaterError if the network
        cannot be used.
        """
        packets = self.sender.packets_of(message)
        while True:
            with self._lock:  # a heartbeat must not speak of what is not sent yet
                packet = next(packets, None)
                if packet is None:
                    break
                self._send(packet)
                self._pause_s = _FIRST_HEARTBEAT_S
                self._heartbeat_s = time.monotonic() + self._pause_s
                wait_s = self._wait_s(len(packet))
            if wait_s > 0:
                time.sleep(wait_s)
        if self._failure is not None:
            raise HeadwaterError(
                "the packets cannot be sent",
                detail=(self._failure.strerror or str(self._failure)).lower(),
                hint="--interface names the network; has it a route for multicast?",
            )

    def finish(self, linger_s: float, *, limit_s: float = 60.0) -> None:
        """Announces the end, and returns when nothing was requested for `linger_s`."""
        with self._lock:
            self._is_ending = True
            self._asked_s = began_s = time.monotonic()
            self._heartbeat_s = began_s
        self._wake.send(b"w")
        while True:
            now_s = time.monotonic()
            left_s = min(self._asked_s + linger_s, began_s + limit_s) - now_s
            if left_s <= 0:
                return
            time.sleep(min(left_s, 0.1))

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._woken.close()
        self._socket.close()

    def _wait_s(self, size_bytes: int) -> float:
        """How long to wait behind a packet of this size."""
        now_s = time.monotonic()
        if now_s - self._rate_changed_s > _SLOWER_EVERY_S:
            self._rate_changed_s = now_s
            faster = self._rate_bytes_s + self._full_rate_bytes_s / 10
            self._rate_bytes_s = min(faster, self._full_rate_bytes_s)
        due_s = max(self._may_send_s, now_s - _BURST_S) + size_bytes / self._rate_bytes_s
        self._may_send_s = due_s
        return due_s - now_s

    def _slow_down(self) -> None:
        now_s = time.monotonic()
        if now_s - self._rate_changed_s > _SLOWER_EVERY_S:
            self._rate_changed_s = now_s
            least = self._full_rate_bytes_s * _LEAST_SHARE
            self._rate_bytes_s = max(self._rate_bytes_s / 2, least)

    def _send(self, packet: bytes) -> None:
        try:
            self._socket.sendto(packet, self._group)
        except OSError as error:
            self._failure = error

    def _serve(self) -> None:
        sockets = _poll(self._socket, self._woken)
        while True:
            timeout_s = max(0.0, self._heartbeat_s - time.monotonic())
            readable = {descriptor for descriptor, _ in sockets.poll(timeout_s * 1000)}
            if self._woken.fileno() in readable and not self._woken.recv(16):
                return
            if self._socket.fileno() in readable:
                self._answer()
            with self._lock:
                if time.monotonic() >= self._heartbeat_s:
                    self._send(self.sender.heartbeat(is_end=self._is_ending))
                    self._pause_s = min(self._pause_s * 2, _LONGEST_HEARTBEAT_S)
                    pause_s = _ENDING_HEARTBEAT_S if self._is_ending else self._pause_s
                    self._heartbeat_s = time.monotonic() + pause_s

    def _answer(self) -> None:
        """One request. A flood of them cannot become one of packets, because of the rate."""
        packet = decode(self._socket.recv(MAX_DATAGRAM_BYTES))
        if packet is None or packet.kind != REQUEST or packet.session != self.sender.session:
            return
        repairs = self.sender.repairs(requested(packet), time.monotonic())
        while True:
            with self._lock:
                found = next(repairs, None)
                if found is None:
                    return
                self._send(found)
                wait_s = self._wait_s(len(found))
                if len(found) > HEADER_BYTES:
                    self._asked_s = time.monotonic()
                    self._slow_down()
            if wait_s > 0:
                time.sleep(wait_s)


class Receiving:
    """A member of a group. `handle` gets every event, in the thread of `run`."""

    def __init__(self, opened: socket.socket, interface: str, receiver: Receiver) -> None:
        self.receiver = receiver
        self._socket = opened
        self._socket.setblocking(False)
        self._requests = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._requests.bind((interface, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._requests.close()

    def run(self, handle: Callable[[Event], None], is_done: Callable[[], bool]) -> None:
        """Until `is_done`, which is asked several times in a second. What is missing then is
        reported.
        """
        receiver = self.receiver
        datagrams = _poll(self._socket)
        while not is_done():
            wait_s = min(receiver.wait_s(time.monotonic()), 0.1)
            if datagrams.poll(wait_s * 1000):
                self._read(handle)
            events, requests = receiver.tick(time.monotonic())
            for event in events:
                handle(event)
            for sender, request in requests:
                self._request(sender, request)
        for event in receiver.close():
            handle(event)

    def _read(self, handle: Callable[[Event], None]) -> None:
        for _ in range(_MAX_READ):
            try:
                datagram, sender = self._socket.recvfrom(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            for event in self.receiver.take(datagram, sender, time.monotonic()):
                handle(event)

    def _request(self, sender: Address, request: bytes) -> None:
        with contextlib.suppress(OSError):  # it is asked again, as long as there is patience
            self._requests.sendto(request, sender)
