"""What `headwater up` promises, with a real broker and a real capture. No Spark here: a pipeline's
file is loaded before Spark is started, and can do what a test wants.
"""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import SUPPORT
from support.supervisor.up_harness import UP, Project, environment, running, wait_until
from tiers import long

from headwater.supervisor import lock, status_file

HURRIED_UP = [sys.executable, str(SUPPORT / "supervisor" / "hurried_up.py")]

STARTS_A_PROCESS_AND_HANGS = """
import subprocess, sys, time
deaf = "trap '' TERM; exec sleep 1000"
sleeper = subprocess.Popen(["sh", "-c", deaf], start_new_session=True)
print("sleeper", sleeper.pid, flush=True)
time.sleep(1000)
"""
DOES_NOT_END = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(1000)
"""


def is_there(pid: int) -> bool:
    """Whether it is the sleeper that was started. While its shell becomes `sleep` (execve), and
    when it has ended, the command line is empty.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"sleep" in command or (not command and state not in "ZX")


def test_starts_what_is_asked_for_and_stops_it_in_order(tmp_path):
    project = Project(tmp_path).with_capture()
    with running(project) as up:
        up.wait_ready()
        status = status_file.read(project.data_dir)
        assert status.pid == up.process.pid
        assert [(child.name, child.state) for child in status.children] == [
            ("broker", "ready"),
            ("capture shop", "ready"),
        ]
        assert status.children[0].address == project.address
        assert up.stop() == 0
        ready = [event["name"] for event in up.events if event.get("state") == "ready"]
        assert ready == ["broker", "capture shop"]
        stopped = [event["name"] for event in up.events if event.get("state") == "stopped"]
        assert stopped == ["capture shop", "broker"]
    assert project.is_clean()
    assert status_file.read(project.data_dir) is None
    assert not (project.data_dir / "up.json").exists()


def test_no_other_user_can_read_what_it_makes_or_hold_its_locks(tmp_path):
    project = Project(tmp_path)
    with running(project) as up:
        up.wait_ready()
        made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in project.data_dir.iterdir()}
        assert stat.S_IMODE(project.data_dir.stat().st_mode) == 0o700
        assert {"up.lock", "up.json", "lock"} <= set(made)
        sockets = {"control"}  # to write to one, its owner's right is needed
        assert {name: f"{mode:o}" for name, mode in made.items() if mode & 0o077
                and name not in sockets} == {}  # fmt: skip
        assert up.stop() == 0


def test_a_lock_that_an_earlier_version_left_open_to_others_is_closed_to_them(tmp_path):
    (tmp_path / lock.UP_LOCK).touch(mode=0o644)
    taken = lock.Lock.take(tmp_path, wait_s=0.0)
    assert stat.S_IMODE((tmp_path / lock.UP_LOCK).stat().st_mode) == 0o600
    taken.release()


def test_a_second_one_is_refused_with_the_first_ones_pid(tmp_path):
    project = Project(tmp_path)
    with running(project) as up:
        up.wait_ready()
        elsewhere = [*UP, "--json", "--config", str(project.file)]
        second = subprocess.run(
            elsewhere, capture_output=True, cwd=tmp_path.parent, env=environment(), check=False
        )
        assert second.returncode == 1
        error = json.loads(second.stderr)
        assert error["error"] == "`headwater up` runs already"
        assert str(up.process.pid) in error["detail"]
        assert up.process.poll() is None
        assert up.stop() == 0


@long
def test_a_child_that_is_killed_is_started_again_and_the_reason_reported(tmp_path):
    project = Project(tmp_path).with_capture()
    with running(project) as up:
        up.wait_ready()
        for name in ("capture shop", "broker"):
            os.kill(up.pid_of(name), signal.SIGKILL)
            ended = up.wait_for(event="child", name=name, state="paused")
            assert ended["reason"].startswith("it was ended by SIGKILL")
            again = up.wait_for(event="child", name=name, state="ready")
            assert again["restarts"] == 1
            assert again["reason"].startswith("it was ended by SIGKILL")
        assert status_file.read(project.data_dir).children[0].address == project.address
        assert up.stop() == 0
    assert project.is_clean()


@long
def test_a_free_port_is_reused_and_passed_to_all(tmp_path):
    project = Project(tmp_path).with_capture()
    project.file.write_text(project.file.read_text().replace(project.address, "127.0.0.1:0"))
    with running(project) as up:
        up.wait_ready()
        address = status_file.read(project.data_dir).children[0].address
        os.kill(up.pid_of("broker"), signal.SIGKILL)
        up.wait_for(event="child", name="broker", state="paused")
        assert up.wait_for(event="child", name="broker", state="ready")["address"] == address
        assert up.stop() == 0


