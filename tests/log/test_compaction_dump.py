"""Kafka's own DumpLogSegments reads cleaned segments and finds no fault."""

import re
from pathlib import Path

import pytest
from support.clients.kafka_tools import run_tool
from support.log.compaction_harness import CompactedLog

from bench.peers.provision import missing_tools
from headwater.protocol import compression
from headwater.protocol.records import TRANSACTIONAL

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]


def dump(*args: str) -> str:
    done = run_tool("DumpLogSegments", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatch" not in done.stdout.lower(), done.stdout
    assert "not valid" not in done.stdout, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory):
    with CompactedLog(tmp_path_factory.mktemp("dump")) as log:
        log.create(segment_bytes=16_384, index_interval_bytes=256)
        for n in range(400):
            keys = [b"key %d" % ((n * 7 + i) % 300) for i in range(5)]
            value = None if n % 50 == 49 else b"value %d" % n
            log.put(*[(key, value) for key in keys], codec=n % 5)
        transaction = {"producer_id": 5, "producer_epoch": 0, "attributes": TRANSACTIONAL}
        log.put((b"key 1", b"aborted"), base_sequence=0, **transaction)
        log.end(5, commit=False)
        log.put((b"key 2", b"committed"), base_sequence=1, **transaction)
        log.end(5, commit=True)
        log.compact()
        yield log


def files(log: CompactedLog, suffix: str) -> str:
    directory = Path(log.partition().directory)
    return ",".join(sorted(str(path) for path in directory.glob(f"*{suffix}")))


def test_batches_and_records(cleaned: CompactedLog) -> None:
    said = dump("--deep-iteration", "--print-data-log", "--files", files(cleaned, ".log"))
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert offsets == [record.offset for record in cleaned.records()]
    assert set(re.findall(r" isvalid: (\w+)", said)) == {"true"}
    assert set(re.findall(r"compresscodec: (\w+)", said)) == set(compression.NAMES)
    horizons = set(re.findall(r"deleteHorizonMs: OptionalLong\[(\d+)\]", said))
    assert horizons == {str(cleaned.clock.now_ms() + 86_400_000)}
    assert "endTxnMarker: COMMIT" in said
    assert "endTxnMarker: ABORT" in said
    line = re.compile(r"^\| offset: (\d+) .*?key: (key \d+)(?: payload: (.*))?$", re.MULTILINE)
    found = line.findall(said)
    ours = [r for r in cleaned.records() if r.key and r.key.startswith(b"key")]
    assert [(int(at), key.encode(), value.encode()) for at, key, value in found] == [
        (r.offset, r.key, r.value or b"") for r in ours
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_indexes(cleaned: CompactedLog, suffix: str) -> None:
    names = files(cleaned, suffix)
    assert "passed sanity check" in dump("--index-sanity-check", "--files", names)
    assert re.search(r"offset: \d+", dump("--files", names))


def test_the_index_of_aborted_transactions(cleaned: CompactedLog) -> None:
    said = dump("--files", files(cleaned, ".txnindex"))
    assert re.search(r"producerId: 5 firstOffset: 2000 lastOffset: 2001 ", said), said
