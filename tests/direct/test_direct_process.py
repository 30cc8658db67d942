"""StatsD and ZeroMQ of a configuration, run by `headwater gateway`."""

import json
import socket
import subprocess
import sys
import urllib.request

import pytest
import zmq
from support.direct.topic_reading import TIMEOUT_S

COMMAND = [sys.executable, "-m", "headwater.cli.main", "gateway"]


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def configure(tmp_path, topic, statsd_port, zeromq_port, **more):
    settings = {"interval": "1h", **more}
    (tmp_path / "headwater.toml").write_text(
        f"""
        [gateway]
        listen = "127.0.0.1:0"
        [gateway.statsd]
        listen = "127.0.0.1:{statsd_port}"
        topic = "{topic}"
        interval = "{settings["interval"]}"
        [gateway.zeromq.jobs]
        socket = "pull"
        address = "tcp://127.0.0.1:{zeromq_port}"
        bind = true
        topic = "{topic}-jobs"
        """
    )


def test_a_stop_loses_nothing_that_has_arrived(tmp_path, broker, topic, reading):
    ports = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
    configure(tmp_path, topic, *ports)
    with subprocess.Popen(
        [*COMMAND, "-b", broker, "--json"], stdout=subprocess.PIPE, cwd=tmp_path
    ) as process:
        url = json.loads(process.stdout.readline())["url"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"a:1|c\na:2|c\nbad", ("127.0.0.1", ports[0]))
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.setsockopt(zmq.SNDTIMEO, int(TIMEOUT_S * 1000))
            push.connect(f"tcp://127.0.0.1:{ports[1]}")
            push.send(b"job")
            reading(f"{topic}-jobs").await_count(1)
        with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as answer:
            metrics = answer.read().decode()
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert 'headwater_zeromq_messages_total{name="jobs",socket="pull"} 1' in metrics
    assert "headwater_statsd_bad_lines_total 1" in metrics
    assert "at best approximate" in metrics
    (value,) = reading(topic).await_count(1).values
    assert json.loads(value)["value"] == 3


@pytest.mark.parametrize(
    ("more", "words"), [({"interval": "soon"}, b"expected a duration"), ({}, b"already in use")]
)
def test_mistakes_end_it_with_a_reason(tmp_path, broker, topic, more, words):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        configure(tmp_path, topic, other.getsockname()[1], free_port(socket.SOCK_STREAM), **more)
        result = subprocess.run(
            [*COMMAND, "-b", broker],
            capture_output=True,
            timeout=TIMEOUT_S,
            cwd=tmp_path,
            check=False,
        )
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert b"Traceback" not in result.stderr
