"""A gateway with an event store, and requests to it."""

from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from headwater.events import open_store
from support.gateway.events import events
from support.gateway.serving import serving

BANK = Path(__file__).parents[3] / "examples" / "bank" / "bank.py"
AWAY = "127.0.0.1:1"  # where no broker is: without users, events need none


@contextmanager
def gateway_of(tmp_path, **flags):
    (tmp_path / "headwater.toml").write_text(
        f'[events]\nstore = "sqlite:///{tmp_path}/events.db"\n'
        f'[events.deciders]\nbank = "{BANK}:Account"\nbroken = "none.py:Nothing"\n'
        'typed = "orders.py:orders"\n'
    )
    with serving(tmp_path, **{"broker__bootstrap": AWAY, **flags}) as served:
        yield served


@pytest.fixture
def served(tmp_path):
    with gateway_of(tmp_path) as served:
        yield served


@pytest.fixture
def client(served):
    with served.client() as client:
        yield client


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/events.db") as store:
        yield store


def deposited(amount, **more):
    return {"type": "Deposited", "data": {"account": "1", "amount": amount}, **more}


def append(client, stream, *events, **more):
    answer = client.post(f"/events/{stream}", json={"events": list(events), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def read(client, path="/events", **params):
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def positions(answer):
    return [event["position"] for event in answer["events"]]


def filled(client):
    for number in range(1, 6):
        append(client, f"account-{number}", {"type": "Opened", "tags": ["even"] * (1 - number % 2)})
        append(client, f"order-{number}", {"type": "Placed"}, {"type": "Paid", "tags": ["even"]})


@contextmanager
def followed(served, path, user=None, **headers):
    """The events of a subscription; when the block begins, its position is fixed."""
    with (
        served.client(user=user, Accept="text/event-stream", **headers) as client,
        client.stream("GET", path) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        yield events(answer.iter_lines())


def next_positions(found, count):
    return [event.json["position"] for event in islice(found, count)]
