"""`python -m bench.console`: how long the console's pages take with so many topics.

Broker and console are processes of their own. Each page is requested once, and then a dozen times
with pauses: the first request after a reading has expired waits for a new one. Times are from the
request to the last byte of its answer, over a new connection each.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

COMMAND = (sys.executable, "-m", "headwater.cli.main")
ONE = "team0.topic-00000"
PAGES = (
    "/flow", "/topics", "/topics?rows=500", "/topics?search=00123", "/topics?sort=-rate",
    f"/topics/{ONE}/", f"/topics/{ONE}/?range=1w", f"/topics/{ONE}/settings",
    f"/topics/{ONE}/records", "/groups", "/queues", "/captures", "/pipelines", "/stores",
    "/cluster", "/cluster/processes", "/cluster/transactions", "/cluster/users", "/cluster/quotas",
    "/jobs", "/alerts", "/webhooks",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--topics", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        listen = ("--listen", "127.0.0.1:0", "--json")
        with _running(directory, "broker", "--data-dir", f"{directory}/data", *listen) as broker:
            _fill(broker["listen"], options.topics)
            with _running(directory, "console", "-b", broker["listen"], *listen) as console:
                _measure(console["url"].removeprefix("http://"))


def _fill(address: str, topics: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    names = [f"team{number % 50}.topic-{number:05}" for number in range(topics)]
    for first in range(0, topics, 500):
        new = [NewTopic(name, 1) for name in names[first : first + 500]]
        for made in admin.create_topics(new).values():
            made.result(120)
    producer = Producer({"bootstrap.servers": address})
    for name in names[::10]:
        producer.produce(name, b"x" * 100)
        producer.poll(0)
    producer.flush(120)


def _measure(address: str) -> None:
    print(f"{'page':34} {'first':>8} {'median':>8} {'longest':>8}  ms")
    time.sleep(3)  # its start
    for path in PAGES:
        first, *rest = (_asked(address, path, pause_s=0.5) for _ in range(13))
        print(f"{path:34} {first:8.0f} {statistics.median(rest):8.0f} {max(rest):8.0f}")


def _asked(address: str, path: str, pause_s: float) -> float:
    time.sleep(pause_s)
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {body[:500]!r}")
    return (time.perf_counter() - began_s) * 1000


@contextmanager
def _running(directory: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """A command of ours, with what it says when it is ready."""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=directory,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    main()
