"""Subscriptions to the event store over HTTP, on both databases."""

from support.capture.postgres_server import postgres_server
from support.gateway.event_store import (
    AWAY,
    append,
    client,
    deposited,
    filled,
    followed,
    next_positions,
    positions,
    read,
    served,
    store,
)
from support.gateway.serving import serving

from headwater.events import Event, open_store
from headwater.gateway.events import feed, streaming

__all__ = ["client", "postgres_server", "served", "store"]  # fixtures


def test_a_subscription_catches_up_follows_and_goes_on(served, client, store):
    filled(client)
    with followed(served, "/events?category=account&from=start") as found:
        assert next_positions(found, 5) == [1, 4, 7, 10, 13]
        append(client, "order-8", {"type": "Placed"})
        append(client, "account-8", {"type": "Opened"})
        store.append("account-8", [Event("Closed")])  # of another process
        assert next_positions(found, 1) == [17]
        last = next(found)
    append(client, "account-8", {"type": "Opened"}, {"type": "Closed"})
    with followed(served, "/events?category=account", Last_Event_ID=last.id) as found:
        assert next_positions(found, 2) == [19, 20]
    with followed(served, "/events/account-8?type=Closed") as found:  # what comes from now on
        append(client, "account-8", {"type": "Opened"})
        append(client, "account-8", {"type": "Closed"})
        assert next(found).json["version"] == 6


def test_a_client_that_is_slower_than_the_ring_misses_nothing(served, client, monkeypatch):
    monkeypatch.setattr(feed, "_RING_BYTES", 2000)
    monkeypatch.setattr(streaming, "_PAGE_EVENTS", 3)
    append(client, "account-0", {"type": "A"})
    with (
        followed(served, "/events?from=start&tag=even") as even,
        followed(served, "/events?from=start&tag=odd") as odd,
    ):
        for number in range(1, 31):
            tags = ["even" if number % 2 == 0 else "odd"]
            append(client, "account-1", *[{"type": "A", "tags": tags}] * (number % 4 + 1))
        whole = read(client)["events"]
        for found, tag in ((even, "even"), (odd, "odd")):
            wanted = [event["position"] for event in whole if tag in event["tags"]]
            assert next_positions(found, len(wanted)) == wanted


def test_a_store_in_postgresql(tmp_path, postgres_server):
    with (
        postgres_server.database() as database,
        serving(tmp_path, broker__bootstrap=AWAY, events__store=database.url) as served,
        served.client() as client,
    ):
        append(client, "account-1", deposited(1), expected="none", command_id="c")
        assert append(client, "account-1", deposited(1), command_id="c")["is_duplicate"]
        conflict = client.post("/events/account-1", json={"events": [deposited(2)], "expected": 5})
        assert (conflict.status_code, conflict.json()["actual"]) == (409, 1)
        with followed(served, "/events?from=start") as found:
            assert next_positions(found, 1) == [1]
            with open_store(database.url) as other:
                other.append("account-2", [Event("Opened", {"text": "ä"})])
            assert next(found).json["data"] == {"text": "ä"}
        assert positions(read(client, backwards="true")) == [2, 1]
        found = [one["stream"] for one in read(client, "/streams")["streams"]]
        assert found == ["account-1", "account-2"]
        password = "secret-of-the-database"
    url = f"postgresql://eva:{password}@127.0.0.1:1/none"
    with serving(tmp_path, broker__bootstrap=AWAY, events__store=url) as served:
        with served.client() as client:
            away = client.get("/events")
        assert (away.status_code, away.headers["Retry-After"]) == (503, "1")
        assert password not in away.text
