"""`python -m bench.rpc`: calls over topics, with broker and server each in its own process.

    one caller       one call after the other: latency
    many callers     so many threads that call at the same time: latency and calls/s
    POST /rpc/NAME   is measured by neither: the gateway adds one HTTP request to a call

The handler returns what it gets. A call is two durable writes, one after the other: the request and
the reply. Caller, server and broker share the cores of the machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.rpc.caller import Caller
from headwater.settings import ClientSettings

COMMAND = (sys.executable, "-m", "headwater.cli.main")
HANDLER = "def echo(body):\n    return body\n"
WARM_UP_CALLS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--callers", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, _processes(Path(directory)) as bootstrap:
        caller = Caller(bootstrap, ClientSettings())
        try:
            for _ in range(WARM_UP_CALLS):
                caller.call("echo", {"n": 1})
            for callers in (1, options.callers):
                latencies = _calls(caller, callers, options.seconds)
                _print(f"{callers} callers: calls/s", len(latencies) / options.seconds)
                _print(f"{callers} callers: p50, ms", _quantile(latencies, 0.50) * 1000)
                _print(f"{callers} callers: p99, ms", _quantile(latencies, 0.99) * 1000)
        finally:
            caller.close()


@contextmanager
def _processes(directory: Path) -> Iterator[str]:
    """A broker, whose address it is, and a server."""
    (directory / "handlers.py").write_text(HANDLER)
    broker = subprocess.Popen(
        [*COMMAND, "broker", "--json", "--listen", "127.0.0.1:0", "--data-dir", "data"],
        stdout=subprocess.PIPE, cwd=directory,
    )  # fmt: skip
    assert broker.stdout is not None
    listen: str = json.loads(broker.stdout.readline())["listen"]
    server = subprocess.Popen(
        [*COMMAND, "rpc", "serve", "echo", "--function", "handlers:echo", "--json", "-b", listen],
        stdout=subprocess.PIPE, cwd=directory,
    )  # fmt: skip
    assert server.stdout is not None
    server.stdout.readline()  # it has its partitions
    try:
        yield listen
    finally:
        for process in (server, broker):
            process.terminate()
            process.wait(60)


def _calls(caller: Caller, callers: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    until_s = time.monotonic() + seconds

    def call() -> None:
        while time.monotonic() < until_s:
            begun_s = time.monotonic()
            caller.call("echo", {"n": 1})
            latencies.append(time.monotonic() - begun_s)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(latencies)


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def _print(name: str, number: float) -> None:
    print(f"{name:40} {number:12,.1f}")


if __name__ == "__main__":
    main()
