"""`python -m bench`: measures, keeps the figures as JSON, writes docs/benchmarks.md from them."""

import argparse
import json
import resource
import shutil
import sys
from functools import partial

from bench import machine, report, workloads
from bench.peers import headwater, kafka, kfake
from bench.peers.provision import (
    BENCH,
    ROOT,
    PeerUnavailableError,
    kafka_libs,
    kfake_binary,
    latency_client,
    rdkafka_performance,
)
from bench.rounds import Figures, alternate

RESULTS = BENCH / "results" / "latest.json"
PAGE = ROOT / "docs" / "benchmarks.md"
ALL = [headwater.NAME, kafka.NAME, kfake.NAME]
DURABLE = [headwater.NAME, kafka.NAME]  # kfake is not made for large logs
SPARE_DISK = 2.5


def main() -> None:
    options = _options()
    if options.report_only:
        PAGE.write_text(report.render(json.loads(RESULTS.read_text())))
        return
    try:
        _provision()
    except PeerUnavailableError as missing:
        sys.exit(f"a peer cannot be had: {missing}")
    _raise_open_files_limit()
    figures: Figures = {}
    part = 4 if options.quick else 1
    rounds = options.rounds or (2 if options.quick else 5)
    for size_bytes, count in ((100, 4_000_000), (1024, 1_000_000)):
        print(f"throughput, {size_bytes} B", flush=True)
        measure = partial(workloads.throughput, size_bytes=size_bytes, count=count // part)
        alternate(measure, ALL, rounds, figures)
        _keep(figures, options, rounds)
    for linger_ms in (5, 0):
        print(f"latency, linger {linger_ms} ms", flush=True)
        measure = partial(workloads.latency, linger_ms=linger_ms, seconds=12 // part)
        alternate(measure, ALL, rounds, figures)
        _keep(figures, options, rounds)
    if not options.quick and _has_room(options.retained_gb):
        print(f"1 GB and {options.retained_gb} GB retained", flush=True)
        sizes_gb = (1, options.retained_gb)
        measure = partial(workloads.retained, sizes_gb=sizes_gb, count=1_000_000)
        alternate(measure, DURABLE, 1, figures)
        _keep(figures, options, rounds)
    if not options.quick:
        print("many partitions and connections", flush=True)
        measure = partial(workloads.scale, topic_count=10, connection_count=1000)
        alternate(measure, DURABLE, 1, figures)
    print(_keep(figures, options, rounds))


def _keep(figures: Figures, options: argparse.Namespace, rounds: int) -> str:
    """Writes down what there is so far, so that a sitting that is cut short is not lost."""
    mode = f"{'Short' if options.quick else 'Full'} run, {rounds} rounds"
    sitting = {"mode": mode, "machine": machine.describe(), "figures": figures}
    text = report.render(sitting)
    if not options.quick:  # a short run is for the eye
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(sitting, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(text)
    return text


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short rounds, nothing is kept")
    parser.add_argument("--rounds", type=int, help="5, or 2 with --quick")
    parser.add_argument("--retained-gb", type=int, default=20, help="how large the large log is")
    parser.add_argument("--report-only", action="store_true", help="the page from the last figures")
    return parser.parse_args()


def _provision() -> None:
    """Gets everything first, so that no build disturbs a measurement."""
    for get in (kafka_libs, kfake_binary, rdkafka_performance, latency_client):
        get()


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
