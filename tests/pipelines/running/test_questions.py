"""A running process is asked, and no Spark is started; a wrong key is rejected before either."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from headwater.errors import NotReady, PipelineError, UsageError
from headwater.pipelines.lineage import tracing
from headwater.pipelines.lineage.keys import check_key
from headwater.pipelines.lineage.tracing import Cause, Trace, Untraced
from headwater.pipelines.running import questions, status
from headwater.pipelines.running.questions import Questions, ask
from headwater.sinks.contract import Position

QUESTION = {"write": "cache/orders", "key": {"id": "1"}, "limit": 20}
TRACE = Trace(
    "cache/orders",
    Position("query", 1, {"orders": {0: 5}}),
    {"id": 1},
    [Cause("orders", 0, 4, None, "u", {"id": 1}, "enrich-1: event")],
    1,
    [Untraced("clicks", "the key is computed on the way")],
    True,
)


@dataclass
class Asked:
    name: str
    environment: SimpleNamespace
    spark: mock.Mock = field(default_factory=mock.Mock)


@pytest.fixture
def running(tmp_path):
    """The rounds of a process that runs the pipeline `shop`."""
    status.write(tmp_path, "shop", {"cache/orders": {"state": "running"}})
    found = Questions([Asked("shop", SimpleNamespace(state_dir=tmp_path))])
    stop = threading.Event()

    def rounds():
        while not stop.wait(0.01):
            found.look()

    thread = threading.Thread(target=rounds)
    thread.start()
    yield tmp_path
    stop.set()
    thread.join()
    status.ended(tmp_path, "shop")


def test_the_running_process_answers(running, monkeypatch):
    asked = []

    def why(pipeline, write, key, *, limit):
        asked.append((pipeline.name, write, key, limit))
        return TRACE

    monkeypatch.setattr(tracing, "why", why)
    assert ask(running, "shop", QUESTION) == TRACE.as_json()
    assert asked == [("shop", "cache/orders", {"id": "1"}, 20)]
    assert list(Path(running / "shop" / "questions").iterdir()) == []


def test_one_that_its_asker_has_left_is_given_up(tmp_path, monkeypatch):
    begun, cancelled = threading.Event(), threading.Event()
    pipeline = Asked("shop", SimpleNamespace(state_dir=tmp_path))
    groups = []
    pipeline.spark.sparkContext.setJobGroup = lambda group, *_, **__: groups.append(group)
    pipeline.spark.sparkContext.cancelJobGroup = lambda group: (
        groups.append(group), cancelled.set()
    )  # fmt: skip

    def why(*args, **more):
        begun.set()
        assert cancelled.wait(60)
        raise ValueError("the job was cancelled")

    monkeypatch.setattr(tracing, "why", why)
    asked = Questions([pipeline])
    directory = tmp_path / "shop" / "questions"
    directory.mkdir(parents=True)
    (directory / "1.question").write_text("""{"write": "t", "key": {}, "limit": 1}""")
    asked.look()
    assert begun.wait(60)
    asked.look()
    assert not cancelled.is_set()  # its asker waits
    (directory / "1.taken").unlink()
    asked.look()
    assert groups == ["1", "1"]
    asked._thread.join()
    assert list(directory.iterdir()) == []


def test_what_was_left_behind_is_removed_at_the_start(tmp_path):
    directory = tmp_path / "shop" / "questions"
    directory.mkdir(parents=True)
    for suffix in ("question", "taken", "answer", "tmp"):
        (directory / f"1.{suffix}").write_text("{}")
    Questions([Asked("shop", SimpleNamespace(state_dir=tmp_path))])
    assert list(directory.iterdir()) == []


def test_what_goes_wrong_there_is_raised_here(running, monkeypatch):
    raised = iter(
        [NotReady("it is not written", hint="wait"), UsageError("a key"), ValueError("broken")]
    )

    def why(*args, **more):
        raise next(raised)

    monkeypatch.setattr(tracing, "why", why)
    with pytest.raises(NotReady, match="it is not written") as error:
        ask(running, "shop", QUESTION)
    assert error.value.hint == "wait"
    with pytest.raises(UsageError, match="a key"):
        ask(running, "shop", QUESTION)
    with pytest.raises(PipelineError, match="ValueError"):
        ask(running, "shop", QUESTION)


def test_who_runs_nothing_or_does_not_listen_is_not_waited_for(tmp_path, monkeypatch):
    assert ask(tmp_path, "shop", QUESTION) is None
    monkeypatch.setattr(questions, "_TAKEN_WITHIN_S", 0.1)
    status.write(tmp_path, "shop", {"cache/orders": {"state": "running"}})
    try:
        assert ask(tmp_path, "shop", QUESTION) is None
    finally:
        status.ended(tmp_path, "shop")
    assert list((tmp_path / "shop" / "questions").iterdir()) == []


@pytest.mark.parametrize(
    ("kinds", "key", "message"),
    [
        ({}, {"id": "1"}, "has no key"),
        ({"id": "bigint"}, {"no": "1"}, "the key of cache/t is id"),
        ({"id": "bigint"}, {}, "the key of cache/t is id"),
        ({"id": "bigint", "day": "date"}, {"id": "1"}, "the key of cache/t is id, day"),
        ({"id": "bigint"}, {"id": "one"}, "'one' is no bigint, as id is"),
        ({"id": "tinyint"}, {"id": "128"}, "'128' is no tinyint"),
        ({"id": "decimal(10,2)"}, {"id": "1,5"}, "is no decimal"),
        ({"id": "date"}, {"id": "someday"}, "is no date"),
        ({"id": "timestamp"}, {"id": "soon"}, "is no timestamp"),
        ({"id": "bigint"}, {"id": " -1"}, None),
        ({"id": "decimal(10,2)"}, {"id": "1.5"}, None),
        ({"id": "date"}, {"id": "2026-1-2"}, None),
        ({"id": "timestamp"}, {"id": "2026-01-01T00:00Z"}, None),
        ({"id": "string"}, {"id": "anything"}, None),
        ({"id": ""}, {"id": "anything"}, None),
    ],
)
def test_keys_that_cannot_be(kinds, key, message):
    if message is None:
        check_key("cache/t", kinds, key)
    else:
        with pytest.raises((UsageError, PipelineError), match=message.replace("(", r"\(")):
            check_key("cache/t", kinds, key)
