"""How long writes wait between batches, and how much of the cores their batches use."""

import pytest

from headwater.pipelines.engine import pacing
from headwater.pipelines.engine.pacing import pause_after

BATCH_S = 0.01


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(pacing, "cores", lambda: 2)


def used(writes):
    """Cores that the batches of so many busy writes use."""
    return writes * BATCH_S / pause_after(BATCH_S, writes)


def test_one_write_waits_for_milliseconds():
    assert pause_after(BATCH_S, 1) < 0.02


def test_more_writes_wait_longer_and_use_less_in_all():
    pauses = [pause_after(BATCH_S, writes) for writes in range(1, 9)]
    assert pauses == sorted(pauses)
    assert used(8) < 0.33 < used(2) < used(1)


def test_none_waits_for_longer_than_is_needed_for_a_low_latency():
    assert pause_after(BATCH_S, 100) == pause_after(10.0, 8) == 0.3
