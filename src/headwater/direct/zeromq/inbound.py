"""SUB and PULL: messages of peers into a topic.

A message of one frame is a value. Of several, the first is the key (none, if it is empty) and the
last is the value; frames between them become headers `zeromq.frame.N`.

While the producer has no room, nothing is received: PUSH sockets of peers then wait (their
high-water mark), PUB sockets drop, which cannot be noticed here.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

import zmq

from headwater.direct.publishing import TopicWriter
from headwater.direct.settings import ZeroMqSettings
from headwater.direct.zeromq.peers import PeerSocket

_LOG = logging.getLogger(__name__)
_WAKE_MS: Final = 200
_AT_ONCE: Final = 500


class Inbound:
    """`stop` writes what has arrived."""

    def __init__(self, settings: ZeroMqSettings, writer: TopicWriter) -> None:
        self.peer = PeerSocket(settings)
        self.messages = 0
        self.waits = 0  # how often the producer had no room
        self._writer = writer
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"zeromq-{settings.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        else:
            self.peer.close()
        left = self._writer.close(max(0.1, deadline_s - time.monotonic()))
        if left:
            _LOG.warning("%s: %d messages were not acknowledged at the end", self._name, left)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "messages": self.messages,
            "waits": self.waits,
            "failed": self._writer.failed,
            "disconnects": self.peer.disconnects,
        }

    @property
    def _name(self) -> str:
        return f"gateway.zeromq.{self.peer.settings.name}"

    def _run(self) -> None:
        socket = self.peer.socket
        try:
            while not self._stop.is_set():
                if socket.poll(_WAKE_MS):
                    self._receive(_AT_ONCE)
                self._writer.poll()
                self.peer.watch()
            self.peer.accept_no_more()
            self._receive(self.peer.settings.high_water_mark * self.peer.most_peers)
        except Exception:
            _LOG.exception("%s has ended", self._name)
        finally:
            self.peer.close()

    def _receive(self, most: int) -> None:
        for _ in range(most):
            try:
                frames = self.peer.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._put(frames)

    def _put(self, frames: Sequence[bytes]) -> None:
        self.messages += 1
        key = frames[0] or None if len(frames) > 1 else None
        headers = [
            (f"zeromq.frame.{number}", frame) for number, frame in enumerate(frames[1:-1], start=1)
        ]
        has_waited = False
        while not self._writer.offer(frames[-1], key, headers):
            if self._stop.is_set():
                _LOG.warning("%s: a message found no room at the end, and is lost", self._name)
                return
            self.waits += not has_waited
            has_waited = True
            self._writer.poll(_WAKE_MS / 1000)
