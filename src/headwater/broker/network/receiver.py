"""The receiver of one client's bytes, cut into frames: int32 size, then that many bytes.

Frames that came whole are cut out of the server's one receive buffer. A frame that did not gets a
buffer of its own, which grows with what has arrived, never by what a client merely announces.
"""

import struct

from headwater.errors import MalformedMessage

_SIZE = struct.Struct(">i")
SMALLEST_BYTES = 8  # API key, version, correlation id
FIRST_BUFFER_BYTES = 64 << 10


class Receiver:
    """Cuts frames out of `scratch`, which all connections share, and of buffers of its own."""

    __slots__ = ("_begun", "_rest", "_scratch", "filled_bytes", "frame_bytes")

    def __init__(self, scratch: memoryview) -> None:
        self._scratch = scratch
        self._rest = b""  # the start of a size
        self._begun: bytearray | None = None
        self.frame_bytes = 0  # of the frame that has begun, or that was the last one
        self.filled_bytes = 0  # how much of it is there

    @property
    def has_begun(self) -> bool:
        """Whether a frame has come in part, and has a buffer of its own."""
        return self._begun is not None

    @property
    def is_in_frame(self) -> bool:
        return self.has_begun or bool(self._rest)

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._begun is None:
            return self._scratch
        if self.filled_bytes == len(self._begun):
            more = min(self.frame_bytes - len(self._begun), len(self._begun))
            self._begun.extend(bytes(more))
        return memoryview(self._begun)[self.filled_bytes :]

    def filled(self, size_bytes: int) -> bytearray | None:
        """Bytes of the frame that has begun have come: the frame, if that is all of it."""
        self.filled_bytes += size_bytes
        if self.filled_bytes < self.frame_bytes:
            return None
        frame = self._begun
        self.clear()
        return frame

    def cut(self, size_bytes: int, max_frame_bytes: int) -> list[bytearray]:
        """Bytes have come into `scratch`: the frames that are whole. Another may have begun then.

        Raises MalformedMessage for what cannot be the size of a frame.
        """
        data = self._rest + bytes(self._scratch[:size_bytes])
        self._rest = b""
        frames: list[bytearray] = []
        at, end = 0, len(data)
        while end - at >= _SIZE.size:
            (frame_bytes,) = _SIZE.unpack_from(data, at)
            if not SMALLEST_BYTES <= frame_bytes <= max_frame_bytes:
                raise _no_request(frame_bytes, data[at : at + _SIZE.size])
            at += _SIZE.size
            if end - at < frame_bytes:
                self._begin(frame_bytes, data[at:])
                return frames
            frames.append(bytearray(data[at : at + frame_bytes]))
            at += frame_bytes
        self._rest = data[at:]
        return frames

    def clear(self) -> None:
        """Lets go what there is of a frame."""
        self._begun, self.filled_bytes = None, 0

    def _begin(self, frame_bytes: int, start: bytes) -> None:
        self._begun = bytearray(min(frame_bytes, max(FIRST_BUFFER_BYTES, 2 * len(start))))
        self._begun[: len(start)] = start
        self.filled_bytes = len(start)
        self.frame_bytes = frame_bytes


def _no_request(size_bytes: int, start: bytes) -> MalformedMessage:
    """What does not begin with the size of a request may be an honest mistake."""
    if start[:2] == b"\x16\x03":
        return MalformedMessage("the client speaks TLS; this broker does not (broker.tls_cert)")
    if start in (b"GET ", b"POST", b"HEAD"):
        return MalformedMessage("the client speaks HTTP; see broker.metrics_listen")
    return MalformedMessage(f"a request of {size_bytes} bytes")
