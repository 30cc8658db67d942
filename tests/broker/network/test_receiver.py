"""Receiver: however the bytes come, the same frames come out."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.broker.network.receiver import FIRST_BUFFER_BYTES, Receiver
from headwater.errors import MalformedMessage

SCRATCH_BYTES = 4096
MAX_FRAME_BYTES = 1 << 20


def received(stream: bytes, pieces: list[int]) -> list[bytes]:
    """The frames that come out when the stream comes in pieces of these sizes, again and again."""
    receiver = Receiver(memoryview(bytearray(SCRATCH_BYTES)))
    frames: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        buffer = receiver.buffer()
        size_bytes = min(pieces[turn % len(pieces)], len(buffer), len(stream) - at)
        buffer[:size_bytes] = stream[at : at + size_bytes]
        del buffer  # a view that is still held would prevent the frame from growing
        if receiver.has_begun:
            frame = receiver.filled(size_bytes)
            frames += [] if frame is None else [bytes(frame)]
        else:
            frames += map(bytes, receiver.cut(size_bytes, MAX_FRAME_BYTES))
        at += size_bytes
        turn += 1
    assert not receiver.is_in_frame
    return frames


@settings(deadline=None)
@given(
    st.lists(st.integers(8, 300) | st.integers(3000, 3 * FIRST_BUFFER_BYTES), max_size=8),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=5),
)
def test_frames_come_out_as_they_went_in(sizes, pieces):
    sent = [bytes([number]) * size_bytes for number, size_bytes in enumerate(sizes)]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in sent)
    pieces = [max(piece, len(stream) // 500) for piece in pieces]  # bounds the time it takes
    assert received(stream, pieces) == sent


def test_a_long_frame_takes_memory_as_it_comes_not_as_it_is_announced():
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    receiver = Receiver(scratch)
    scratch[:4] = struct.pack(">i", MAX_FRAME_BYTES)
    assert receiver.cut(4, MAX_FRAME_BYTES) == []
    assert receiver.has_begun
    assert len(receiver.buffer()) == FIRST_BUFFER_BYTES


@pytest.mark.parametrize("size_bytes", [-1, 0, 7, MAX_FRAME_BYTES + 1])
def test_a_size_that_cannot_be_one(size_bytes):
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    scratch[:4] = struct.pack(">i", size_bytes)
    with pytest.raises(MalformedMessage, match=str(size_bytes)):
        Receiver(scratch).cut(4, MAX_FRAME_BYTES)
