"""The four compressions that a record batch may have, by the number in its attributes.

Java's snappy is not plain snappy: it is a sequence of blocks behind a magic header (the framing of
the xerial library). Both forms are read; plain blocks are written, which every client reads.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import cramjam

from headwater.errors import MalformedMessage

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_TOO_SMALL = "whole buffer"  # what cramjam says when its output does not fit
_XERIAL_HEADER_BYTES = 16  # magic, int32 version, int32 oldest compatible version

_UINT32_LE = struct.Struct("<I")
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0  # frames of users' own, in LZ4 and zstd alike
_LZ4_MAGIC = 0x184D2204
_LZ4_FRAME = struct.Struct("<IBB")
_LZ4_MAX_RATIO = 255
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_FRAME = struct.Struct("<IB")
_ZSTD_REPEATED, _ZSTD_COMPRESSED = 1, 2
_ZSTD_LARGEST_BLOCK_BYTES = 128 << 10


def decompress(
    codec: int,
    data: bytes | memoryview,
    limit_bytes: int,
    *,
    ratio: float = 4,
    buffer: memoryview | None = None,
) -> bytes | memoryview:
    """The bytes behind `data`. More than `limit_bytes` is refused: it may be a bomb.

    `ratio`: how many times as many they are, by a guess; a good one saves time and memory.
    `buffer`, of `limit_bytes` at least, saves making one; the result may be a view of it.
    """
    if codec == NONE:
        return data
    try:
        if codec == GZIP:
            return _gunzip(data, limit_bytes)
        if codec == SNAPPY:
            return _unsnappy(data, limit_bytes)
        if codec == LZ4:
            return _bounded(cramjam.lz4.decompress_into, data, limit_bytes, ratio, buffer)
        if codec == ZSTD:
            return _bounded(cramjam.zstd.decompress_into, data, limit_bytes, ratio, buffer)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise MalformedMessage(f"a batch does not decompress ({NAMES[codec]}): {error}") from None
    raise MalformedMessage(f"unknown compression {codec}")


class TooManyBlocks(MalformedMessage):
    """A frame is cut into more blocks than the caller has time for."""


def decompressed_bound(codec: int, data: bytes | memoryview, max_blocks: int) -> int:
    """The most bytes that `data` decompresses to, from what its frames and blocks say of it.

    No valid data exceeds it; decompressing has to enforce it, for a gzip trailer may say anything.
    Raises MalformedMessage for what has no such frames.
    """
    try:
        if codec == GZIP:
            return int(_UINT32_LE.unpack_from(data, len(data) - 4)[0])
        if codec == SNAPPY:
            return sum(
                cramjam.snappy.decompress_raw_len(block)
                for block in _snappy_blocks(data, max_blocks)
            )
        if codec == LZ4:
            return sum(_lz4_blocks(data, max_blocks))
        if codec == ZSTD:
            return sum(_zstd_blocks(data, max_blocks))
    except (cramjam.DecompressionError, struct.error, IndexError) as error:
        raise MalformedMessage(f"a batch does not decompress ({NAMES[codec]}): {error}") from None
    raise MalformedMessage(f"unknown compression {codec}")


def compress(codec: int, data: bytes | bytearray) -> bytes:
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return zlib.compress(data, wbits=31)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == LZ4:
        # Java's clients refuse a frame whose blocks refer to each other. Level 1, as they write it,
        # is four times as fast as cramjam's default and a tenth larger.
        frame = cramjam.lz4.Compressor(level=1, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data))


def _gunzip(data: bytes | memoryview, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    plain = stream.decompress(data, limit_bytes)
    if not stream.eof:
        raise MalformedMessage(f"a gzip batch is cut or exceeds {limit_bytes} bytes")
    if stream.unused_data:  # a second member, which no client writes
        raise MalformedMessage("bytes follow a gzip batch")
    return plain


def _unsnappy(data: bytes | memoryview, limit_bytes: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _unsnappy_block(data, limit_bytes)
    plain = bytearray()
    for block in _snappy_blocks(data, len(data)):
        plain += _unsnappy_block(block, limit_bytes - len(plain))
    return bytes(plain)


def _snappy_blocks(data: bytes | memoryview, max_blocks: int) -> Iterator[bytes | memoryview]:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (size,) = struct.unpack_from(">I", data, position)
        position += 4
        if size > len(data) - position:
            raise MalformedMessage("a snappy block is longer than its batch")
        max_blocks = _one_less(max_blocks)
        yield data[position : position + size]
        position += size


def _unsnappy_block(block: bytes | memoryview, limit_bytes: int) -> bytes:
    # A snappy block begins with the length of its plain bytes.
    if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
        raise MalformedMessage(f"a snappy batch exceeds {limit_bytes} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _lz4_blocks(data: bytes | memoryview, max_blocks: int) -> Iterator[int]:
    """How long the plain bytes of each block are at the most (LZ4's frame format, 1.6)."""
    position = 0
    while position < len(data):
        max_blocks = _one_less(max_blocks)  # a frame may be empty, or skippable
        magic, flags, descriptor = _LZ4_FRAME.unpack_from(data, position)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            position += 8 + _UINT32_LE.unpack_from(data, position + 4)[0]
            continue
        if magic != _LZ4_MAGIC:
            raise MalformedMessage("a batch does not decompress (lz4): no frame")
        largest = 1 << (2 * (descriptor >> 4 & 7) + 8)  # 4: 64 KiB … 7: 4 MiB
        position += 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
        while size := _UINT32_LE.unpack_from(data, position)[0]:
            max_blocks = _one_less(max_blocks)
            is_plain, size = size >> 31, size & 0x7FFFFFFF
            yield min(largest, size if is_plain else _LZ4_MAX_RATIO * size)
            position += 4 + size + 4 * (flags >> 4 & 1)
        position += 4 + 4 * (flags >> 2 & 1)


def _zstd_blocks(data: bytes | memoryview, max_blocks: int) -> Iterator[int]:
    """How long the plain bytes of each block are at the most (RFC 8878)."""
    position = 0
    while position < len(data):
        max_blocks = _one_less(max_blocks)  # a frame may be empty, or skippable
        magic, descriptor = _ZSTD_FRAME.unpack_from(data, position)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            position += 8 + _UINT32_LE.unpack_from(data, position + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise MalformedMessage("a batch does not decompress (zstd): no frame")
        is_single = descriptor >> 5 & 1
        content_size_bytes = (is_single, 2, 4, 8)[descriptor >> 6]
        position += 6 - is_single + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        is_last = 0
        while not is_last:
            max_blocks = _one_less(max_blocks)
            header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
            yield _ZSTD_LARGEST_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
            position += 3 + (1 if kind == _ZSTD_REPEATED else size)
        position += 4 * (descriptor >> 2 & 1)


def _one_less(max_blocks: int) -> int:
    if max_blocks <= 0:
        raise TooManyBlocks("a batch is cut into too many blocks")
    return max_blocks - 1


def _bounded(
    decompress_into: Any,
    data: bytes | memoryview,
    limit_bytes: int,
    ratio: float,
    buffer: memoryview | None,
) -> memoryview:
    """Tries growing buffers, because neither format has to say how long its plain bytes are."""
    if buffer is not None:
        return buffer[: decompress_into(data, buffer[:limit_bytes])]
    size_bytes = min(max(int(len(data) * ratio), 4096), limit_bytes)
    while True:
        plain = bytearray(size_bytes)
        try:
            return memoryview(plain)[: decompress_into(data, plain)]
        except cramjam.DecompressionError as error:
            # Bytes that are damaged stay so in a larger buffer; making one is not for nothing.
            if size_bytes >= limit_bytes or _TOO_SMALL not in str(error):
                raise
            size_bytes = min(size_bytes * 8, limit_bytes)
