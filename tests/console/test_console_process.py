"""`headwater console` as a process."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.certificates import Authority
from support.console.recorded_project import RecordedProject

from headwater.console.server import check_assets
from headwater.console.web import rendering
from headwater.errors import HeadwaterError
from headwater.testing import InProcessBroker

COMMAND = [sys.executable, "-m", "headwater.cli.main", "console"]
TIMEOUT_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_address_and_ends_by_a_signal(tmp_path, console_broker, number):
    command = [*COMMAND, "--listen", "127.0.0.1:0", "-b", console_broker, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        with urllib.request.urlopen(f"{ready['url']}/ready", timeout=TIMEOUT_S) as answer:
            assert answer.read() == b"ready\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0


def test_history_begins_with_the_console_and_not_with_who_looks(tmp_path):
    with InProcessBroker.serving(str(tmp_path / "broker")) as broker:
        recorded = RecordedProject(tmp_path, broker.bootstrap)
        recorded.pipeline()
        command = [*COMMAND, "--listen", "127.0.0.1:0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
            url = json.loads(process.stdout.readline())["url"]

            def read(path):
                with urllib.request.urlopen(f"{url}{path}", timeout=TIMEOUT_S) as answer:
                    return answer.read().decode()

            until_s = time.monotonic() + TIMEOUT_S
            while not list((tmp_path / "data" / "console").glob("history-*.db")):
                assert time.monotonic() < until_s
                time.sleep(0.05)
            while not (plots := json.loads(read("/pipelines/orders.json"))["writes"][0]["plots"]):
                assert time.monotonic() < until_s
                time.sleep(0.05)
            assert {"Lag in records", "State size"} <= {plot["title"] for plot in plots}
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0
        recorded.ended()


def test_a_live_tail_does_not_keep_it_from_ending(tmp_path, console_broker):
    topic = "tailed-to-the-end"
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(TIMEOUT_S)
    command = [*COMMAND, "--listen", "127.0.0.1:0", "-b", console_broker, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}/topics/{topic}/tail/events", timeout=TIMEOUT_S) as tail:
            assert tail.readline() == b"event: records\n"
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0


def test_over_tls(tmp_path, console_broker):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("console", CN="console")
    settings = {"HEADWATER_CONSOLE__TLS_CERT": certificate, "HEADWATER_CONSOLE__TLS_KEY": key}
    command = [*COMMAND, "--listen", "127.0.0.1:0", "-b", console_broker, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env=os.environ | settings
    ) as process:
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=authority.ca)
        with urllib.request.urlopen(f"{url}/topics", timeout=TIMEOUT_S, context=context) as answer:
            assert answer.status == 200
            assert "; Secure" in answer.headers["set-cookie"]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def test_a_certificate_that_is_none(tmp_path):
    settings = {"HEADWATER_CONSOLE__TLS_CERT": "none.pem", "HEADWATER_CONSOLE__TLS_KEY": "none.key"}
    ended = subprocess.run(
        COMMAND, capture_output=True, cwd=tmp_path, check=False, env=os.environ | settings
    )
    assert ended.returncode == 2
    assert b"certificate cannot be used" in ended.stderr


def test_an_address_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [*COMMAND, "--listen", address], capture_output=True, cwd=tmp_path, check=False
        )
    assert ended.returncode == 1
    assert b"the console cannot listen" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], b"the broker has no users"),
        (["--listen", "off"], b"console.listen is off"),
    ],
)
def test_what_it_refuses(tmp_path, arguments, words):
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_missing_files_are_reported_with_what_fetches_them(tmp_path, monkeypatch):
    check_assets()
    monkeypatch.setattr(rendering, "VENDOR", tmp_path)
    with pytest.raises(HeadwaterError) as caught:
        check_assets()
    assert "htmx.min.js" in caught.value.detail
    assert "make run" in caught.value.hint
