"""A ZeroMQ socket with its bounds, and how many peers are connected to it."""

from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from headwater.direct.settings import PUB, PUSH, SUB, ZeroMqSettings
from headwater.errors import HeadwaterError

_KINDS: Final = {"sub": zmq.SUB, "pull": zmq.PULL, "pub": zmq.PUB, "push": zmq.PUSH}


class PeerSocket:
    """Bound or connected when it is made; raises HeadwaterError if it cannot be."""

    def __init__(self, settings: ZeroMqSettings) -> None:
        self.settings = settings
        self.peers = 0
        self.most_peers = 1
        self.disconnects = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(_KINDS[settings.socket])
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, settings.high_water_mark)
        self.socket.set(zmq.SNDHWM, settings.high_water_mark)
        self.socket.set(zmq.MAXMSGSIZE, settings.max_message_bytes)
        if settings.socket == SUB:
            self.socket.set(zmq.SUBSCRIBE, (settings.subscribe or "").encode())
        elif settings.socket == PUSH:
            self.socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for who is not there yet
        elif settings.socket == PUB:
            self.socket.set(zmq.XPUB_NODROP, 1)  # so that we notice that a subscriber is too slow
        self._monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        try:
            if settings.bind:
                self.socket.bind(settings.address)
            else:
                self.socket.connect(settings.address)
        except zmq.ZMQError as error:
            self.close()
            raise HeadwaterError(
                f"[gateway.zeromq.{settings.name}] cannot use {settings.address}",
                detail=(error.strerror or str(error)).lower(),
                hint="is another program bound to it? bind = false connects to it instead",
            ) from error

    @property
    def address(self) -> str:
        """With the port that was bound."""
        endpoint = self.socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.decode().rstrip("\0")

    def watch(self) -> None:
        """Counts peers that have come and gone."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.peers += 1
                self.most_peers = max(self.most_peers, self.peers)
            elif event == zmq.EVENT_DISCONNECTED:
                self.peers = max(0, self.peers - 1)
                self.disconnects += 1

    def accept_no_more(self) -> None:
        """Messages that have arrived can still be received."""
        try:
            if self.settings.bind:
                self.socket.unbind(self.address)
            else:
                self.socket.disconnect(self.settings.address)
        except zmq.ZMQError:
            pass  # it was not connected

    def close(self, linger_s: float = 0.0) -> None:
        """Returns when what was sent is with the peers' connections, or `linger_s` has passed."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=int(linger_s * 1000))
        self._context.term()
