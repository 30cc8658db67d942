"""Batches into Arrow: the rows that protocol/records.py finds, or an error, whatever the bytes."""

import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.caching import CompileResultCacheImpl
from tiers import examples

from headwater.client.reading import arrow
from headwater.client.reading.arrow import schema_of, to_arrow
from headwater.client.reading.fetched import whole_batches
from headwater.client.reading.record_kernels import kernel
from headwater.errors import MalformedMessage
from headwater.protocol import compression, erased_records
from headwater.protocol.primitives import write_varlong
from headwater.protocol.records import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_ENDS_AT,
    LOG_APPEND_TIME,
    Record,
    assign,
    build_batch,
    crc32c,
    read_header,
    records_of,
    stamp_append_time,
)

ALL = ("key", "value", "offset", "timestamp", "headers")
MAX_US = 2**63 - 1
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-(2**41), 2**41) | st.integers(-(2**61), 2**61),
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def decode(data: bytes, start: int = 0, stop: int = 2**63 - 1) -> list[tuple[Any, ...]]:
    """All rows of some whole batches, times in microseconds."""
    view = memoryview(data)
    batches, at = [], 0
    for header, batch in whole_batches(view):
        batches.append((header, at))
        at += len(batch)
    found = list(to_arrow(view, batches, start, stop, ALL))
    for batch in found:
        batch.validate(full=True)
    table = pa.Table.from_batches(found, schema_of(ALL))
    times = table.column("timestamp").cast(pa.int64())
    rows = table.set_column(3, "timestamp", times).to_pylist()
    return [
        (
            *(row[name] for name in ALL[:4]),
            [(header["name"], header["value"]) for header in row["headers"]],
        )
        for row in rows
    ]


def expected(data: bytes, start: int = 0, stop: int = 2**63 - 1) -> list[tuple[Any, ...]]:
    return [
        (
            record.key,
            record.value,
            record.offset,
            _time_us(record.timestamp_ms),
            list(record.headers),
        )
        for _, batch in whole_batches(memoryview(data))
        for record in records_of(batch)
        if start <= record.offset < stop
    ]


def _time_us(timestamp_ms: int) -> int | None:
    time_us = timestamp_ms * 1000
    return None if timestamp_ms == -1 or abs(time_us) > MAX_US else time_us


@pytest.mark.parametrize("codec", range(5))
def test_erased_records_are_marked(codec: int) -> None:
    forged = [("headwater.erased", None)]
    batch = build_batch(
        [
            Record(0, 0, b"k", b"v"),
            Record(1, 0, b"k", b"v", [("h", b"1")]),
            Record(2, 0, None, None),
            Record(3, 0, None, None, [("headwater.erase", None)]),
            Record(4, 0, None, b"v", forged),
            Record(5, 0, b"k", None, forged),
            Record(6, 0, b"k", b"v"),
        ],
        codec=codec,
    )
    data = bytes(batch) + bytes(erased_records.erase(batch, [1, 6]))
    batches = [(read_header(data), 0), (read_header(data, len(batch)), len(batch))]
    found = list(to_arrow(memoryview(data), batches, 0, 100, ("erased",)))
    rows = [row for piece in found for row in piece.column("erased").to_pylist()]
    assert [number for number, is_erased in enumerate(rows) if is_erased] == [8, 13]


def with_crc(batch: bytes | bytearray) -> bytes:
    batch = bytearray(batch)
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(RECORDS, st.integers(0, 4), st.booleans()), min_size=1, max_size=4),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_the_same_rows_as_the_decoder_in_python(
    batches: list[tuple[list[Record], int, bool]], start: int, stop: int
) -> None:
    log = b""
    offset = 0
    for records, codec, is_append_time in batches:
        batch = build_batch(records, codec=codec)
        assign(memoryview(batch), offset, 1)
        if is_append_time:
            stamp_append_time(memoryview(batch), codec, 1_763_222_400_000 + offset)
        log += batch
        offset += len(records) + 3  # a hole behind each
    assert decode(log) == expected(log)
    assert decode(log, start, stop) == expected(log, start, stop)


def test_a_batch_that_compaction_has_thinned_out() -> None:
    """Offsets with holes, also at both ends; and one of which nothing is left, though it has the
    mark of a compression, as Kafka leaves it.
    """
    whole = [Record(0, 1000 + n, b"%d" % n, b"v") for n in range(10)]
    body = bytearray()
    for n in (2, 3, 7):
        single = build_batch([whole[n]])[HEADER_BYTES:]
        # length, attributes, timestamp delta, offset delta: assign its position in the batch
        body += bytes([single[0], single[1], 2 * n, 2 * n]) + single[4:]
    thin = bytearray(HEADER_BYTES) + body
    HEADER.pack_into(
        thin, 0, 100, len(thin) - LENGTH_ENDS_AT, -1, 2, 0, 0, 9, 1000, 1009, -1, -1, -1, 3
    )
    empty = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        empty, 0, 110, HEADER_BYTES - LENGTH_ENDS_AT, -1, 2, 0, compression.LZ4, 9, 0, 0, 5, 0, 0, 0
    )
    log = with_crc(thin) + with_crc(empty)
    assert [row[2] for row in decode(log)] == [102, 103, 107]
    assert decode(log) == expected(log)


def test_pieces_of_a_few_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "PIECE_BYTES", 10_000)
    log = bytearray()
    for number in range(60):
        size = 30_000 if number == 30 else 100
        records = [Record(0, 5, b"k", b"%d" % number * size) for _ in range(9)]
        batch = build_batch(records, base_offset=number * 9, codec=number % 2 * compression.ZSTD)
        log += batch
    batches, at = [], 0
    for header, batch in whole_batches(memoryview(log)):
        batches.append((header, at))
        at += len(batch)
    found = list(to_arrow(memoryview(log), batches, 0, 600, ("value", "offset")))
    assert len(found) > 10
    assert all(batch.num_rows == 9 or batch.nbytes < 11_000 for batch in found)
    assert [row["offset"] for batch in found for row in batch.to_pylist()] == list(range(540))
    assert decode(bytes(log)) == expected(bytes(log))


