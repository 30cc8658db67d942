"""`headwater demo`: a broker of its own, a stream of orders, and a look at it as it flows.

1. start a broker as a child process on a free port;
2. create the topic `orders`;
3. one thread writes orders at a steady rate, the main thread reads them back and shows them;
4. on Ctrl-C, or after --seconds, stop the broker and say what became of the data.
"""

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson
from confluent_kafka import TopicPartition
from confluent_kafka import admin as kafka_admin

from headwater.cli.cluster import Cluster, all_partitions, refused, settled
from headwater.cli.demo_view import SENT_HEADER, Seen, view_for
from headwater.cli.orders import orders
from headwater.cli.output import print_json, say, styled
from headwater.cli.parser import Command, Parser, output_options, whole_number
from headwater.errors import HeadwaterError, NotReady, UsageError

_TOPIC: Final = "orders"
_PARTITIONS: Final = 3
_START_TIMEOUT_S: Final = 15.0
_STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1

# confluent_kafka's annotations leave it out.
NewTopic: Final[Any] = vars(kafka_admin)["NewTopic"]


def _configure(parser: Parser) -> None:
    parser.add_argument(
        "--seconds", type=whole_number(1, 10**9), metavar="N", help="end by itself after N seconds"
    )
    parser.add_argument(
        "--rate",
        type=whole_number(1, 10**6),
        default=25,
        metavar="N",
        help="orders per second (default: 25)",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="keep the data there (default: removed at the end)"
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="address of the broker (default: a free port)",
    )
    output_options(parser, json_help="show nothing, write the summary as JSON")


def _run(args: argparse.Namespace) -> int:
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    data_dir = args.data_dir or tempfile.mkdtemp(prefix="headwater-demo-")
    seen = Seen()
    try:
        with _broker(args.listen, data_dir, quiet=args.json) as broker:
            try:
                _flow(broker, args, seen)
            except KeyboardInterrupt:
                pass
            finally:
                seen.end()
    except KeyboardInterrupt:
        pass
    finally:
        if not args.data_dir:
            shutil.rmtree(data_dir, ignore_errors=True)
    if args.json:
        print_json(seen.summary())
        return 0
    say(f"\n{seen.line()}")
    if args.data_dir:
        say(f"the broker has stopped; the data is in {data_dir}")
        say(f"  headwater broker --data-dir {data_dir}   serves it again")
    else:
        say("the broker has stopped and its data is removed (--data-dir DIR keeps it)")
    return 0


@contextmanager
def _broker(listen: str, data_dir: str, *, quiet: bool) -> Iterator[str]:
    """A broker in a child process; yields its address. It never outlives this process."""
    began_s = time.monotonic()
    if not quiet:
        say(f"starting a broker, data in {data_dir} …")
        sys.stdout.flush()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "headwater.cli.main", "broker", "--json"),
                *("--listen", listen, "--data-dir", os.path.abspath(data_dir)),
                *("--log-level", "warning"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=tempfile.gettempdir(),  # a headwater.toml here is not meant for it
            start_new_session=True,  # Ctrl-C goes to us, and we stop it
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread has been started yet
        )
        try:
            address = _wait_ready(child, log)
            if not quiet:
                took_s = time.monotonic() - began_s
                say(f"{styled('ready', 'bold green')} at {address} after {took_s:.2f} s")
            yield address
        finally:
            _stop(child)


def _wait_ready(child: "subprocess.Popen[bytes]", log: Any) -> str:
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], _START_TIMEOUT_S)
    line = child.stdout.readline() if readable else b""
    if line:
        return str(json.loads(line)["listen"])
    _stop(child)
    log.seek(0)
    last = str(log.read().decode(errors="replace")).strip().rpartition("\n")[2]
    kind = UsageError if child.returncode == UsageError.exit_code else NotReady
    try:
        error = json.loads(last)
        detail, hint = error["error"], error.get("hint", "")
        if error.get("detail"):
            detail += f": {error['detail']}"
    except ValueError:
        detail, hint = last[-2000:], "`headwater doctor` looks for the reason"
    raise kind("the broker did not start", detail=detail, hint=hint)


def _stop(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _flow(bootstrap: str, args: argparse.Namespace, seen: Seen) -> None:
    cluster = Cluster(bootstrap, verbose=args.verbose)
    if _TOPIC not in cluster.topics():
        topics = [NewTopic(_TOPIC, num_partitions=_PARTITIONS, replication_factor=1)]
        settled(cluster.admin.create_topics(topics), "create topic")
    consumer = cluster.consumer({"group.id": "headwater-demo", "enable.auto.commit": False})
    ends = cluster.bounds(all_partitions(cluster.existing([_TOPIC])))
    consumer.assign(
        [TopicPartition(each.topic, each.number, end) for each, (_, end) in ends.items()]
    )
    writer = _Writer(cluster, args.rate)
    deadline_s = time.monotonic() + args.seconds if args.seconds else None
    seen.began_s = time.monotonic()
    try:
        with view_for(bootstrap, quiet=args.json) as view:
            writer.start()
            while deadline_s is None or time.monotonic() < deadline_s:
                message = consumer.poll(_POLL_S)
                received_ns = time.monotonic_ns()
                if writer.failure:
                    raise writer.failure
                if message is not None and not message.error():
                    seen.add(message, received_ns)
                    view.show(message, seen)
    finally:
        seen.end()
        writer.stop()
        consumer.close()


class _Writer(threading.Thread):
    """Writes orders at a steady rate until it is stopped."""

    def __init__(self, cluster: Cluster, orders_per_second: int) -> None:
        super().__init__(daemon=True)
        self._producer: Any = cluster.producer({"linger.ms": 0, "message.timeout.ms": 10_000})
        self._pause_s = 1 / orders_per_second
        self._stopped = threading.Event()
        self.failure: HeadwaterError | None = None

    def run(self) -> None:
        due_s = time.monotonic()
        for order in orders():
            if self._stopped.wait(max(0.0, due_s - time.monotonic())):
                return
            due_s += self._pause_s
            self._producer.produce(
                _TOPIC,
                orjson.dumps(order),
                str(order["order_id"]),
                headers=[(SENT_HEADER, str(time.monotonic_ns()))],
                on_delivery=self._delivered,
            )
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join()
        self._producer.flush(5)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failure = refused(error, "an order could not be written")


COMMANDS = {
    "": Command(
        "start a broker, write a stream of orders and watch it",
        _configure,
        _run,
        "  headwater demo\n  headwater demo --seconds 10 --rate 1000",
    )
}
