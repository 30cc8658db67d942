"""`headwater status`."""

import json
import re
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tiers import long

from .conftest import TIMEOUT_S, read_line, running_broker, wait_until

METRICS = """\
# HELP headwater_disk_free_bytes Free space.
headwater_disk_free_bytes 1.073741824e+09
headwater_disk_write_bytes_per_second 1048576
headwater_disk_seconds_left 1024
headwater_corrupt_segments{topic="a"} 1
headwater_corrupt_segments{topic="b"} 1
headwater_storage_failed_partitions 3
other_metric 5
"""


@pytest.fixture
def metrics():
    """The address of a metrics endpoint of a broker in trouble."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_one_screen(cli, topic, group):
    cli("produce", topic, stdin="a\nb\nc\n")
    cli("consume", topic, "-g", group, "-o", "start", "-n", 1)
    state = cli.json("status")
    assert state["ready"]
    assert state["topics"] >= 1
    assert state["records"] >= 3
    assert state["size_bytes"] > 0
    assert state["disk"]["free_bytes"] > 0
    assert state["disk"]["total_bytes"] > state["disk"]["free_bytes"]
    lags = [group["lag"] for group in state["groups"]]
    assert lags == sorted(lags, reverse=True)
    assert {"group": group, "lag": 2}.items() <= next(
        row for row in state["groups"] if row["group"] == group
    ).items()
    shown = cli("status").splitlines()
    assert shown[0].startswith(f"broker  {cli.bootstrap}  ready  cluster ")
    assert [line.split()[0] for line in shown[1:3]] == ["topics", "disk"]


def test_what_the_metrics_report(cli, metrics):
    state = json.loads(cli("status", "--metrics", metrics, "--json", code=3))
    assert not state["ready"]
    assert state["disk"]["free_bytes"] == 1 << 30
    assert state["disk"]["seconds_left"] == 1024
    assert state["corrupt_segments"] == 2
    assert state["storage_failed_partitions"] == 3
    shown = cli("status", "--metrics", metrics, code=3)
    assert "not ready" in shown
    assert "1.0 GiB free" in shown
    assert "writing 1.0 MiB/s: lasts 17 min" in shown
    assert "fault   the disk refuses writes to 3 partitions" in shown
    assert "fault   2 segments out of service: corrupt on disk" in shown


def test_a_full_disk(cli, metrics, monkeypatch):
    full = re.sub(r"(free_bytes|seconds_left|failed_partitions) \S+", r"\1 0", METRICS)
    monkeypatch.setitem(globals(), "METRICS", full)
    assert "disk    full: 0 B free of" in cli("status", "--metrics", metrics, code=3)


def test_a_metrics_address_that_does_not_answer_is_reported(cli):
    shown = cli("status", "--metrics", "127.0.0.1:1")
    assert "note    no metrics from 127.0.0.1:1: connection refused\n" in shown


def test_watching_shows_it_again_and_survives_that_the_broker_is_not_there(offline, tmp_path):
    with running_broker(tmp_path) as (_, ready):
        process = offline.start("status", "--watch", "--json", "-b", ready["listen"])
        assert json.loads(read_line(process))["ready"]
        assert json.loads(read_line(process))["ready"]
    # The same process goes on, and ends well when it is interrupted.
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0


def test_watching_where_no_broker_is(offline):
    process = offline.start("status", "--watch", "-b", "127.0.0.1:1")
    assert "no broker answers" in read_line(process.stderr)
    assert "127.0.0.1:1" in read_line(process.stderr)
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0


def test_no_broker_is_not_ready(offline):
    assert "no broker answers" in offline.error("status", "-b", "127.0.0.1:1", code=3)


@long
def test_a_server_that_does_not_speak_kafka_is_not_ready(offline):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        error = offline.error("status", "-b", address, "-X", "socket.timeout.ms=1000", code=3)
        assert f"no metadata from {address}" in error


def test_a_broker_with_an_ipv6_address(offline, tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with running_broker(tmp_path, "--listen", "[::1]:0") as (_, ready):
        address = "[::1]:" + ready["listen"].rpartition(":")[2]
        offline("produce", "t", "-b", address, stdin="a\n")
        assert offline.json("status", "-b", address)["brokers"] == [address]
        assert offline.json("topic", "list", "-b", address)[0]["size_bytes"] > 0


def test_our_own_metrics(offline, tmp_path):
    with running_broker(tmp_path, "--metrics-listen", "127.0.0.1:0") as (_, ready):
        where = ("-b", ready["listen"], "--metrics", ready["metrics_listen"])
        wait_until(lambda: offline.json("status", *where)["disk"]["free_bytes"] > 0)
        state = offline.json("status", *where)
    assert state["disk"]["write_bytes_per_second"] >= 0
    assert state["storage_failed_partitions"] == 0
    assert state["corrupt_segments"] == 0
    assert state["metrics_error"] == ""


@long
def test_a_group_that_retention_is_about_to_pass(offline, tmp_path):
    with running_broker(tmp_path, "--metrics-listen", "127.0.0.1:0") as (_, ready):
        broker = ("-b", ready["listen"])
        offline("topic", "create", "t", "--set", "retention.bytes=1000", *broker)
        offline("produce", "t", *broker, stdin="x\n" + "y" * 950 + "\n")
        offline("consume", "t", "-g", "slow", "-o", "start", "-n", 1, *broker)
        shown = ("status", *broker, "--metrics", ready["metrics_listen"])
        wait_until(lambda: json.loads(offline(*shown, "--json"))["falling_behind"])
        (behind,) = json.loads(offline(*shown, "--json"))["falling_behind"]
        assert (behind["group"], behind["topic"], behind["partition"]) == ("slow", "t", "0")
        assert behind["retention_used"] > 0.9
        assert behind["lag_bytes"] > 950
        assert "behind  group slow has used 1" in offline(*shown)  # a hundred and some percent


def test_records_that_an_overload_policy_did_not_take(offline, tmp_path):
    with running_broker(tmp_path, "--metrics-listen", "127.0.0.1:0") as (_, ready):
        broker = ("-b", ready["listen"])
        settings = ("policy=drop", "group=slow", "bytes=100")
        configs = [
            argument for name in settings for argument in ("-c", f"headwater.overload.{name}")
        ]
        offline("topic", "create", "t", *configs, *broker)
        offline("produce", "t", *broker, stdin="x\n" + "y" * 100 + "\n")
        refused = offline.error("produce", "t", *broker, stdin="z\n")
        assert "POLICY_VIOLATION" in refused
        assert "hint: the topic's headwater.overload.policy drops" in refused
        shown = offline("status", *broker, "--metrics", ready["metrics_listen"])
    assert "dropped 1 record of t: overload policy\n" in shown
