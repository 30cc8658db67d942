"""Which records a fetch gets, where the log has holes."""

from types import SimpleNamespace

import pytest

from headwater.broker.queues.delivering import Wanted, choose, take
from headwater.broker.queues.ordering import KeyOrder, Keys
from headwater.broker.queues.read_ahead import AHEAD_BATCHES, LocatedBatch, ReadAhead
from headwater.broker.queues.window import ACKNOWLEDGED, Span, Window

WANTED = Wanted("m", 500, 1 << 20, 500, False, 30.0, 2000)


def share_of(window: Window, order=None):
    log = SimpleNamespace(log_start_offset=0, pin=lambda part: True)
    return SimpleNamespace(window=window, order=order, log=log)


def ahead_of(from_offset: int, *spans: tuple[int, int]) -> ReadAhead:
    segment = SimpleNamespace(doomed=False, size_bytes=100_000)
    batches = [LocatedBatch(a, b, 100 * at, 100, False) for at, (a, b) in enumerate(spans)]
    return ReadAhead(segment, from_offset, False, batches, [b for _, b in spans])


def offsets(taken) -> list[int]:
    return [at for span in taken.acquired for at in range(span.first, span.last + 1)]


@pytest.mark.parametrize("by_key", [False, True])
def test_a_hole_inside_the_window_is_passed_over(by_key):
    """As after a crash: what compaction took is not stored as settled."""
    window = Window(5)
    window.restore(5, [Span(8, 9, ACKNOWLEDGED, 1)])
    order = None
    if by_key:
        order = KeyOrder(5)
        order.learn(Keys(5, 10, {}, [(5, 6)]))
    share = share_of(window, order)
    chosen = choose(share, 0.0, 10, WANTED)
    assert chosen is not None
    taken = take(share, ahead_of(5, (7, 9)), chosen, 10, 0.0, WANTED)
    assert offsets(taken) == [7]  # 8 and 9 are settled
    assert window.start_offset == 7


def test_a_hole_in_front_of_new_records_is_passed_over():
    window = Window(0)
    share = share_of(window)
    taken = take(share, ahead_of(0, (3, 4), (8, 9)), 0, 10, 0.0, WANTED)
    assert offsets(taken) == [3, 4, 8, 9]
    assert window.start_offset == 3


def test_bytes_end_in_front_of_a_batch_that_gives_nothing():
    window = Window(0)
    window.restore(0, [Span(2, 5, ACKNOWLEDGED, 1)])
    share = share_of(window)
    taken = take(share, ahead_of(0, (0, 1), (2, 5), (6, 9)), 0, 10, 0.0, WANTED)
    assert offsets(taken) == [0, 1]
    assert taken.part.size_bytes == 100
    assert choose(share, 0.0, 10, WANTED) == 6


def test_the_first_batch_comes_however_large_and_then_max_bytes_counts():
    share = share_of(Window(0))
    wanted = WANTED._replace(max_bytes=10)
    taken = take(share, ahead_of(0, (0, 1), (2, 3)), 0, 4, 0.0, wanted)
    assert offsets(taken) == [0, 1]


def test_what_one_walk_finds_is_not_looked_for_again():
    small = ahead_of(7, *((at, at) for at in range(7, 7 + AHEAD_BATCHES)))
    assert small.suffices(7, 10_000, 500, 1)
    assert not small.suffices(8, 10_000, 500, 1)  # from there another would find more
