"""`headwater rpc call | ask | serve`, as a user runs it."""

import json
import subprocess
import sys

import pytest
from support.shared_broker import shared_broker

from headwater.cli import main

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("rpc-command")) as address:
        yield address


def command(broker, *arguments):
    return [sys.executable, "-m", "headwater.cli.main", "rpc", *arguments, "-b", broker]


@pytest.fixture
def run(broker, capsys):
    def run_here(*arguments):
        code = main.run(["rpc", *arguments, "-b", broker])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err

    return run_here


def test_a_command_serves_and_a_command_calls(broker, run):
    script = 'import json, sys; n = json.load(sys.stdin); print(n * 2) if n else sys.exit("no n")'
    double = f"{sys.executable} -c '{script}'"
    serving = subprocess.Popen(
        command(broker, "serve", "double", "--json", "--command", double),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert json.loads(serving.stdout.readline())["partitions"] == list(range(16))
        assert run("call", "double", "21") == (0, "42", "")
        code, said, error = run("call", "double", "0", "--json")
        assert (code, said, json.loads(error)["detail"]) == (1, "", "no n")
    finally:
        serving.terminate()
        serving.communicate(timeout=TIMEOUT_S)
    assert serving.returncode == 0
    code, _, error = run("call", "double", "1", "--timeout", "200ms")
    assert (code, "has not replied in 0.2 s" in error) == (3, True)


def test_mistakes(run):
    for arguments, said in (
        (("call", "nothing"), "there is no service nothing"),
        (("call", "nothing", "{"), "the request is not JSON"),
        (("serve", "x"), "one of --command and --function"),
        (("serve", "x", "--function", "nowhere:f"), "No module named 'nowhere'"),
        (("serve", "a b", "--command", "cat"), "is no name of a service"),
    ):
        code, _, error = run(*arguments)
        assert code in (1, 2)
        assert said in error
        assert "Traceback" not in error
