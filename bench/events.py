"""`python -m bench.events`: the event store beside the PyPI library eventsourcing, on SQLite and
PostgreSQL, with the durability that each has by default (commits are synced). Rounds alternate;
the median counts.
"""

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.peers.postgres import DATABASE, USER, postgres
from bench.peers.provision import BENCH, python_environment
from headwater.events import CommandHandler, Decider, EventTypes, open_store

REQUIREMENTS = ["eventsourcing==9.5.6", "psycopg[binary,pool]>=3.3"]
ROUNDS, SINGLE, BATCHES, BATCH, THREADS = 3, 1000, 20, 500, 16
PEER = BENCH / "peers" / "eventsourcing_figures.py"
types = EventTypes()


@types.register
@dataclass(frozen=True)
class Deposited:
    amount: int
    note: str


account = Decider(
    "account",
    initial=int,
    decide=lambda command, _: [command],
    evolve=lambda balance, event: balance + event.amount,
    stream=lambda _: "account-single",
)


def main() -> None:
    python = python_environment("eventsourcing", REQUIREMENTS)
    figures: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            Path(name).chmod(0o755)  # PostgreSQL runs as another user
            server = stack.enter_context(postgres(Path(name) / "pg"))
            places = {
                "sqlite": (f"sqlite:///{name}/ours.db", ["sqlite", f"{name}/peer.db"]),
                "postgres": (
                    server.url,
                    ["postgres", "127.0.0.1", str(server.port), USER, DATABASE],
                ),
            }
            for database, (url, arguments) in places.items():
                for figure, value in ours(url).items():
                    figures[database, figure, "headwater"].append(value)
                command = [str(python), str(PEER), *arguments]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                for figure, value in json.loads(output).items():
                    figures[database, figure, "eventsourcing"].append(value)
    for key, values in figures.items():
        print(f"{key[0]:10} {key[1]:36} {key[2]:14} {statistics.median(values):12,.1f}")


def ours(url: str) -> dict[str, float]:
    figures = {}
    with open_store(url, types=types) as store:
        began_s = time.perf_counter()
        for number in range(SINGLE):
            event = Deposited(number, "a note of some length")
            store.append("account-single", [event], expected=number)
        figures["single appends/s"] = SINGLE / (time.perf_counter() - began_s)
        began_s = time.perf_counter()
        for number in range(BATCHES):
            events = [Deposited(amount, "a note of some length") for amount in range(BATCH)]
            store.append(f"account-batch{number}", events, expected=0)
        figures["events/s in batches of 500"] = BATCHES * BATCH / (time.perf_counter() - began_s)
        handler = CommandHandler(store, account)
        times = []
        for _ in range(5):
            began_s = time.perf_counter()
            balance = handler.state("account-single")
            times.append(time.perf_counter() - began_s)
        assert balance == sum(range(SINGLE))
        figures["rehydration of 1,000 events, ms"] = statistics.median(times) * 1000
        figures["single appends/s of 16 threads"] = threaded(store)
    return figures


def threaded(store) -> float:
    def write(number: int) -> None:
        for version in range(SINGLE // 4):
            store.append(f"thread-{number}", [Deposited(1, "a note")], expected=version)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(THREADS)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return THREADS * (SINGLE // 4) / (time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
