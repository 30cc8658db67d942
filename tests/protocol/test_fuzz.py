"""Bytes from anywhere: a decoder answers with its own error, soon, and without much memory."""

import contextlib
import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol.generated_messages import all_messages
from tiers import examples

from headwater.errors import CorruptLog, MalformedMessage
from headwater.log.partitions.producers import Producers
from headwater.protocol.error_codes import ApiError
from headwater.protocol.records import Record, build_batch, check_produced, records_of
from headwater.protocol.schema import Message

REQUESTS = [message for message in all_messages() if message[0].__name__.endswith("Request")]
often = settings(max_examples=examples(300), deadline=None)


def mutated(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = random.randbytes(random.randint(1, 8))
            case 2 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case _:
                changed[at : at + 4] = random.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\x0f"]
                )
    return bytes(changed)


@pytest.mark.parametrize(
    ("cls", "version"), REQUESTS, ids=lambda argument: getattr(argument, "__name__", None)
)
def test_requests(cls: type[Message], version: int):
    random = Random(f"{cls.__name__}{version}")
    whole = bytes(cls().encode(version))
    for number in range(300):
        data = random.randbytes(random.randrange(60)) if number % 2 else mutated(whole, random)
        with contextlib.suppress(MalformedMessage):
            cls.decode(data, version)


@pytest.mark.parametrize(
    ("cls", "version"), REQUESTS, ids=lambda argument: getattr(argument, "__name__", None)
)
def test_a_length_of_two_gibibytes_costs_nothing(cls: type[Message], version: int):
    tracemalloc.start()
    for head in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff", b"\0\x7f\xff\xff\xff"):
        for padding in range(12):
            with contextlib.suppress(MalformedMessage):
                cls.decode(bytes(padding) + head * 20, version)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


BATCHES = [
    bytes(
        build_batch(
            [Record(0, 1000 + n, b"key", b"value" * 20, [("h", b"x")]) for n in range(5)],
            codec=codec,
            producer_id=3,
            producer_epoch=0,
            base_sequence=0,
        )
    )
    for codec in range(5)
]


@often
@given(st.sampled_from(BATCHES), st.integers(0, 2**32))
def test_produced_batches(batch: bytes, seed: int):
    data = bytearray(mutated(batch, Random(seed)))
    try:
        check_produced(memoryview(data))
    except ApiError:
        return
    # What passes is a batch the broker may store: only fields outside of the CRC were changed.
    assert data[21:] == batch[21:]


@often
@given(st.sampled_from(BATCHES), st.integers(0, 2**32))
def test_records_of_any_bytes(batch: bytes, seed: int):
    try:
        for record in records_of(mutated(batch, Random(seed))):
            assert abs(record.timestamp_ms) < 2**63
            assert -(2**63) <= record.offset < 2**63
    except MalformedMessage:
        pass


@often
@given(st.binary(max_size=300))
def test_records_of_random_bytes(data: bytes):
    with contextlib.suppress(MalformedMessage):
        list(records_of(BATCHES[0][:61] + data))


def test_a_batch_that_reads_its_own_records_over_and_over_is_refused():
    # Records of one byte whose header count promises a thousand more: without a check of the
    # record's own length each would be read to the end of the batch.
    body = b"\x02\x00" * 200_000
    batch = bytearray(build_batch([Record(0, 0, None, b"")]))[:61] + body
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    batch[57:61] = (200_000).to_bytes(4)
    begun = time.monotonic()
    with pytest.raises(MalformedMessage):
        list(records_of(batch))
    assert time.monotonic() - begun < 5


@often
@given(st.integers(0, 2**32))
def test_producer_snapshots(seed: int):
    producers = Producers()
    for batch in BATCHES:
        producers.record(check_produced(memoryview(bytearray(batch))), now_ms=1)
    data = mutated(producers.to_snapshot(), Random(seed))
    try:
        again = Producers.from_snapshot(data)
    except CorruptLog:
        return
    assert again.to_snapshot() == producers.to_snapshot()
