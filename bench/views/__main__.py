"""`python -m bench.views`: one system after another, each alone; prints a table, stores JSON."""

import argparse
from functools import partial
from pathlib import Path

from bench import machine, report
from bench.latency.live import RATE_PER_S, Load
from bench.latency.systems import (
    FLINK_EVERY_SECOND,
    FLINK_MINI_BATCHES,
    HEADWATER,
    System,
    available_of,
    fresh,
)
from bench.peers.headwater import headwater
from bench.peers.process import BrokerProcess
from bench.peers.provision import BENCH
from bench.rounds import Figures, Measured, alternate, data_directory
from bench.views.orders import STEP
from bench.views.run import run

RESULTS = BENCH / "results" / "views.json"
SYSTEMS = (HEADWATER, FLINK_EVERY_SECOND, FLINK_MINI_BATCHES)
KEYS = (10_000, 100_000, 1_000_000)


def main() -> None:
    options = _options()
    available = available_of(SYSTEMS, options.only)
    figures: Figures = {}
    for keys in options.keys or ((KEYS[0],) if options.short else KEYS):
        print(f"{keys:,} keys", flush=True)
        with data_directory() as directory, headwater(directory / "broker") as broker:
            turns = {
                system.name: partial(_turn, system, broker, directory / f"{number}", keys, options)
                for number, system in enumerate(available)
            }
            alternate(turns, options.rounds, figures)
        if not options.short:
            report.store(RESULTS, _sitting(figures, options))
    print(report.table(_sitting(figures, options)))


def _turn(
    system: System, broker: BrokerProcess, directory: Path, keys: int, options: argparse.Namespace
) -> Measured:
    load = Load(options.warm_up, options.seconds, settle_s=2, idle_s=4)
    records = options.records
    if options.short:
        load, records = Load(3, 5, settle_s=1, idle_s=1), min(records, 300_000)
    return run(system, broker, fresh(directory), keys, records, load)


def _sitting(figures: Figures, options: argparse.Namespace) -> dict[str, object]:
    length = "Short run" if options.short else f"{options.seconds} s at {RATE_PER_S:,} changes/s"
    return {
        "mode": f"{length}, {options.rounds} round(s)",
        "machine": machine.describe(),
        "ratios": False,
        "figures": figures,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.views", description=__doc__)
    groups = [system.group for system in SYSTEMS]
    parser.add_argument("--only", choices=groups, help="one system")
    parser.add_argument(
        "--keys", type=int, action="append", help=f"orders; several times; default: {KEYS}"
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="of orders in the backlog")
    parser.add_argument("--seconds", type=int, default=30, help="that are measured")
    parser.add_argument("--warm-up", type=int, default=15, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="whether it works; nothing is stored")
    options = parser.parse_args()
    if any(keys % STEP or keys <= 0 for keys in options.keys or ()):
        parser.error(f"--keys has to be a multiple of {STEP:,}")
    return options


if __name__ == "__main__":
    main()
