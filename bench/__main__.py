"""`python -m bench`: measures, keeps the figures as JSON, writes docs/benchmarks.md from them."""

import argparse
import json
import resource
import shutil
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from bench import machine, operators, pipelines, report, workloads
from bench.archive import archiving
from bench.capture import capture
from bench.compaction import compaction
from bench.peers import debezium, headwater, kafka, kfake
from bench.peers.provision import (
    BENCH,
    ROOT,
    PeerUnavailableError,
    kafka_libs,
    kfake_binary,
    latency_client,
    postgresql_jdbc_jars,
    rdkafka_performance,
    spark_connector_jars,
)
from bench.queues import queues
from bench.rounds import BROKERS, Figures, Measured, alternate
from bench.tls import tls
from bench.transactions import transactions

RESULTS = BENCH / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
ALL = [headwater.NAME, kafka.NAME, kfake.NAME]
DURABLE = [headwater.NAME, kafka.NAME]  # kfake is not made for large logs
SPARE_DISK = 2.5


def main() -> None:
    options = _options()
    if options.report_only:
        _write_page()
        return
    try:
        _provision(options.suites or list(SUITES))
    except PeerUnavailableError as missing:
        sys.exit(f"a peer cannot be had: {missing}")
    _raise_open_files_limit()
    for name in options.suites or SUITES:
        sitting = Sitting(name, options)
        SUITES[name](sitting)
        print(sitting.keep())


class Sitting:
    """The figures of one suite, stored as they come."""

    def __init__(self, suite: str, options: argparse.Namespace) -> None:
        self.suite = suite
        self.options = options
        self.part = 4 if options.quick else 1
        self.rounds = options.rounds or (2 if options.quick else 5)
        self.figures: Figures = {}

    def measure(
        self,
        what: str,
        workload: Callable[..., Measured],
        brokers: list[str],
        *,
        rounds: int | None = None,
        **load: Any,
    ) -> None:
        print(what, flush=True)
        turns = {name: partial(workload, BROKERS[name], **load) for name in brokers}
        alternate(turns, rounds or self.rounds, self.figures)
        self.keep()

    def keep(self) -> str:
        """Writes down what there is so far, so that a sitting that is cut short is not lost."""
        mode = f"{'Short' if self.options.quick else 'Full'} run, {self.rounds} rounds"
        sitting = {"mode": mode, "machine": machine.describe(), "figures": self.figures}
        if not self.options.quick:  # that is for the eye
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / f"{self.suite}.json"
            kept = sitting
            if self.options.only and path.exists():  # a part that is measured again
                before = json.loads(path.read_text())
                kept = {**before, "figures": {**before["figures"], **self.figures}}
            path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
            _write_page()
        return report.table(sitting)


def _log_suite(sitting: Sitting) -> None:
    options, part = sitting.options, sitting.part
    for size_bytes, count in ((100, 4_000_000), (1024, 1_000_000)):
        load = {"size_bytes": size_bytes, "count": count // part}
        sitting.measure(f"throughput, {size_bytes} B", workloads.throughput, ALL, **load)
    for linger_ms in (5, 0):
        load = {"linger_ms": linger_ms, "seconds": 12 // part}
        sitting.measure(f"latency, linger {linger_ms} ms", workloads.latency, ALL, **load)
    if options.quick:
        return
    if _has_room(options.retained_gb):
        sitting.measure(
            f"1 GB and {options.retained_gb} GB retained",
            workloads.retained,
            DURABLE,
            rounds=1,
            sizes_gb=(1, options.retained_gb),
            count=1_000_000,
        )
    sitting.measure(
        "many partitions and connections",
        workloads.scale,
        DURABLE,
        rounds=1,
        topic_count=10,
        connection_count=1000,
    )


def _broker_suite(sitting: Sitting) -> None:
    part = sitting.part
    sitting.measure("transactions", transactions, DURABLE, count=1_000_000 // part)
    sitting.measure("queues", queues, DURABLE, count=500_000 // part)
    sitting.measure("TLS", tls, DURABLE, size_bytes=1024, count=300_000 // part)
    sitting.measure("archiving", archiving, [headwater.NAME], count=1_000_000 // part)
    sitting.measure(
        "compaction",
        compaction,
        DURABLE,
        rounds=1,  # minutes each
        count=10_000_000 // part,
        keys=1_000_000 // part,
        produced=2_000_000 // part,
    )


def _capture_suite(sitting: Sitting) -> None:
    sitting.measure(
        "capture",
        capture,
        [headwater.NAME, debezium.NAME],
        rows=50_000 if sitting.options.quick else 1_000_000,
        seconds=5 if sitting.options.quick else 30,
    )


def _pipelines_suite(sitting: Sitting) -> None:
    only, rounds = sitting.options.only, sitting.rounds
    for what, part in pipelines.parts(quick=sitting.options.quick).items():
        if only is not None and only not in what:
            continue
        print(what, flush=True)
        try:
            part(rounds, sitting.figures)
        except Exception:  # the other parts are worth having
            traceback.print_exc()
        sitting.keep()


def _operators_suite(sitting: Sitting) -> None:
    rounds = min(sitting.rounds, 3)
    for what, part in operators.parts(quick=sitting.options.quick).items():
        if sitting.options.only is None or sitting.options.only in what:
            print(what, flush=True)
            part(rounds, sitting.figures)
            sitting.keep()


SUITES: dict[str, Callable[[Sitting], None]] = {
    "log": _log_suite,
    "broker": _broker_suite,
    "capture": _capture_suite,
    "pipelines": _pipelines_suite,
    "operators": _operators_suite,
}


def _write_page() -> None:
    sittings = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in report.TITLES  # those of bench.latency, too
        if (RESULTS / f"{name}.json").exists()
    }
    PAGE.write_text(report.render(sittings))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; default: all"
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds, nothing is stored")
    parser.add_argument("--only", metavar="TEXT", help="parts with this in their name")
    parser.add_argument("--rounds", type=int, help="5, or 2 with --quick")
    parser.add_argument("--retained-gb", type=int, default=20, help="how large the large log is")
    parser.add_argument("--report-only", action="store_true", help="the page from the last figures")
    options = parser.parse_args()
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"no suite {name}; there are {', '.join(SUITES)}")
    return options


def _provision(suites: list[str]) -> None:
    """Gets everything first, so that no build disturbs a measurement."""
    for get in (kafka_libs, kfake_binary, rdkafka_performance, latency_client):
        get()
    if {"pipelines", "operators"} & set(suites):
        spark_connector_jars()
        postgresql_jdbc_jars()


def _has_room(retained_gb: int) -> bool:
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes > SPARE_DISK * retained_gb * 10**9:
        return True
    print(f"{retained_gb} GB retained is left out: {free_bytes / 1e9:.0f} GB of disk are free")
    return False


def _raise_open_files_limit() -> None:
    """For the brokers, which inherit it, and for the connections that are held."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
