"""kcat as people use it: in pipes, with formats, offsets and times."""

import json
import shutil
import subprocess
import time
from typing import Any
from uuid import uuid4

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("kcat") is None, reason="kcat is not installed (Debian: apt-get install kcat)"
)

WAIT_S = 60


@pytest.fixture
def topic() -> str:
    return f"kcat-{uuid4().hex[:12]}"


class Kcat:
    def __init__(self, address: str) -> None:
        self._command = ["kcat", "-b", address]

    def __call__(self, *args: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self._command, *args],
            input=stdin, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *args: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([*self._command, *args], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def kcat(broker_address: str) -> Kcat:
    return Kcat(broker_address)


def test_metadata(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="x\n")
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert len(listed["brokers"]) == 1
    [described] = listed["topics"]
    assert described["topic"] == topic
    assert [partition["leader"] for partition in described["partitions"]] == [
        listed["brokers"][0]["id"]
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_in_lines_out(kcat: Kcat, topic: str, codec: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(2000))
    kcat("-P", "-t", topic, "-z", codec, stdin=lines)
    assert kcat("-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines


def test_keys_headers_and_nulls(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-K:", "-Z", "-H", "a=1", "-H", "b=2", stdin="k1:v1\nk2:\n")
    said = kcat("-C", "-t", topic, "-e", "-q", "-o", "beginning", "-J")
    found: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    assert [(message["key"], message["payload"]) for message in found] == [
        ("k1", "v1"),
        ("k2", None),
    ]
    assert found[0]["headers"] == ["a", "1", "b", "2"]


def test_offsets(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="".join(f"{number}\n" for number in range(10)))

    def read(*where: str) -> str:
        return kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-f", "%s ", *where).strip()

    assert read("-o", "7") == "7 8 9"
    assert read("-o", "-2") == "8 9"
    assert read("-o", "end") == ""
    assert read("-o", "beginning", "-c", "3") == "0 1 2"


def test_times(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="before\n")
    time.sleep(0.05)  # a later millisecond
    between_ms = int(time.time() * 1000)
    kcat("-P", "-t", topic, stdin="after\n")
    assert kcat("-C", "-t", topic, "-o", f"s@{between_ms}", "-e", "-q") == "after\n"
    assert kcat("-C", "-t", topic, "-o", f"e@{between_ms}", "-o", "s@0", "-e", "-q") == "before\n"
    assert kcat("-Q", "-t", f"{topic}:0:{between_ms}").strip() == f"{topic} [0] offset 1"


def test_a_group(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="1\n2\n3\n")
    group = f"group-{uuid4().hex[:8]}"
    arguments = ("-G", group, "-q", "-u", "-X", "auto.offset.reset=earliest", "-c", "3", topic)
    assert kcat(*arguments) == "1\n2\n3\n"
    kcat("-P", "-t", topic, stdin="4\n5\n6\n")
    assert kcat(*arguments) == "4\n5\n6\n"


def test_a_follower_sees_records_as_they_come(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin="first\n")
    with kcat.start("-C", "-t", topic, "-o", "beginning", "-q", "-u", "-c", "4") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        for number in range(3):
            kcat("-P", "-t", topic, stdin=f"{number}\n")
            assert following.stdout.readline() == f"{number}\n"
        assert following.wait(WAIT_S) == 0
