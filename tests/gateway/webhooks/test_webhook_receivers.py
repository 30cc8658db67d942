"""Many receivers, some of them dead, slow or failing, while the gateway is killed.

Every good one gets everything at least once, in order per key; those that are slow or dead delay no
other; those that answered 500 for a while miss nothing.
"""

import time

import pytest
from confluent_kafka import Producer
from support.gateway.gateway_process import GatewayProcess
from tiers import count, kills

from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.targets import parse_networks

TIMEOUT_S = 240.0
RECEIVERS = count(quick=20, full=200)
RECORDS = count(quick=60, full=40)
KEYS = 5
KINDS = ("good", "good", "good", "flaky", "good", "slow", "good", "dead", "good", "good")
SLOW_S = 2.0


@pytest.fixture
def process(tmp_path, gateway_broker):
    (tmp_path / "headwater.toml").write_text(
        '[gateway]\nwebhook_allowed_networks = ["127.0.0.0/8"]\n'
    )
    with GatewayProcess(tmp_path, gateway_broker) as running:
        yield running


def test_dead_slow_and_failing_receivers_delay_no_other(
    gateway_broker, new_topic, listening, administration, process
):
    topic = new_topic(3)
    kinds = {f"r{number}-{topic}": KINDS[number % len(KINDS)] for number in range(RECEIVERS)}
    for name, kind in kinds.items():
        url = "http://127.0.0.1:9/" if kind == "dead" else listening.url_of(name)
        if kind == "flaky":
            listening.answers[name] = lambda number, got: (500 if number % 4 == 1 else 200, {})
        elif kind == "slow":
            listening.answers[name] = lambda number, got: (time.sleep(SLOW_S) or 200, {})
        administration.add(
            Webhook(name, url, (topic,), max_in_flight=KEYS),
            "end",
            parse_networks(["127.0.0.0/8"]),
        )
    good = [name for name, kind in kinds.items() if kind == "good"]
    flaky = [name for name, kind in kinds.items() if kind == "flaky"]
    slow = [name for name, kind in kinds.items() if kind == "slow"]
    dead = [name for name, kind in kinds.items() if kind == "dead"]
    producer = Producer({"bootstrap.servers": gateway_broker})
    rounds = kills(quick=1, full=3)
    expected = []
    for round_ in range(rounds + 1):
        for number in range(RECORDS):
            value = round_ * RECORDS + number
            producer.produce(topic, str(value), f"key-{value % KEYS}")
            expected.append(value)
        producer.flush()
        if round_ < rounds:  # in the midst of it
            listening.wait(lambda: len(listening.got[good[0]]) > round_ * RECORDS, TIMEOUT_S)  # noqa: B023
            process.kill()
            process.start()

    def has_all(name):
        return {got.json["value"] for got in list(listening.got[name])} >= set(expected)

    listening.wait(lambda: all(map(has_all, good)), TIMEOUT_S)
    at_the_end = {name: len({got.place for got in listening.got[name]}) for name in slow}
    assert all(number < len(expected) for number in at_the_end.values()), "the slow were not slow"
    listening.wait(lambda: all(map(has_all, flaky)), TIMEOUT_S)
    for name in (*good, *flaky):
        for key in range(KEYS):
            seen = [
                got.json["value"] for got in listening.got[name] if got.json["value"] % KEYS == key
            ]
            assert first_times(seen) == sorted(set(seen)), f"{name}: key {key} is out of order"
    backlogs = {found.webhook.name: found for found in administration.progress()}
    for name in dead:
        assert backlogs[name].backlog + backlogs[name].dead_letters == len(expected)
        assert backlogs[name].state.state == "failing"
    for name in kinds:
        administration.remove(name)


def first_times(values):
    """In the order in which each came first."""
    return list(dict.fromkeys(values))
