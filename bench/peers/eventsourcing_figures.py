"""The PyPI library eventsourcing, measured as bench/events.py measures ours. Runs in an
environment of its own; prints one JSON object.

python eventsourcing_figures.py sqlite FILE | postgres HOST PORT USER DATABASE
"""

import json
import sys
import time
from uuid import NAMESPACE_URL, uuid5

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

SINGLE, BATCHES, BATCH, REHYDRATED = 1000, 20, 500, 1000


class Account(Aggregate):
    def __init__(self, name: str) -> None:
        self.balance = 0

    @staticmethod
    def create_id(name: str):
        return uuid5(NAMESPACE_URL, name)

    @event("Deposited")
    def deposit(self, amount: int, note: str) -> None:
        self.balance += amount


def main() -> None:
    kind, *place = sys.argv[1:]
    if kind == "sqlite":
        env = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": place[0]}
    else:
        host, port, user, database = place
        env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres", "POSTGRES_DBNAME": database,
            "POSTGRES_HOST": host, "POSTGRES_PORT": port, "POSTGRES_USER": user,
            "POSTGRES_PASSWORD": "",
        }  # fmt: skip
    app: Application = Application(env)
    figures = {}
    account = Account("single")
    app.save(account)
    began_s = time.perf_counter()
    for number in range(SINGLE):
        account.deposit(number, "a note of some length")
        app.save(account)
    figures["single appends/s"] = SINGLE / (time.perf_counter() - began_s)
    accounts = [Account(f"batch{number}") for number in range(BATCHES)]
    for account in accounts:
        app.save(account)
    began_s = time.perf_counter()
    for account in accounts:
        for number in range(BATCH):
            account.deposit(number, "a note of some length")
        app.save(account)
    figures["events/s in batches of 500"] = BATCHES * BATCH / (time.perf_counter() - began_s)
    times = []
    for _ in range(5):
        began_s = time.perf_counter()
        read = app.repository.get(Account.create_id("single"))
        times.append(time.perf_counter() - began_s)
    assert read.balance == sum(range(SINGLE))
    figures["rehydration of 1,000 events, ms"] = sorted(times)[2] * 1000
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
