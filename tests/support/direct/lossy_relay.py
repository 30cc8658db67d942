"""A relay between two multicast groups that drops, repeats and reorders packets, both ways."""

import contextlib
import random
import select
import threading

from headwater.direct.multicast.sockets import LOOPBACK, receiving_socket, sending_socket


class LossyRelay:
    """Packets to the group `into` come out at the group `out`; requests go the other way."""

    def __init__(self, into, out, *, loss=0.2, repeat=0.1, reorder=0.2, seed=0):
        self.dropped = 0
        self._out = out
        self._loss, self._repeat, self._reorder = loss, repeat, reorder
        self._chance = random.Random(seed)
        self._in = receiving_socket(into, LOOPBACK)
        self._back = sending_socket(LOOPBACK, 1)  # requests are sent to where packets come from
        self._sender = None
        self._held = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._in.close()
        self._back.close()

    def _run(self):
        sockets = select.poll()
        sockets.register(self._in, select.POLLIN)
        sockets.register(self._back, select.POLLIN)
        while not self._stop.is_set():
            readable = {descriptor for descriptor, _ in sockets.poll(50)}
            if self._in.fileno() in readable:
                packet, self._sender = self._in.recvfrom(65_535)
                self._carry(packet, self._out)
            if self._back.fileno() in readable:
                request = self._back.recv(65_535)
                if self._sender is not None:
                    self._carry(request, self._sender)
            if not readable:
                self._release()

    def _carry(self, packet, to):
        if self._chance.random() < self._loss:
            self.dropped += 1
            return
        for _ in range(1 + (self._chance.random() < self._repeat)):
            if self._chance.random() < self._reorder:
                self._held.append((packet, to))
            else:
                self._send(packet, to)
        if len(self._held) > 5:
            self._release()

    def _release(self):
        self._chance.shuffle(self._held)
        for packet, to in self._held:
            self._send(packet, to)
        self._held = []

    def _send(self, packet, to):
        with contextlib.suppress(OSError):  # a sender that is gone
            self._back.sendto(packet, to)
