"""Text for people."""

import pytest

from headwater.cli import output


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (None, "?")],
)
def test_sizes(size_bytes, shown):
    assert output.size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0015, "1.5 ms"), (42, "42 s"), (125, "2 min"), (7500, "2 h 5 min"), (90_000, "1 day 1 h")],
)
def test_durations(seconds, shown):
    assert output.duration(seconds) == shown


def test_tables_align_numbers_to_the_right():
    assert output.table(("name", ">lag"), [("a", 1), ("long name", 1000)]) == (
        "NAME        LAG\na             1\nlong name  1000"
    )
