"""Changes of orders at a steady rate, by a process of its own (bench/latency/clients.py).

python -m bench.views.producer '{"address": …, "topic": …, "begin_s": …, …}'
"""

import json
import sys

from bench.latency.clients import produce_paced
from bench.views.orders import order_record


def produce(
    address: str, topic: str, begin_s: float, count: int, rate_per_s: int, keys: int, first: int
) -> None:
    """The events from `first` on."""

    def record(event: int, _at_ms: int) -> tuple[bytes, bytes, int]:
        return order_record(first + event, keys)

    produce_paced(address, topic, begin_s, count, rate_per_s, record)


if __name__ == "__main__":
    produce(**json.loads(sys.argv[1]))