def test_a_mistake_is_reported_once_and_retried_when_it_is_fixed(tmp_path):
    wrong = 'metrics_listen = "192.0.2.1:1"\nallow_insecure_network = true'
    project = Project(tmp_path).with_capture(wrong)
    with running(project) as up:
        failed = up.wait_for(event="child", name="capture shop", state="failed")
        assert failed["reason"].startswith("capture.shop.metrics_listen cannot be bound: 192.0.2.1")
        project.file.write_text(project.file.read_text().replace("192.0.2.1:1", "127.0.0.1:0"))
        up.wait_ready()
        assert up.states_of("capture shop").count("failed") == 1
        assert up.stop() == 0


def test_a_broker_that_does_not_know_us_is_ready(tmp_path):
    """Users are created once it runs."""
    login = '[client]\nusername = "nobody"\npassword = "wrong"'
    project = Project(tmp_path, login)
    project.file.write_text(
        project.file.read_text().replace("[broker]", '[broker]\nauthentication = "sasl"')
    )
    with running(project) as up:
        up.wait_ready()
        assert up.stop() == 0


def test_status_shows_a_broker_that_does_not_start(tmp_path):
    project = Project(tmp_path).with_capture().with_pipeline("orders", "")
    project.file.write_text(
        '[broker]\ntls_cert = "none.pem"\ntls_key = "none.key"\n'
        + project.file.read_text().partition("\n")[2]
    )
    with running(project) as up:
        failed = up.wait_for(event="child", name="broker", state="failed")
        status = [*UP[:-1], "status"]
        shown = subprocess.run(
            status, capture_output=True, cwd=tmp_path, env=environment(), check=False, text=True
        )
        assert shown.returncode == 3, shown.stderr
        assert "0 of 3 ready" in shown.stdout
        assert failed["reason"][:30] in shown.stdout
        status_json = subprocess.run(
            [*status, "--json"], capture_output=True, cwd=tmp_path, env=environment(), check=False
        )
        children = json.loads(status_json.stdout)["up"]["children"]
        assert [child["state"] for child in children] == ["failed", "waiting", "waiting"]
        assert up.stop() == 0
    assert up.states_of("capture shop") == ["stopped"]
    assert up.states_of("pipelines") == ["stopped"]  # never started, not even for a moment


@long
def test_an_error_of_a_child_comes_with_its_hint(tmp_path):
    project = Project(tmp_path).with_capture()
    project.database.write_bytes(b"this is no database at all, whatever its name says")
    with running(project) as up:
        ended = up.wait_for(event="child", name="capture shop", state="paused")
        assert "database" in ended["reason"]
        assert "Traceback" not in json.dumps(up.events)
        again = up.wait_for(event="child", name="capture shop", state="paused")
        assert again["restarts"] >= 1
        assert again["pause_s"] == 2 * ended["pause_s"]
        assert up.stop() == 0


@long
def test_nothing_outlives_it_when_it_is_killed(tmp_path):
    project = Project(tmp_path).with_capture()
    project.with_pipeline("stuck", STARTS_A_PROCESS_AND_HANGS)
    with running(project, HURRIED_UP) as up:
        line = up.wait_for(event="log", child="pipelines")["message"]
        sleeper = int(line.split()[1])
        assert is_there(sleeper)
        up.send(signal.SIGKILL)
        up.end()

        def is_clean():
            is_free = not lock.is_held(project.data_dir)
            assert not (is_free and is_there(sleeper)), "the lock goes with the last process"
            return project.is_clean()

        wait_until(is_clean, "the end of everything")
        assert not is_there(sleeper)


