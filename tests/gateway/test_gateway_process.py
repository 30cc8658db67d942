"""`headwater gateway` as a process, and as a child of `headwater up`."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request

import pytest
from support.certificates import Authority
from tiers import in_full

from headwater import config
from headwater.supervisor.plan import GATEWAY, children_of

COMMAND = [sys.executable, "-m", "headwater.cli.main", "gateway"]
TIMEOUT_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_full(signal.SIGINT)])
def test_it_prints_its_address_and_ends_by_a_signal(tmp_path, gateway_broker, number):
    command = [*COMMAND, "--listen", "127.0.0.1:0", "-b", gateway_broker, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        with urllib.request.urlopen(f"{ready['url']}/ready", timeout=TIMEOUT_S) as answer:
            assert answer.read() == b"ready\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0


def test_over_tls(tmp_path, gateway_broker):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", CN="gateway")
    settings = {"HEADWATER_GATEWAY__TLS_CERT": certificate, "HEADWATER_GATEWAY__TLS_KEY": key}
    command = [*COMMAND, "--listen", "127.0.0.1:0", "-b", gateway_broker, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=tmp_path, env=os.environ | settings
    ) as process:
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=authority.ca)
        with urllib.request.urlopen(f"{url}/health", timeout=TIMEOUT_S, context=context) as answer:
            assert json.load(answer) == {"status": "ok"}
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("listen", "settings", "words"),
    [
        ("0.0.0.0:0", {}, b"the broker has no users"),
        ("0.0.0.0:0", {"REQUIRE_AUTHENTICATION": "true"}, b"passwords could be read on the way"),
        ("127.0.0.1:0", {"TLS_CERT": "none.pem"}, b"certificate cannot be used"),
        ("off", {}, b"gateway.listen is off"),
    ],
)
def test_what_it_refuses(tmp_path, listen, settings, words):
    environment = {f"HEADWATER_GATEWAY__{name}": value for name, value in settings.items()}
    ended = subprocess.run(
        [*COMMAND, "--listen", listen],
        capture_output=True, cwd=tmp_path, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert ended.returncode == 2
    assert words in ended.stderr


def test_an_address_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [*COMMAND, "--listen", address], capture_output=True, cwd=tmp_path, check=False
        )
    assert ended.returncode == 1
    assert b"the gateway cannot listen" in ended.stderr


def test_up_starts_it_where_it_has_an_address(tmp_path):
    def kinds(**flags):
        settings = {name.replace("__", "."): value for name, value in flags.items()}
        return [
            child.kind for child in children_of(config.load(settings, environ={}, cwd=tmp_path))
        ]

    assert GATEWAY not in kinds()
    assert kinds(gateway__listen="127.0.0.1:0") == ["broker", "console", "gateway"]
    assert GATEWAY in kinds(gateway__listen="127.0.0.1:0", broker__bootstrap="kafka-1:9092")
