"""A process that runs a saga: every Placed order is paid, and reviewed a moment later.

python saga_runner.py URL    runs until it is killed.
"""

import sys
import threading
from dataclasses import dataclass

from headwater.events import Application, Decider, EventTypes, Saga, Schedule, open_store
from support.events.order_events import Paid, Placed, Reviewed

types, commands = EventTypes(), EventTypes()


for event in (Placed, Paid, Reviewed):
    types.register(event)


@commands.register
@dataclass(frozen=True)
class Pay:
    order: str


@commands.register
@dataclass(frozen=True)
class Review:
    order: str


# It does not refuse anything: what is done twice shows.
orders = Decider(
    "orders",
    initial=int,
    decide=lambda command, _: [(Paid if isinstance(command, Pay) else Reviewed)(command.order)],
    evolve=lambda count, _: count + 1,
    stream=lambda command: f"order-{command.order}",
)


def react(event, transaction):
    yield Pay(event.data.order)
    yield Schedule(f"review-{event.data.order}", Review(event.data.order), after_s=0.2)


def main(url: str) -> None:
    with open_store(url, types=types) as store:
        saga = Saga("payer", react, types=["Placed"])
        app = Application(store, commands, {Pay: orders, Review: orders}, sagas=[saga])
        app.run(threading.Event())


if __name__ == "__main__":
    main(sys.argv[1])
