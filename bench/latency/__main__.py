"""`python -m bench.latency`: one system after another, each alone; prints a table, stores JSON."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import machine, report
from bench.latency.catch_up import Backlog, catch_up, fill
from bench.latency.live import Load, live
from bench.latency.systems import SYSTEMS, System, available_of, fresh
from bench.peers.headwater import headwater
from bench.peers.process import BrokerProcess
from bench.peers.provision import BENCH
from bench.rounds import Figures, Measured, alternate, data_directory

RESULTS = BENCH / "results" / "latency.json"
LIVE = ("map", "window", "join")
BACKLOGS = ("window-backlog", "join-backlog")
Turn = Callable[[System, BrokerProcess, Path], Measured]


def main() -> None:
    options = _options()
    available = available_of(SYSTEMS, options.only)
    figures: Figures = {}
    for kind in options.kind or (*LIVE, *BACKLOGS):
        print(kind, flush=True)
        with data_directory() as directory, headwater(directory / "broker") as broker:
            turn = _turn(kind, broker, options)
            turns = {
                system.name: partial(turn, system, broker, directory / f"{number}")
                for number, system in enumerate(available)
            }
            alternate(turns, options.rounds, figures)
        if not options.short:
            report.store(RESULTS, _sitting(figures, options))
    print(report.table(_sitting(figures, options)))


def _turn(kind: str, broker: BrokerProcess, options: argparse.Namespace) -> Turn:
    if kind in BACKLOGS:
        backlog: Backlog = fill(broker, 300_000 if options.short else options.records)
        return lambda system, at, directory: catch_up(
            system, kind.removesuffix("-backlog"), at, fresh(directory), backlog
        )
    load = Load(options.warm_up, options.seconds, settle_s=4, idle_s=6)
    if options.short:
        load = Load(3, 5, settle_s=1, idle_s=1)
    return lambda system, at, directory: live(system, kind, at, fresh(directory), load)


def _sitting(figures: Figures, options: argparse.Namespace) -> dict[str, object]:
    length = "Short run" if options.short else f"{options.seconds} s at 1,000 records/s"
    return {
        "mode": f"{length}, {options.rounds} round(s)",
        "machine": machine.describe(),
        "ratios": False,
        "figures": figures,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    groups = list(dict.fromkeys(system.group for system in SYSTEMS))
    parser.add_argument("--only", choices=groups, help="one system, in all its settings")
    parser.add_argument("--kind", action="append", choices=(*LIVE, *BACKLOGS))
    parser.add_argument("--seconds", type=int, default=30, help="that are measured")
    parser.add_argument("--warm-up", type=int, default=20, metavar="SECONDS")
    parser.add_argument("--records", type=int, default=2_000_000, help="of a backlog")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="whether it works; nothing is stored")
    return parser.parse_args()


if __name__ == "__main__":
    main()
