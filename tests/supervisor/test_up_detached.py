"""`headwater up -d`, `down`, `restart`, `logs`: a supervisor without a terminal."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from support.supervisor.up_harness import TIMEOUT_S, Project, environment, running, wait_until

from headwater.cli.commands.project import logs, restart
from headwater.errors import UsageError
from headwater.supervisor import lock, log_file, requests, status_file

MISTAKE = 'metrics_listen = "192.0.2.1:1"\nallow_insecure_network = true'  # seen by the child only
HEADWATER = [sys.executable, "-m", "headwater.cli.main"]


def headwater(project, *arguments):
    return subprocess.run(
        [*HEADWATER, *arguments],
        cwd=project.directory, env=environment(), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    yield project
    headwater(project, "down")
    assert project.is_clean()


def child_of(project, name):
    (found,) = (
        child for child in status_file.read(project.data_dir).children if child.name == name
    )
    return found


def test_it_returns_when_everything_is_ready_and_down_ends_all_of_it(project):
    project.with_capture()
    up = headwater(project, "up", "-d")
    assert up.returncode == 0, up.stderr
    assert f"broker: ready at {project.address}\n" in up.stdout
    assert "capture shop: ready" in up.stdout
    assert "everything is ready" in up.stdout
    state = status_file.read(project.data_dir)
    assert all(child.state == status_file.READY for child in state.children)
    assert os.getsid(state.pid) == state.pid, "a session of its own: no terminal's end reaches it"
    status = json.loads(headwater(project, "status", "--json").stdout)
    assert status["up"]["log"] == str(project.data_dir / "up.log")
    assert (project.data_dir / "up.log").stat().st_mode & 0o777 == 0o600

    down = headwater(project, "down")
    assert down.returncode == 0, down.stderr
    assert down.stdout == f"process {state.pid} and all of its children have ended\n"
    assert project.is_clean()
    again = headwater(project, "down")
    assert (again.returncode, again.stdout) == (0, "")
    assert "does not run" in again.stderr


def test_a_second_one_is_refused(project):
    ready = json.loads(headwater(project, "up", "-d", "--json").stdout)
    assert ready["ready"]
    second = headwater(project, "up", "-d")
    assert second.returncode == 1
    assert "error: `headwater up` runs already\n" in second.stderr
    assert str(ready["pid"]) in second.stderr
    assert status_file.read(project.data_dir).pid == ready["pid"]


def test_a_child_that_fails_is_the_reason_that_it_is_not_ready(project):
    project.with_capture(MISTAKE)
    up = headwater(project, "up", "-d")
    assert up.returncode == 3
    assert "error: capture shop has failed\n" in up.stderr
    assert "capture.shop.metrics_listen cannot be bound: 192.0.2.1" in up.stderr
    assert "`headwater down` stops them" in up.stderr
    assert child_of(project, "capture shop").state == status_file.FAILED


def test_what_takes_too_long_is_named(project):
    up = headwater(project, "up", "-d", "--timeout", "1ms")
    assert up.returncode == 3
    assert "not everything is ready after 0.001 s" in up.stderr
    wait_until(
        lambda: (state := status_file.read(project.data_dir)) and state.children, "its status"
    )


def test_a_failure_after_the_parent_has_left_is_in_the_log_and_in_the_status(project):
    other = lock.Lock.take(project.data_dir, wait_s=0.0)
    try:
        headwater(project, "up", "-d", "--timeout", "1ms")
        reason = f"process {os.getpid()} supervises {project.data_dir}"
        wait_until(lambda: log_file.last_error(project.data_dir), "the error in the log")
    finally:
        other.release()
    shown = headwater(project, "logs", "up").stdout
    assert " up | error: `headwater up` runs already\n" in shown
    assert f" up | {reason}\n" in shown
    status = headwater(project, "status")
    assert status.returncode == 3
    assert f"`headwater up -d` has failed: `headwater up` runs already: {reason}" in status.stderr

    assert headwater(project, "up", "-d").returncode == 0
    assert headwater(project, "down").returncode == 0
    assert log_file.last_error(project.data_dir) is None


def test_a_wrong_configuration_starts_nothing(tmp_path):
    project = Project(tmp_path)
    project.file.write_text("[broker]\nlisten = 1\n")
    up = headwater(project, "up", "-d")
    assert up.returncode == 2
    assert not project.data_dir.exists()


def test_one_child_is_restarted_and_the_others_are_left_alone(project):
    project.with_capture()
    assert headwater(project, "up", "-d").returncode == 0
    broker, capture = child_of(project, "broker"), child_of(project, "capture shop")
    done = headwater(project, "restart", "shop", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["child"] == "capture shop"
    now = child_of(project, "capture shop")
    assert now.pid == json.loads(done.stdout)["pid"] != capture.pid
    assert (now.state, now.restarts) == (status_file.READY, capture.restarts + 1)
    assert child_of(project, "broker").pid == broker.pid
    assert not list(project.data_dir.glob("up-restart-*"))

    # Paused, it stays so, also while another is restarted; the broker cannot be paused.
    for name in ("capture shop", "broker"):
        assert requests.ask(project.data_dir, name, requests.PAUSE)
    paused = wait_until(
        lambda: (found := child_of(project, "capture shop")).state == status_file.STOPPED and found,
        "the pause",
    )
    assert (paused.pid, paused.reason) == (None, "it is paused, as requested")
    assert child_of(project, "broker").pid == broker.pid
    assert requests.ask(project.data_dir, "capture shop", requests.RESUME)
    wait_until(
        lambda: child_of(project, "capture shop").state == status_file.READY, "the capture again"
    )

    unknown = headwater(project, "restart", "brokr")
    assert unknown.returncode == 2
    assert "did you mean broker?" in unknown.stderr


def test_one_that_has_failed_is_tried_again_at_once(project):
    project.with_capture(MISTAKE)
    assert headwater(project, "up", "-d").returncode == 3
    before = child_of(project, "capture shop")
    done = headwater(project, "restart", "capture shop")
    assert done.returncode == 3, "the mistake is still there"
    assert child_of(project, "capture shop").restarts > before.restarts


def test_all_of_it_is_restarted(project):
    first = json.loads(headwater(project, "up", "-d", "--json").stdout)
    done = headwater(project, "restart", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pid"] == status_file.read(project.data_dir).pid != first["pid"]


def test_one_in_the_foreground_is_stopped_but_not_restarted_by_others(tmp_path):
    project = Project(tmp_path)
    with running(project) as up:
        up.wait_ready()
        assert "was not started by `headwater up -d`" in headwater(project, "restart").stderr
        assert headwater(project, "restart", "broker").returncode == 0
        assert "there is no log" in headwater(project, "logs").stderr
        assert headwater(project, "down").returncode == 0
        assert up.end() == 0


def test_logs_of_all_of_one_and_as_they_come(project):
    project.with_capture()
    assert headwater(project, "up", "-d").returncode == 0
    assert " broker | ready, " in headwater(project, "logs").stdout
    assert " up | everything is ready\n" in headwater(project, "logs", "up").stdout
    of_capture = headwater(project, "logs", "shop").stdout
    assert " capture shop | ready" in of_capture
    assert " broker | " not in of_capture
    assert len(headwater(project, "logs", "-n", "2").stdout.splitlines()) == 2
    events = [json.loads(line) for line in headwater(project, "logs", "--json").stdout.splitlines()]
    assert {"child", "ready"} <= {event["event"] for event in events}

    command = [*HEADWATER, "logs", "broker", "-f", "-n", "0"]
    with subprocess.Popen(
        command, cwd=project.directory, env=environment(), stdout=subprocess.PIPE, text=True
    ) as follower:
        found = threading.Event()

        def read() -> None:
            for line in follower.stdout:
                if " broker | ready" in line:
                    found.set()

        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_until(lambda: _restarted(project) and found.wait(2.0), "a line that came since")
        finally:
            follower.kill()
            reader.join()


def _restarted(project):
    return headwater(project, "restart", "broker").returncode == 0


def test_a_pid_that_belongs_to_another_process_is_not_stopped(tmp_path):
    """The supervisor was killed; its pid has been given to a process that has not the lock."""
    taken = lock.Lock.take(tmp_path, wait_s=0.0)
    with subprocess.Popen(["sleep", "1000"]) as other:
        os.pwrite(taken.fd, f"{other.pid}\n".ljust(20).encode(), 0)
        try:
            assert lock.send(tmp_path, signal.SIGTERM) is None
            assert other.poll() is None
        finally:
            other.kill()
    taken.release()
    assert lock.send(tmp_path, signal.SIGTERM) is None


def test_the_log_is_bounded_and_has_whole_lines(tmp_path):
    code = (
        "import sys; from pathlib import Path; from headwater.supervisor.log_file import LogFile\n"
        "log = LogFile(Path(sys.argv[1]), max_bytes=4096)\n"
        "for number in range(2000):\n"
        "    log.put(f'line {number} {20 * chr(120)}\\n'.encode())\n"
        "log.close()\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=TIMEOUT_S)
    older, newer = log_file.files_of(tmp_path)
    assert max(older.stat().st_size, newer.stat().st_size) <= 4096
    lines = (older.read_text() + newer.read_text()).splitlines()
    assert lines[-1].startswith("line 1999 ")
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == [*range(numbers[0], 2000)]


def test_a_child_is_found_by_its_name_before_a_short_one():
    children = [
        status_file.ChildStatus(name, name.partition(" ")[0])
        for name in ("broker", "capture pipelines", "pipelines", "capture shop")
    ]
    running_ones = status_file.SupervisorStatus(1, 0.0, False, children)
    assert restart._child(running_ones, "pipelines").name == "pipelines"
    assert restart._child(running_ones, "shop").name == "capture shop"
    with pytest.raises(UsageError, match="has no child"):
        restart._child(running_ones, "")


def test_the_log_goes_on_in_a_new_file_when_the_old_one_was_removed(tmp_path):
    """Also for those who follow it meanwhile."""
    path = tmp_path / log_file.FILE_NAME
    tail = logs._Tail(path)
    assert list(tail.lines()) == []
    path.write_bytes(b"one\n")
    assert list(tail.lines()) == [b"one"]
    program = (
        "import os, sys; from pathlib import Path\n"
        "from headwater.supervisor.log_file import LogFile\n"
        "log = LogFile(Path(sys.argv[1]), max_bytes=100)\n"
        "for number in range(9):\n"
        "    log.put(b'x' * 60 + b'\\n')\n"
        "    if number == 4: os.unlink(log.path)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=environment())
    assert path.read_bytes().endswith(b"x\n")
    assert any(line.endswith(b"x") for line in tail.lines())
    tail._file.close()


def test_down_ends_it_although_its_configuration_has_become_wrong(project):
    """But not where the directory itself cannot be read from it."""
    assert headwater(project, "up", "-d").returncode == 0
    file = project.directory / "headwater.toml"
    text = file.read_text()
    file.write_text("[broker\n")
    assert headwater(project, "down").returncode == 2
    file.write_text(text + "\n[nonsense]\nx = 1\n")
    assert headwater(project, "status").returncode == 2
    assert headwater(project, "logs", "-n", "1").returncode == 0
    down = headwater(project, "down")
    assert down.returncode == 0, down.stderr
    assert project.is_clean()
    file.write_text(text)
