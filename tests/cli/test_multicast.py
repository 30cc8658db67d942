"""`headwater multicast send | receive` on loopback, also through a network that loses packets."""

import json
import os
import secrets
import signal
import subprocess
import threading

import pytest
from support.direct.lossy_relay import LossyRelay
from support.direct.topic_reading import Reading
from tiers import count

from .conftest import COMMAND, TIMEOUT_S, read_line


@pytest.fixture
def groups():
    """Two that no other test uses, whichever process runs it."""
    number = secrets.token_bytes(3)
    ports = 20_000 + secrets.randbelow(10_000), 30_000 + secrets.randbelow(2_000)
    return [(f"239.{number[0]}.{number[1]}.{number[2]}", port) for port in ports]


def named(group):
    return f"{group[0]}:{group[1]}"


def receiver_of(cli, group, *options):
    process = cli.start("multicast", "receive", named(group), *options)
    assert "a member of" in read_line(process.stderr)
    return process


class Collected:
    """What a process writes, read all the time: one whose output nobody reads waits, and then
    its sender ends without it.
    """

    def __init__(self, process):
        self._process = process
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        self._output, self._errors = self._process.communicate(timeout=TIMEOUT_S)

    def result(self, code=0):
        """The lines of stdout, and stderr."""
        self._thread.join()
        assert self._process.returncode == code, self._errors
        return self._output.decode().splitlines(), self._errors.decode()


def received(process, code=0):
    return Collected(process).result(code)


def test_lines_over_a_network_that_loses_repeats_and_reorders(cli, groups):
    lines = [f"{number} {'x' * (number % 50)}" for number in range(count(2000, 20_000))]
    lines[100] = "y" * 20_000  # in several packets
    with LossyRelay(*groups, loss=0.2, repeat=0.1, reorder=0.2) as relay:
        process = receiver_of(cli, groups[1], "-e", "--from-oldest", "--patience", "60s")
        collected = Collected(process)
        sent = cli.json(
            "multicast",
            "send",
            named(groups[0]),
            "--rate",
            "2MiB",
            "--linger",
            "5s",
            stdin="\n".join(lines),
        )
        output, errors = collected.result()
    assert relay.dropped > len(lines) / 10
    assert sent["sent_again"] > 0
    assert sent["messages"] == len(lines)
    assert output == lines
    assert "lost:" not in errors


def test_a_sender_that_is_too_fast_slows_down(cli, groups):
    lines = [f"{number} {'x' * 100}" for number in range(count(20_000, 200_000))]
    collected = Collected(receiver_of(cli, groups[0], "-e", "--from-oldest", "--patience", "60s"))
    sent = cli.json(
        "multicast", "send", named(groups[0]), "--rate", "10GiB", stdin="\n".join(lines)
    )
    output, _ = collected.result()
    assert output == lines
    assert sent["requested_too_late"] == 0


def test_what_the_sender_has_forgotten_is_reported_by_range(cli, groups):
    lines = [f"{number} {'x' * 50}" for number in range(2000)]
    with LossyRelay(*groups, loss=0.3):
        process = receiver_of(cli, groups[1], "-e", "--from-oldest", "--json", "--patience", "1s")
        collected = Collected(process)
        cli(
            "multicast", "send", named(groups[0]), "--memory", "5kB", "--rate", "1MiB",
            stdin="\n".join(lines),
        )  # fmt: skip
        output, errors = collected.result(code=3)
    events = [json.loads(line) for line in output]
    covered, values = [], []
    for event in events:
        if event["event"] == "message":
            values.append((event["first"], event["value"]))
        if event["event"] in ("message", "lost"):
            covered += range(event["first"], event["last"] + 1)
    assert covered == list(range(events[0]["sequence"], 2001))  # each once, in order
    assert all(value == lines[sequence - 1] for sequence, value in values)
    assert len(values) < 2000
    assert "the sender no longer has them" in errors


def test_from_topic_to_topic(cli, groups, bootstrap, setup):
    source, target = setup.ten(), setup.topic()
    process = receiver_of(cli, groups[0], "-t", target, "-e")
    cli(
        "multicast",
        "send",
        named(groups[0]),
        "-t",
        source,
        "-o",
        "start",
        "-e",
        "--linger",
        "500ms",
    )
    _, errors = received(process)
    assert "10 messages received, 0 packets lost" in errors
    reading = Reading(bootstrap, target)
    assert reading.await_count(10).values == [b"%d" % number for number in range(10)]
    assert {name for name, _ in reading.records[0].headers()} == {
        "multicast.session",
        "multicast.sequence",
    }
    reading.close()


def test_a_restarted_sender_is_recognised(cli, groups):
    process = receiver_of(cli, groups[0])
    for line in ("one", "two"):
        cli("multicast", "send", named(groups[0]), "--linger", "100ms", stdin=f"{line}\n")
        assert read_line(process) == f"{line}\n"
    process.send_signal(signal.SIGTERM)
    _, errors = received(process)
    assert errors.count("from packet 1 on") == 2
    assert "2 messages received, 0 packets lost" in errors


def test_a_killed_sender_and_one_that_takes_its_place(cli, groups):
    process = receiver_of(cli, groups[0], "--from-oldest")
    sender = subprocess.Popen(
        [*COMMAND, "multicast", "send", named(groups[0])],
        stdin=subprocess.PIPE,
        env=cli.environment,
    )
    sender.stdin.write(b"one\n")
    sender.stdin.flush()
    assert read_line(process) == "one\n"
    os.kill(sender.pid, signal.SIGKILL)
    sender.wait()
    sender.stdin.close()
    cli("multicast", "send", named(groups[0]), "--linger", "100ms", stdin="two")
    assert read_line(process) == "two\n"
    process.send_signal(signal.SIGINT)
    _, errors = received(process)
    assert "2 messages received, 0 packets lost" in errors


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("send", "127.0.0.1:5000"), "127.0.0.1:5000 is no multicast group"),
        (("send", "239.1.2.3"), "239.1.2.3 is no multicast group"),
        (("receive", "[ff15::1]:5000"), "is no multicast group"),
        (("receive", "239.1.2.3:5000", "--interface", "eth0"), "eth0 is no IPv4 address"),
        (("send", "239.1.2.3:5000", "--packet", "10"), "is no whole number from 96"),
        (("receive", "239.1.2.3:5000", "--json", "-t", "x"), "--json and -t exclude each other"),
    ],
)
def test_mistakes(offline, args, said):
    assert said in offline.error("multicast", *args, code=2)


def test_an_address_of_another_machine(offline):
    error = offline.error("multicast", "send", "239.1.2.3:5000", "--interface", "192.0.2.1", code=1)
    assert "multicast does not work at 192.0.2.1" in error