def test_nothing_outlives_it_when_its_guard_is_killed_with_it(tmp_path):
    """The next one on that directory ends what is left."""
    project = Project(tmp_path).with_pipeline("stuck", STARTS_A_PROCESS_AND_HANGS)
    with running(project) as up:
        sleeper = int(up.wait_for(event="log", child="pipelines")["message"].split()[1])
        children = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text()
        guards = [
            pid
            for pid in map(int, children.split())
            if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        for pid in guards:
            os.kill(pid, signal.SIGSTOP)  # so that it is not started again
        up.send(signal.SIGKILL)
        up.end()
        for pid in guards:
            os.kill(pid, signal.SIGKILL)
        assert len(guards) == 1
        assert is_there(sleeper)
        (tmp_path / "stuck.py").write_text("import time\ntime.sleep(1000)\n")
        with running(project) as next_up:
            next_up.wait_for(event="child", name="broker", state="ready")
            assert not is_there(sleeper)
            assert next_up.stop() == 0
    assert project.is_clean()


def test_a_guard_that_is_killed_is_started_again(tmp_path):
    project = Project(tmp_path).with_capture()
    with running(project) as up:
        up.wait_ready()

        def guards():
            place = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children")
            found = map(int, place.read_text().split())
            return [p for p in found if b"guard.py" in Path(f"/proc/{p}/cmdline").read_bytes()]

        (first,) = guards()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: guards() not in ([], [first]), "another guard")
        up.send(signal.SIGKILL)
        up.end()
        wait_until(project.is_clean, "the end of everything")


def test_what_does_not_end_is_killed_after_its_time(tmp_path):
    project = Project(tmp_path).with_capture().with_pipeline("deaf", DOES_NOT_END)
    with running(project, HURRIED_UP) as up:
        up.wait_for(event="log", message="deaf")
        assert up.stop() == 0
        said = [event["message"] for event in up.events if event["event"] == "note"]
        assert said == ["pipelines was killed: it did not end in time"]
        stopped = [event["name"] for event in up.events if event.get("state") == "stopped"]
        assert stopped == ["capture shop", "pipelines", "broker"]
    assert project.is_clean()


def test_the_second_signal_kills_at_once(tmp_path):
    project = Project(tmp_path).with_pipeline("deaf", DOES_NOT_END)
    with running(project) as up:
        up.wait_for(event="log", message="deaf")
        up.send(signal.SIGINT)
        up.wait_for(event="child", name="pipelines", state="stopping")
        up.send(signal.SIGINT)
        assert up.end() == 0
        assert not [event for event in up.events if event["event"] == "note"], (
            "its time was not over"
        )
    assert project.is_clean()


def test_a_signal_while_it_starts_stops_it(tmp_path):
    project = Project(tmp_path).with_capture().with_pipeline("deaf", DOES_NOT_END)
    with running(project) as up:
        up.wait_for(event="child", name="broker", state="starting")
        assert up.stop() == 0
        for name in ("capture shop", "pipelines"):
            assert up.states_of(name) == ["stopped"], "what waited for the broker never began"
    assert project.is_clean()


@long
def test_it_ends_in_order_when_its_output_is_not_read(tmp_path):
    project = Project(tmp_path).with_capture()
    reader, writer = os.pipe()
    process = subprocess.Popen(UP, stdout=writer, cwd=tmp_path, env=environment())
    os.close(writer)
    try:
        assert os.read(reader, 1)
        os.close(reader)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert project.is_clean()


def test_a_wrong_configuration_starts_nothing_and_names_every_mistake(tmp_path):
    (tmp_path / "headwater.toml").write_text("[pipelines.a]\nfile = 'x'\n[broker]\nlisten = 1\n")
    result = subprocess.run(
        UP, capture_output=True, cwd=tmp_path, env=environment(), check=False, text=True
    )
    assert result.returncode == 2
    assert "headwater.toml:1: unknown section [pipelines.a]; expected [pipeline.a]" in result.stderr
    assert "headwater.toml:4: broker.listen = 1; expected an address" in result.stderr
    assert not (tmp_path / ".headwater").exists()


@long
def test_text_for_people_has_the_name_before_every_line_and_says_what_to_try(tmp_path):
    project = Project(tmp_path).with_capture()
    process = subprocess.Popen(
        UP, stdout=subprocess.PIPE, cwd=tmp_path, env=environment(), text=True
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "Ctrl-C stops everything" in line:
                break
        process.terminate()
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    text = "\n".join(lines)
    assert f"broker       | ready at {project.address} after " in text
    assert "up           | everything is ready after " in text
    assert "  headwater status" in text
    assert "capture shop | stopped" in rest
    assert "\x1b" not in text + rest


@pytest.mark.parametrize("missing", ["never started", "killed"])
def test_no_status_is_reported_of_one_that_does_not_run(tmp_path, missing):
    status_file.write(tmp_path, status_file.SupervisorStatus(1, 0.0, False, []))
    if missing == "killed":
        lock.Lock.take(tmp_path, wait_s=0).release()
    assert status_file.read(tmp_path) is None
