"""Compaction of transactions: aborted records go, markers stay as long as they are needed."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.log.compaction_harness import CompactedLog
from tiers import examples

from headwater.protocol.records import CONTROL, TRANSACTIONAL

DAY_S = 86_400
DELETE_HORIZON = 0x40


class TransactionalLog(CompactedLog):
    """Producers by their id; each batch is its producer's next."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.sequences: dict[int, int] = {}

    def write(self, producer_id: int, *pairs: tuple[bytes, bytes | None], codec: int = 0) -> int:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(pairs)
        return self.put(
            *pairs, codec=codec, producer_id=producer_id, producer_epoch=0,
            base_sequence=sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip

    def markers(self) -> list[int]:
        return [header.base_offset for header in self.headers() if header.attributes & CONTROL]

    def data(self) -> list[tuple[bytes | None, bytes | None]]:
        controls = set(self.markers())
        return [(r.key, r.value) for r in self.records() if r.offset not in controls]

    def later(self) -> None:
        """A day passes, and there is something to clean again."""
        self.clock.advance(DAY_S)
        self.put((b"other", b"%d" % self.clock.now_ms()))
        self.compact()


@pytest.fixture
def log(tmp_path: Path):
    with TransactionalLog(tmp_path) as log:
        log.create()
        yield log


def test_aborted_records_go_and_do_not_supersede(log: TransactionalLog) -> None:
    log.put((b"a", b"kept"))
    log.write(1, (b"a", b"aborted"), (b"b", b"aborted"))
    log.end(1, commit=False)
    log.compact()
    assert log.data() == [(b"a", b"kept")]


@pytest.mark.parametrize("codec", range(5))
def test_committed_records_supersede(log: TransactionalLog, codec: int) -> None:
    log.put((b"a", b"old"))
    log.write(1, (b"a", b"new"), (b"b", b"1"), codec=codec)
    log.end(1, commit=True)
    log.write(1, (b"b", b"2"), codec=codec)
    log.end(1, commit=True)
    log.compact()
    assert log.data() == [(b"a", b"new"), (b"b", b"2")]
    assert log.committed_values() == [b"new", b"2"]


def test_nothing_from_the_first_open_transaction_on(log: TransactionalLog) -> None:
    log.put((b"a", b"1"))
    log.put((b"a", b"2"))
    log.compact()
    assert log.data() == [(b"a", b"2")]
    log.write(1, (b"a", b"open"))
    log.put((b"a", b"3"))
    log.put((b"a", b"4"))
    log.compact()
    assert len(log.data()) == 4
    log.end(1, commit=False)
    log.compact()
    assert log.data() == [(b"a", b"4")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_goes_after_its_records(log: TransactionalLog, commit: bool) -> None:
    log.write(1, (b"a", b"1"))
    marker = log.end(1, commit=commit)
    log.put((b"a", b"2"))
    log.compact()  # the records go; the marker has seen them
    assert log.markers() == [marker]
    assert not log.headers()[0].attributes & DELETE_HORIZON
    log.later()  # nothing is left of it: its time runs
    assert log.markers() == [marker]
    before = log.headers()[0]
    assert before.attributes & DELETE_HORIZON
    assert before.base_timestamp == log.clock.now_ms() + DAY_S * 1000
    log.clock.advance(-1)
    log.later()
    assert log.markers() == [marker]
    log.clock.advance(1)
    log.put((b"x", b"1"))
    log.compact()
    assert log.markers() == []
    assert log.partition().next_offset > marker


def test_a_marker_stays_while_records_do(log: TransactionalLog) -> None:
    log.write(1, (b"a", b"1"))
    marker = log.end(1, commit=True)
    for _ in range(4):
        log.later()
    assert log.markers() == [marker]


def test_a_reader_of_committed_records_sees_the_same(log: TransactionalLog) -> None:
    log.write(1, (b"a", b"1"))
    log.write(2, (b"b", b"aborted"))
    log.end(1, commit=True)
    log.write(1, (b"c", b"1"))
    log.end(2, commit=False)
    log.write(2, (b"b", b"2"))
    log.end(1, commit=True)
    log.end(2, commit=True)
    assert log.committed_values() == [b"1", b"1", b"2"]
    log.compact()
    assert log.committed_values() == [b"1", b"1", b"2"]
    assert any(name.endswith(".txnindex") for name in log.names())
    log.restart()
    assert log.committed_values() == [b"1", b"1", b"2"]
    log.later()  # nothing of the aborted one was there any more
    assert not any(name.endswith(".txnindex") for name in log.names())


def test_a_transaction_over_several_segments(log: TransactionalLog) -> None:
    log.put((b"a", b"0"))
    for n in range(5):
        log.write(1, (b"a", b"%d" % n), (b"b%d" % n, b"x"))
        assert log.roll() is None
    log.end(1, commit=False)
    log.compact()
    assert log.data() == [(b"a", b"0")]
    assert log.committed_values() == [b"0"]


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.integers(0, 3),
            st.sampled_from([b"a", b"b", b"c", b"d"]),
            st.booleans(),
        ),
        st.tuples(st.just("end"), st.integers(1, 3), st.just(b""), st.booleans()),
        st.tuples(st.just("compact"), st.just(0), st.just(b""), st.booleans()),
        st.tuples(st.just("crash"), st.just(0), st.just(b""), st.booleans()),
    ),
    max_size=40,
)


@given(actions=actions, codec=st.integers(0, 4))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_interleaving(actions, codec: int) -> None:
    """At any time the committed state is that of the log before compaction."""
    records: list[tuple[int, bytes, bytes | None, int]] = []  # offset, key, value, producer
    decided: dict[int, bool] = {}  # offset -> committed
    pending: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory() as path, TransactionalLog(path) as log:
        log.create(segment_bytes=1024, delete_retention_ms=3_600_000)
        for number, (what, producer, key, flag) in enumerate(actions):
            if what == "write":
                value = b"%d" % number if flag else None
                if producer == 0:
                    offset = log.put((key, value), codec=codec)
                    decided[offset] = True
                else:
                    offset = log.write(producer, (key, value), codec=codec)
                    pending.setdefault(producer, []).append(offset)
                records.append((offset, key, value, producer))
            elif what == "end":
                log.end(producer, commit=flag)
                decided.update(dict.fromkeys(pending.pop(producer, []), flag))
            elif what == "compact":
                log.clock.advance(1800)
                log.compact(roll=flag)
            else:
                log.crash()
            stable = log.partition().last_stable_offset
            wanted = {k: v for at, k, v, _ in records if at < stable and decided.get(at)}
            state = {r.key: r.value for r in log.committed_records()}
            assert {k: v for k, v in state.items() if v is not None} == {
                k: v for k, v in wanted.items() if v is not None
            }
        log.check_indexes()
