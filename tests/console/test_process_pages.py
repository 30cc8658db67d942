"""The processes of `headwater up` on their pages: restarted, paused, resumed; their logs."""

import json
import os

import pytest
from support.console.recorded_project import RecordedProject
from support.console.serving import serving

from headwater.console.project import logs
from headwater.console.project.logs import read_log
from headwater.supervisor import lock, requests
from headwater.supervisor.status_file import ChildStatus
from headwater.testing import InProcessBroker

CHILDREN = [
    ChildStatus("broker", "broker", "ready", pid=os.getpid()),
    ChildStatus("capture shop", "capture", "ready"),
    ChildStatus("pipelines", "pipelines", "stopped", reason="it is paused, as requested"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    directory = tmp_path_factory.mktemp("recorded")
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        recorded = RecordedProject(directory, broker.bootstrap)
        with serving(directory) as console:
            console.project = recorded
            yield console


@pytest.fixture
def browser(served):
    return served.browser()


@pytest.fixture
def sent(monkeypatch):
    """Signals to the supervisor, which is this process."""
    signals = []
    monkeypatch.setattr(lock, "send", lambda data_dir, number: signals.append(number) or 1)
    return signals


def test_processes_with_their_states(served, browser):
    assert browser.get("/cluster/processes.json").json["processes"] == []
    assert "headwater up -d" in browser.get("/cluster/processes").text
    with served.project.supervised(*CHILDREN):
        page = browser.get("/cluster/processes").text
        assert "it is paused, as requested" in page
        shown = browser.get("/cluster/processes.json").json["processes"]
        assert [child["name"] for child in shown] == ["broker", "capture shop", "pipelines"]


def test_a_restart_and_a_pause_are_asked_for_after_a_question(served, browser, sent):
    data_dir = served.project.directory / "data"
    with served.project.supervised(*CHILDREN):
        path = "/cluster/processes/"
        assert "Restart broker?" in browser.post(f"{path}restart", {"child": "broker"}).text
        assert sent == []
        for action, child in (("restart", "broker"), ("pause", "capture shop")):
            answer = browser.post(f"{path}{action}", {"child": child, "confirmed": "yes"})
            assert answer.status == 303
        assert browser.post(f"{path}resume", {"child": "pipelines"}).status == 303
        assert requests.taken(data_dir) == [
            ("broker", "restart"), ("capture shop", "pause"), ("pipelines", "resume"),
        ]  # fmt: skip
        assert len(sent) == 3


def test_processes_are_shown_while_no_broker_answers(tmp_path):
    with serving(tmp_path, broker__bootstrap="127.0.0.1:1") as console:
        assert console.browser().get("/cluster/processes").status == 200
        assert console.browser().get("/cluster/logs").status == 200


@pytest.mark.parametrize(
    ("action", "child", "status"),
    [("pause", "broker", 400), ("restart", "nobody", 404), ("explode", "broker", 404)],
)
def test_what_cannot_be_done_is_refused(served, browser, sent, action, child, status):
    with served.project.supervised(*CHILDREN):
        answer = browser.post(f"/cluster/processes/{action}", {"child": child, "confirmed": "yes"})
        assert answer.status == status
    assert sent == []
    assert browser.post("/cluster/processes/restart", {"child": "broker"}).status == 503


def event(number, child="capture shop", level="info", **more):
    return json.dumps(
        {"event": "log", "child": child, "at": 1e9 + number, "level": level, **more}
    ).encode()


def write_log(directory, *files):
    directory.mkdir(exist_ok=True)
    for name, lines in zip(("up.log.1", "up.log"), files, strict=True):
        (directory / name).write_bytes(b"".join(line + b"\n" for line in lines))


def test_the_newest_lines_of_both_files_first(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_BLOCK_BYTES", 50)  # a line is in several blocks
    older = [event(number, message=f"older {number}") for number in range(5)]
    newer = [event(number + 5, message="x" * 120 + f" {number}") for number in range(3)]
    write_log(tmp_path, older, [*newer, b"Traceback (most recent call last):"])
    shown = [line["text"].rsplit(" ", 1)[-1] for line in read_log(tmp_path)]
    assert shown == ["last):", "2", "1", "0", "4", "3", "2", "1", "0"]
    with (tmp_path / "up.log").open("ab") as file:
        file.write(b'{"event": "log", "mess')  # being written
    assert len(read_log(tmp_path)) == 9


def test_lines_by_child_by_words_and_by_level(tmp_path):
    lines = [
        event(1, message="Connected to shop.example"),
        event(2, "broker", "warning", message="slow disk"),
        event(3, "broker", message="ready, warning: none"),
        json.dumps({"event": "error", "error": "broken", "detail": "No disk", "hint": ""}).encode(),
    ]
    write_log(tmp_path, [], lines)

    def texts(**wanted):
        return [line["text"] for line in read_log(tmp_path, **wanted)]

    assert texts(child="broker") == ["ready, warning: none", "warning: slow disk"]
    assert texts(search="DISK") == ["error: broken\nNo disk", "warning: slow disk"]
    assert texts(search="shop connected") == ["Connected to shop.example"]
    assert texts(level="warning") == ["error: broken\nNo disk", "warning: slow disk"]
    assert texts(level="error") == ["error: broken\nNo disk"]


def test_a_long_log_shows_its_end(tmp_path):
    write_log(tmp_path, [], [event(number, message=f"m{number}") for number in range(1000)])
    shown = read_log(tmp_path)
    assert len(shown) == logs.MOST_LINES
    assert shown[0]["text"] == "m999"


def test_the_page_of_logs(served, browser):
    assert "There is no log" in browser.get("/cluster/logs").text
    data_dir = served.project.directory / "data"
    write_log(data_dir, [], [event(1, message="<b>no markup</b>"), event(2, message="other")])
    page = browser.get("/cluster/logs?search=markup").text
    assert "&lt;b&gt;no markup&lt;/b&gt;" in page
    assert "other" not in page
    (line,) = browser.get("/cluster/logs.json?search=markup").json["lines"]
    assert line["child"] == "capture shop"
