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


def test_a_shell_that_does_not_find_the_program_is_told_where_it_is(monkeypatch, tmp_path):
    program = tmp_path / "headwater"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "broker"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert output.path_to_type() == [f'export PATH={tmp_path}:"$PATH"']
    monkeypatch.setenv("PATH", f"/usr/bin:{tmp_path}")
    assert output.path_to_type() == []
