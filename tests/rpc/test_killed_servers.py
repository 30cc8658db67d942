"""A server that is killed while it works: its requests are taken by another one."""

import os
import signal
import subprocess
import sys
import threading
import time

from tiers import kills

TIMEOUT_S = 90.0
HANDLER = """
import os, time, pathlib
def slow(body):
    directory = pathlib.Path(body["directory"])
    (directory / f"{body['n']}.{os.getpid()}").touch()
    while body["n"] == 0 and len(list(directory.glob("0.*"))) == 1:
        time.sleep(0.02)  # until another one has it, too
    return {"n": body["n"], "pid": os.getpid()}
"""


def start(bootstrap, name, directory):
    command = [
        sys.executable, "-m", "headwater.cli.main", "rpc", "serve", name, "-b", bootstrap,
        "--function", "handlers:slow", "--json",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_request_survives_the_kill_of_its_server(caller, rpc_broker, name, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLER)
    servers = []
    try:
        for round_ in range(kills(1, 5)):
            directory = tmp_path / str(round_)
            directory.mkdir()
            while len(servers) < 2:
                servers.append(start(rpc_broker, name, tmp_path))
                assert servers[-1].stdout.readline().startswith('{"name"')
            calls = [
                caller.submit(name, {"n": n, "directory": str(directory)}, timeout_s=TIMEOUT_S)
                for n in range(20)
            ]
            until_s = time.monotonic() + TIMEOUT_S
            while not (begun := list(directory.glob("0.*"))):
                assert time.monotonic() < until_s
                time.sleep(0.01)
            killed = int(begun[0].suffix[1:])
            os.kill(killed, signal.SIGKILL)
            replies = [call.future.result(TIMEOUT_S) for call in calls]
            assert [reply["n"] for reply in replies] == list(range(20))  # one for each
            assert replies[0]["pid"] != killed
            for server in servers:
                if server.pid == killed:
                    server.communicate(timeout=TIMEOUT_S)
            servers = [server for server in servers if server.returncode is None]
        servers[0].terminate()
        _, said = servers[0].communicate(timeout=TIMEOUT_S)
        assert (servers[0].returncode, said) == (0, "")
    finally:
        for server in servers:
            if server.poll() is None:
                server.kill()
                server.communicate()


def test_a_server_that_stops_leaves_what_it_has_not_begun_to_others(serve, caller, name):
    begun, goes_on = threading.Event(), threading.Event()

    def first_handler(body):
        begun.set()
        goes_on.wait(TIMEOUT_S)
        return "first"

    first = serve(first_handler, concurrency=1)
    calls = [caller.submit(name, n, timeout_s=TIMEOUT_S) for n in range(8)]
    assert begun.wait(TIMEOUT_S)
    closing = threading.Thread(target=first.close)
    closing.start()
    assert first._is_closing.wait(TIMEOUT_S)
    goes_on.set()
    closing.join(TIMEOUT_S)
    serve(lambda body: "second")
    replies = [call.future.result(TIMEOUT_S) for call in calls]
    assert (replies.count("first"), replies.count("second")) == (1, 7)
