"""`headwater broker`: flags, the announcement, the end."""

import os
import pty
import signal
import subprocess

import pytest

from .conftest import COMMAND, environment, read_line, running_broker, stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_announces_itself_and_stops_when_asked(offline, tmp_path, number):
    with running_broker(tmp_path, "--metrics-listen", "127.0.0.1:0") as (process, ready):
        assert ready["pid"] == process.pid
        assert ready["data_dir"] == str(tmp_path)
        assert not ready["listen"].endswith(":0")
        assert not ready["metrics_listen"].endswith(":0")
        offline("topic", "create", "t", "-b", ready["listen"])
        assert stop(process, number) == 0


def test_settings_reach_the_broker(offline, tmp_path):
    options = ("--default-partitions", "3", "--topic-defaults", "retention.ms=1h")
    with running_broker(tmp_path, *options) as (_, ready):
        offline("topic", "create", "t", "-b", ready["listen"])
        (described,) = offline.json("topic", "describe", "t", "-b", ready["listen"])
    assert len(described["partitions"]) == 3
    assert described["configs"] == [
        {"name": "retention.ms", "value": "3600000", "source": "static_broker"}
    ]


def test_a_terminal_shows_what_to_try(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "broker", "--listen", "127.0.0.1:0", "--log-level", "error"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="dumb"),
        cwd=tmp_path,
    )
    os.close(theirs)
    shown = b""
    while b"Ctrl-C stops it" not in shown:
        shown += os.read(ours, 1000)
    assert stop(process, signal.SIGINT) == 0
    os.close(ours)
    text = shown.decode()
    assert text.startswith("headwater is ready at 127.0.0.1:")
    assert f"data in {tmp_path}/.headwater" in text
    assert "  echo hello | headwater produce greetings -b 127.0.0.1:" in text


def test_a_second_broker_on_the_same_data_is_refused(offline, tmp_path):
    with running_broker(tmp_path):
        error = offline.error("broker", "--listen", "127.0.0.1:0", "--data-dir", tmp_path)
    assert "Traceback" not in error
    assert str(tmp_path) in error


def test_a_data_directory_that_cannot_be_one(offline):
    (offline.cwd / "file").write_text("")
    for path in ("file", "file/below"):
        error = offline.error("broker", "--listen", "127.0.0.1:0", "--data-dir", path)
        assert "error: the broker cannot use its data directory\n" in error
        assert f"{offline.cwd}/file" in error
        assert "not a directory" in error
        assert "hint: --data-dir takes another one" in error
        assert "bug" not in error


@pytest.mark.parametrize(
    ("options", "is_hinted"), [((), True), (("--advertise", "me:9092"), False)]
)
def test_an_address_that_only_this_machine_can_use_is_said(offline, options, is_hinted):
    open_to_all = ("--allow-insecure-network", "true")
    process = offline.start("broker", "--listen", "0.0.0.0:0", *open_to_all, *options)
    assert "ready at 0.0.0.0:" in read_line(process)
    assert stop(process) == 0
    assert ("--advertise HOST:PORT" in process.stderr.read().decode()) is is_hinted


def test_a_network_is_not_served_without_asking_who_is_there(offline):
    error = offline.error("broker", "--listen", "0.0.0.0:0", code=2)
    reason = "0.0.0.0:0 can be reached from the network, and clients need not authenticate"
    assert f"error: {reason}" in error
    assert 'hint: set authentication = "sasl" or "tls"' in error
    assert not (offline.cwd / ".headwater").exists()


def test_a_port_in_use_is_an_error_and_no_traceback(offline, tmp_path):
    with running_broker(tmp_path) as (_, ready):
        error = offline.error("broker", "--listen", ready["listen"], "--data-dir", "other")
    assert "error: the broker cannot listen\n" in error
    assert "address already in use" in error
    assert "hint: broker.listen or --listen names another address" in error


def test_wrong_flags_are_wrong_usage(offline):
    error = offline.error("broker", "--listen", "nowhere", "--node-id", "x", code=2)
    assert error.startswith("error: 2 mistakes in the configuration\n  flag --listen: ")
