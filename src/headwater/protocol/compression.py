"""The four compressions that a record batch may have, by the number in its attributes.

Java's snappy is not plain snappy: it is a sequence of blocks behind a magic header (the framing of
the xerial library). Both forms are read; plain blocks are written, which every client reads.
"""

import struct
import zlib
from typing import Any

import cramjam

from headwater.errors import MalformedMessage

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_TOO_SMALL = "whole buffer"  # what cramjam says when its output does not fit
_XERIAL_HEADER_BYTES = 16  # magic, int32 version, int32 oldest compatible version


def decompress(
    codec: int, data: bytes | memoryview, limit_bytes: int, *, ratio: float = 4
) -> bytes | memoryview:
    """The bytes behind `data`. More than `limit_bytes` is refused: it may be a bomb.

    `ratio`: how many times as many they are, by a guess; a good one saves time and memory.
    """
    if codec == NONE:
        return data
    try:
        if codec == GZIP:
            return _gunzip(data, limit_bytes)
        if codec == SNAPPY:
            return _unsnappy(data, limit_bytes)
        if codec == LZ4:
            return _bounded(cramjam.lz4.decompress_into, data, limit_bytes, ratio)
        if codec == ZSTD:
            return _bounded(cramjam.zstd.decompress_into, data, limit_bytes, ratio)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
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
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (size,) = struct.unpack_from(">I", data, position)
        position += 4
        if size > len(data) - position:
            raise MalformedMessage("a snappy block is longer than its batch")
        plain += _unsnappy_block(data[position : position + size], limit_bytes - len(plain))
        position += size
    return bytes(plain)


def _unsnappy_block(block: bytes | memoryview, limit_bytes: int) -> bytes:
    # A snappy block begins with the length of its plain bytes.
    if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
        raise MalformedMessage(f"a snappy batch exceeds {limit_bytes} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def _bounded(
    decompress_into: Any, data: bytes | memoryview, limit_bytes: int, ratio: float
) -> memoryview:
    """Tries growing buffers, because neither format has to say how long its plain bytes are."""
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
