"""The sender's side of a session: cuts messages into packets and remembers them, within bounds."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from headwater.direct.multicast.packets import (
    AGAIN,
    DATA,
    END,
    FIRST,
    HEADER_BYTES,
    HEARTBEAT,
    LAST,
    Packet,
    Range,
    encode,
)

_OVERHEAD_BYTES: Final = 200  # of Python's objects for one packet
_REPEAT_AFTER_S: Final = 0.02  # several receivers ask for what they all have lost


class RememberingSender:
    """Not thread-safe; it sends nothing itself."""

    def __init__(self, session: int, *, memory_bytes: int, packet_bytes: int) -> None:
        self.session = session
        self.last = 0  # sequence of the last packet
        self.repaired = 0
        self.too_late = 0  # packets that were requested and are forgotten
        self._memory_bytes = memory_bytes
        self._piece_bytes = packet_bytes - HEADER_BYTES
        self._remembered: dict[int, Packet] = {}
        self._order: deque[int] = deque()
        self._held_bytes = 0
        self._repeated_s: dict[int, float] = {}  # when a packet was last sent again

    @property
    def oldest(self) -> int:
        """The oldest sequence that can be requested; the next one if there is none."""
        return self._order[0] if self._order else self.last + 1

    def packets_of(self, message: bytes) -> Iterator[bytes]:
        """What has to be sent, in order."""
        size_bytes = max(len(message), 1)
        for start in range(0, size_bytes, self._piece_bytes):
            flags = FIRST if not start else 0
            if start + self._piece_bytes >= size_bytes:
                flags |= LAST
            yield self._remember(flags, message[start : start + self._piece_bytes])

    def heartbeat(self, *, is_end: bool = False) -> bytes:
        flags = END if is_end else 0
        return encode(Packet(HEARTBEAT, flags, self.session, self.last, self.oldest, b""))

    def repairs(self, ranges: list[Range], now_s: float) -> Iterator[bytes]:
        """The requested packets that are remembered and were not repeated just now. Behind them a
        heartbeat if others are forgotten, from which the receiver learns that.
        """
        is_too_late = False
        for first, last in ranges:
            if first < self.oldest:
                self.too_late += min(last + 1, self.oldest) - first
                is_too_late = True
            for sequence in range(max(first, self.oldest), min(last, self.last) + 1):
                if now_s - self._repeated_s.get(sequence, -1e9) < _REPEAT_AFTER_S:
                    continue
                packet = self._remembered.get(sequence)
                if packet is None:  # forgotten since, by what was sent meanwhile
                    continue
                self._repeated_s[sequence] = now_s
                self.repaired += 1
                yield encode(packet._replace(flags=packet.flags | AGAIN, oldest=self.oldest))
        if is_too_late:
            yield self.heartbeat()

    def _remember(self, flags: int, piece: bytes) -> bytes:
        self.last += 1
        packet = Packet(DATA, flags, self.session, self.last, 0, piece)
        self._remembered[self.last] = packet
        self._order.append(self.last)
        self._held_bytes += len(piece) + _OVERHEAD_BYTES
        while self._held_bytes > self._memory_bytes and len(self._order) > 1:
            forgotten = self._order.popleft()
            self._held_bytes -= len(self._remembered.pop(forgotten).payload) + _OVERHEAD_BYTES
            self._repeated_s.pop(forgotten, None)
        return encode(packet._replace(oldest=self.oldest))
