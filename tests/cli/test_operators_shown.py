"""What `headwater pipeline status` shows of operators."""

import time

import pytest

from headwater.cli.commands.flow.pipeline import _show_operator
from headwater.inspect.pipelines import PipelineState, WriteState

REPORTED = {
    "state_rows": 1200,
    "state_bytes": 2048,
    "watermark_us": 1_767_225_600_000_000,
    "events": 400,
    "late": 7,
    "future": 0,
    "without_time": 1,
    "late_share": 0.02,
    "late_alert": False,
}


def shown(reported, capsys):
    write = WriteState("cache/sums", {"operators": {"tumbling-1": reported}}, [], None, {}, 0)
    (found,) = write.operators.values()
    _show_operator("tumbling-1", found)
    return write, capsys.readouterr().out


def test_state_watermark_and_counts(capsys, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0 + 90)
    write, text = shown(REPORTED, capsys)
    assert [line.strip() for line in text.splitlines()] == [
        "tumbling-1",
        "state  1,200 rows, 2.0 KiB",
        "watermark  2026-01-01T00:00:00.000Z (1 min behind)",
        "of 400 rows  7 late, 1 without time",
    ]
    assert write.as_json()["operators"]["tumbling-1"]["watermark_gap_s"] == 90


def test_a_watermark_that_is_ahead_of_the_clock(capsys, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_767_225_600.0 - 30)
    assert "(30 s ahead)" in shown(REPORTED, capsys)[1]


def test_whom_time_waits_for(capsys):
    slowest = {"name": "partition 1 of views", "behind_s": 7200.0}
    _, text = shown(REPORTED | {"slowest": slowest}, capsys)
    assert "waits for  partition 1 of views, 2 h 0 min behind the furthest" in text
    _, text = shown(REPORTED | {"slowest": slowest | {"behind_s": 2.0}}, capsys)
    assert "waits for" not in text


def test_changes_are_not_among_the_rows_that_were_judged(capsys):
    _, text = shown(REPORTED | {"not_events": 3}, capsys)
    assert "of 400 rows  7 late, 1 without time\n" in text
    assert "3 rows skipped: changes and deletes, no events" in text


def test_events_that_wait_for_a_table_or_find_no_row(capsys):
    reported = {"state_rows": 9, "state_bytes": 9, "waiting": 4, "unmatched": 2, "without_time": 1}
    _, text = shown(reported, capsys)
    assert [line.strip() for line in text.splitlines()] == [
        "tumbling-1",
        "state  9 rows, 9 B",
        "1 without time",
        "events  4 waiting for the table, 2 without a row",
    ]


def test_stored_queries_and_their_matches(capsys):
    counters = {"queries": 7, "unindexed_queries": 2, "refused_queries": 1, "matches": 3}
    _, text = shown({"state_rows": 9, "state_bytes": 9} | counters, capsys)
    assert "queries  7 stored, 1 refused, 2 decided for every document, 3 matches" in text


def test_metrics_that_are_not_reported_are_not_shown(capsys):
    _, text = shown({"state_rows": 0, "state_bytes": 0, "watermark_us": None}, capsys)
    assert "watermark" not in text
    assert "late" not in text


@pytest.mark.parametrize("is_on", [False, True])
def test_an_alert_is_said_and_makes_it_not_well(capsys, is_on):
    write, text = shown(REPORTED | {"late_alert": is_on}, capsys)
    assert ("2 % of the last ten minutes' rows were not processed" in text) == is_on
    pipeline = PipelineState("p", "p.py", True, False, None, "", {}, {"tumbling-1": 8}, [write])
    assert pipeline.is_well is not is_on
    assert pipeline.as_json()["late_rows"] == {"tumbling-1": 8}