def test_names_of_headers_that_are_no_text() -> None:
    batch = build_batch([Record(0, 5, None, b"v", [("abcdef", b"x")])])
    log = with_crc(batch.replace(b"abcdef", b"ab\xff\xfeef"))
    assert decode(log)[0][4] == [("ab��ef", b"x")] == expected(log)[0][4]


@pytest.mark.parametrize("count", [-1, 2, 1 << 30, 2**31 - 1])
def test_a_count_that_is_not_true(count: int) -> None:
    batch = build_batch([Record(0, 5, b"key", b"value" * 9)])
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(MalformedMessage, match="offset 0"):
        decode(with_crc(batch))


def test_a_bomb() -> None:
    body = compression.compress(compression.ZSTD, bytes(200 << 20))
    batch = bytearray(HEADER_BYTES) + body
    HEADER.pack_into(
        batch, 0, 0, len(batch) - LENGTH_ENDS_AT, -1, 2, 0, compression.ZSTD, 0, 0, 0, -1, -1, -1, 1
    )
    with pytest.raises(MalformedMessage):
        decode(with_crc(batch))


def test_records_in_wrong_order_are_refused() -> None:
    first = build_batch([Record(0, 5, b"a", b"1"), Record(0, 5, b"b", b"2")])
    body = first[HEADER_BYTES:]
    half = len(body) // 2
    swapped = first[:HEADER_BYTES] + body[half:] + body[:half]
    with pytest.raises(MalformedMessage):
        decode(with_crc(swapped))


def some_batch(rng: random.Random) -> bytearray:
    records = [
        Record(
            0,
            1_700_000_000_000 + rng.randint(-999, 999),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 20))]),
            rng.choice([None, b"", rng.randbytes(rng.randint(1, 200))]),
            [(f"h{n}", rng.choice([None, b"x"])) for n in range(rng.choice([0, 0, 2]))],
        )
        for _ in range(rng.randint(1, 12))
    ]
    codec = rng.choice([0, 0, 0, 1, 2, 3, 4])
    append = rng.choice([0, LOG_APPEND_TIME])
    return build_batch(records, base_offset=rng.randint(0, 99), codec=codec, attributes=append)


EXTREMES = [2**63 - 1, 2**63 - 20, 2**62, 2**32, 2**31, 2**31 - 1, 300, 60, 20, -2, -(2**63)]


def extreme_record(rng: random.Random) -> bytes:
    """One of whose numbers may be anything; its length is that of its bytes, most often."""
    numbers = [0, 0, 3, 4, 1, 1, 2]
    if rng.random() < 0.9:
        numbers[rng.randrange(7)] = rng.choice(EXTREMES)
    texts = [b"", b"", b"key", b"four", b"", b"n", b"xy"]
    body = b"\x00" + b"".join(map(bytes.__add__, map(varlong, numbers), texts))
    return varlong(len(body) if rng.random() < 0.9 else rng.choice(EXTREMES)) + body


def varlong(number: int) -> bytes:
    out = bytearray()
    write_varlong(out, number)
    return bytes(out)


def damaged(rng: random.Random, batch: bytearray) -> bytes:
    """With the right CRC all the same, and a length that is that of its bytes."""
    kind = rng.randrange(5)
    if kind == 0:
        for _ in range(rng.randint(1, 4)):
            batch[rng.randrange(17, len(batch))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del batch[rng.randrange(HEADER_BYTES, len(batch)) :]
    elif kind == 2:
        at = rng.randrange(HEADER_BYTES, len(batch))
        batch[at : at + rng.randint(0, 9)] = rng.choice(
            [rng.randbytes(5), b"\xff" * rng.randint(1, 12), b"\x80" * 10 + b"\x01"]
        )
    elif kind == 3:
        batch[HEADER_BYTES:] = rng.randbytes(rng.randint(0, 300))
    else:
        batch = build_batch([Record(0, rng.choice([5, 2**62, -1]), b"", b"")])
        batch[HEADER_BYTES:] = extreme_record(rng)
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_ENDS_AT)
    return with_crc(batch)


def outcome(function: Any, log: bytes) -> list[tuple[Any, ...]] | None:
    try:
        return function(log)
    except MalformedMessage:
        return None


def fuzz(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    good = 0
    for _ in range(rounds):
        log = damaged(rng, some_batch(rng))
        found = outcome(decode, log)
        if found is not None:
            assert found == outcome(expected, log), log.hex()
            good += 1
    assert 0 < good < rounds  # both kinds have been seen


@pytest.mark.parametrize("seed", range(4))
def test_damaged_batches_are_errors_or_right(seed: int) -> None:
    fuzz(seed, 1500)


@pytest.mark.slow
def test_nothing_is_read_beyond_the_bounds(tmp_path: Path) -> None:
    """The same with numba's own checks, which the compiled code does not have otherwise."""
    fuzzing = "import test_arrow_decoding as t; t.fuzz(77, 3000)"
    here = Path(__file__).parent
    root = here.parents[1]
    needed = (here, here.parent, root, root / "src", os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(map(str, needed))
    environment = {
        **os.environ,
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),  # not what others have compiled without
        "PYTHONPATH": path,
    }
    done = subprocess.run(
        [sys.executable, "-c", fuzzing], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_where_nothing_can_be_written_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in an installation that is not ours, without a home."""
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert kernel(lambda number: number + 1)(2) == 3
