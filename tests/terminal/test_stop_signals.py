"""SIGINT and SIGTERM end a command in time, whatever its main thread does."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

WAIT_S = 30.0
_ORDERLY = """
stop.wait()
print("ended in order", flush=True)
"""
# As inside of libpq: a call that a signal does not interrupt, so Python's handlers do not run.
_BLOCKED = """
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(128)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)
"""


@pytest.fixture
def command():
    started = []

    def start(limit_s, body):
        program = (
            "from headwater.terminal.stop_signals import stop_on_signals\n"
            f"stop = stop_on_signals({limit_s})\nprint('ready', flush=True)\n{body}"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_looks_at_the_event_ends_in_order(command, number):
    process = command(WAIT_S, _ORDERLY)
    process.send_signal(number)
    assert process.communicate(timeout=WAIT_S)[0] == "ended in order\n"
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_main_thread_that_is_blocked_in_a_library_is_ended_after_the_limit(command, number):
    process = command(0.1, _BLOCKED)
    process.send_signal(number)
    assert "something did not answer" in process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == 0


def test_a_second_signal_ends_a_blocked_command_at_once(command):
    process = command(10 * WAIT_S, _BLOCKED)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    assert process.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # in either order
