"""The event store over HTTP: appends, reads, states, and what is wrong input."""

import json
import threading

import pytest
from support.gateway.event_store import (
    AWAY,
    append,
    client,
    deposited,
    filled,
    positions,
    read,
    served,
    store,
)
from support.gateway.serving import TIMEOUT_S, serving

from headwater.events import Event, EventStore, open_store
from headwater.gateway.events import pages
from headwater.inspect.subjects import personal_topics

__all__ = ["client", "served", "store"]  # fixtures


def test_appends_with_expected_versions(client):
    first = append(client, "account-1", deposited(1), deposited(2), expected="none")
    assert first == {
        "first_position": 1, "last_position": 2, "versions": {"account-1": 2},
        "is_duplicate": False,
    }  # fmt: skip
    assert append(client, "account-1", deposited(3), expected=2)["versions"] == {"account-1": 3}
    for expected in (2, "none"):
        body = {"events": [deposited(4)], "expected": expected}
        refused = client.post("/events/account-1", json=body)
        assert refused.status_code == 409
        assert refused.json()["actual"] == 3
        assert refused.json()["expected"] == expected
    missing = client.post("/events/account-2", json={"events": [deposited(4)], "expected": 1})
    assert missing.json()["actual"] == "none"
    assert read(client)["events"][-1]["data"] == {"account": "1", "amount": 3}


def test_several_streams_are_appended_together_or_not_at_all(client):
    body = {
        "streams": [
            {"stream": "account-1", "events": [deposited(1)], "expected": "none"},
            {"stream": "order-1", "events": [deposited(2), deposited(3)]},
        ]
    }
    answer = client.post("/events", json=body)
    assert answer.json()["versions"] == {"account-1": 1, "order-1": 2}
    body["streams"].reverse()
    assert client.post("/events", json=body).status_code == 409
    assert positions(read(client)) == [1, 2, 3]


def test_a_condition_over_types_and_tags(client):
    condition = {"query": [{"types": ["Registered"], "tags": ["name:eva"]}]}
    event = {"type": "Registered", "tags": ["name:eva"]}
    append(client, "user-1", event, condition=condition)
    refused = client.post("/events/user-2", json={"events": [event], "condition": condition})
    assert (refused.status_code, refused.json()["position"]) == (409, 1)
    append(client, "user-2", event, condition={**condition, "after": 1})


def test_a_command_happens_once(client):
    first = append(client, "account-1", deposited(1), command_id="c1")
    again = client.post(
        "/events/account-1", json={"events": [deposited(1)]}, headers={"Idempotency-Key": "c1"}
    )
    assert again.json() == {**first, "is_duplicate": True}
    assert again.headers["Idempotent-Replayed"] == "true"
    assert positions(read(client)) == [1]
    # The result of another command is not shown to who has its id only.
    other = client.post("/events/order-1", json={"events": [deposited(1)], "command_id": "c1"})
    assert other.status_code == 409
    assert "account-1" not in other.text
    event = deposited(5, id="e1")
    assert append(client, "account-1", event)["is_duplicate"] is False
    assert append(client, "account-1", event)["is_duplicate"] is True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "events"),
        ({"events": [{"data": 1}]}, "events[0].type"),
        ({"events": [{"type": "A", "tags": "x"}]}, "events[0].tags"),
        ({"events": [{"type": "A", "tag": ["x"]}]}, "events[0].tag"),
        ({"events": [{"type": "A"}], "expected": "-1"}, "expected"),
        ({"events": [{"type": "A"}], "expected": -1}, "expected"),
        ({"events": [{"type": "A"}], "expectd": 1}, "expectd"),
        ({"events": [{"type": "A"}], "condition": {"query": []}}, "condition.query"),
        (
            {"events": [{"type": "A"}], "condition": {"query": [{"typ": 1}]}},
            "condition.query[0].typ",
        ),
        ([], "(the whole body)"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_answered_with_its_field(client, body, field):
    answer = client.post("/events/account-1", json=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field, answer.text


def test_wrong_input(client):
    append(client, "account-1", deposited(1))
    for path in (
        "/events/account-1?from_version=x", "/events?from=0", "/events?limit=0", "/events?at=now",
        "/events?backwards=maybe", "/events?category=a-b", "/events?category=%2F",
        "/events?from=end", "/events?format=sse&backwards=true", "/events?format=xml",
        "/events?nonsense=1", "/events/%2Fx", "/events/-1", "/events/%FF", "/streams?limit=0",
        "/streams?after=%00",
    ):  # fmt: skip
        answer = client.get(path)
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["error"]
    for content in (b"{", b"\xff", b"[" * 100_000):
        assert client.post("/events/account-1", content=content).status_code == 400
    assert client.post("/events/account-1", json={"events": []}).status_code == 400
    assert client.post("/events/account-1?expected=1", json={}).status_code == 400
    many = {"events": [{"type": "A", "tags": [str(number) for number in range(65)]}]}
    assert "too many tags" in client.post("/events/account-1", json=many).text
    assert (
        client.post("/events/account-1/state", json={"events": [deposited(1)]}).status_code == 404
    )
    assert client.get("/events/account-2").status_code == 404
    assert client.get("/events/account-2?format=sse").status_code == 404
    assert client.get("/events/account-1/more").status_code == 404
    assert positions(read(client)) == [1]


def test_reads_forwards_backwards_filtered_and_in_pages(client):
    filled(client)
    assert positions(read(client)) == list(range(1, 16))
    assert positions(read(client, backwards="true", limit=3)) == [15, 14, 13]
    assert positions(read(client, category="account")) == [1, 4, 7, 10, 13]
    assert positions(read(client, type=["Opened", "Paid"], tag="even")) == [3, 4, 6, 9, 10, 12, 15]
    assert positions(read(client, **{"from": 4, "until": 6})) == [4, 5, 6]
    stream = read(client, "/events/order-2")
    assert (stream["stream"], stream["version"], positions(stream)) == ("order-2", 2, [5, 6])
    assert positions(read(client, "/events/order-2", from_version=2)) == [6]
    for backwards in ("false", "true"):
        for path, key in (("/events", "from"), ("/events/order-2", "from_version")):
            whole = positions(read(client, path, backwards=backwards))
            found, params = [], {"limit": 2, "backwards": backwards}
            while True:
                page = read(client, path, **params)
                found += positions(page)
                if page["is_end"]:
                    break
                upper = "until_version" if "version" in key else "until"
                params[upper if backwards == "true" else key] = page["next"]
            assert found == whole
    # Where a reader who has everything goes on later.
    assert read(client, category="account")["next"] == 16
    append(client, "account-9", {"type": "Opened"})
    assert positions(read(client, category="account", **{"from": 16})) == [16]


def test_a_page_is_bounded_by_bytes(client, monkeypatch):
    large = {"type": "A", "data": "x" * 600_000}
    for _ in range(10):
        append(client, "blob-1", large)
    page = read(client)
    assert 1 < len(page["events"]) < 10
    assert sum(len(event["data"]) for event in page["events"]) < pages.MAX_PAGE_BYTES
    rest = read(client, **{"from": page["next"]})
    assert positions(page) + positions(rest) == list(range(1, 11))
    lines = client.get("/events?format=ndjson").text.splitlines()
    assert [json.loads(line)["position"] for line in lines] == list(range(1, 11))


def test_lines_end_where_the_store_does(client):
    filled(client)
    assert "headwater_gateway_appended_events_total 15" in client.get("/metrics").text
    headers = {"Accept": "application/x-ndjson"}
    found = client.get("/events/order-2", headers=headers)
    assert found.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["version"] for line in found.text.splitlines()] == [1, 2]
    assert len(client.get("/events?format=ndjson&limit=4").text.splitlines()) == 4


def test_the_state_now_and_as_of_then(client, store):
    append(client, "bank-1", {"type": "Opened", "data": {"account": "1"}})
    append(client, "order-1", {"type": "Placed"})
    append(client, "bank-1", deposited(100), deposited(20))
    state = read(client, "/events/bank-1/state")
    assert state == {
        "stream": "bank-1", "version": 3, "position": 4, "decider": "Account", "state": 120,
    }  # fmt: skip
    assert read(client, "/events/bank-1/state", version=2)["state"] == 100
    assert read(client, "/events/bank-1/state", position=2)["state"] == 0
    assert read(client, "/events/bank-1/state", at="2001-01-01T00:00:00Z")["version"] == 0
    for path, status in (
        ("/events/bank-2/state", 404), ("/events/order-1/state", 404),
        ("/events/bank-1/state?version=x", 400),
    ):  # fmt: skip
        assert client.get(path).status_code == status
    store.append("broken-1", [Event("A")])
    assert "names no decider" in client.get("/events/broken-1/state").json()["error"]
    store.append("bank-1", [Event("Deposited", {"amount": "much"})])
    unfit = client.get("/events/bank-1/state")
    assert "does not fit its type Deposited" in unfit.json()["error"]


def test_events_fit_the_types_of_the_category(client, tmp_path):
    """Those that are registered beside its decider."""
    (tmp_path / "orders.py").write_text(
        "import msgspec\n"
        "from headwater.events import Decider, EventTypes\n"
        "types = EventTypes()\n"
        "@types.register(version=3, tags=lambda event: [f'customer:{event.customer}'])\n"
        "class Placed(msgspec.Struct):\n"
        "    customer: str\n"
        "orders = Decider('orders', int, lambda *_: [], lambda n, _: n + 1, lambda _: 'typed-1')\n"
    )
    append(client, "typed-1", {"type": "Placed", "data": {"customer": "eva"}, "tags": ["vip"]})
    (event,) = read(client, tag="customer:eva")["events"]
    assert (event["schema_version"], event["tags"]) == (3, ["vip", "customer:eva"])
    for wrong, reason in (
        ({"type": "Placd", "data": {"customer": "eva"}}, "Placd is not registered"),
        ({"type": "Placed", "data": {"customer": 1}}, "do not fit its type Placed"),
        ({"type": "Placed"}, "do not fit its type Placed"),
    ):
        refused = client.post("/events/typed-1", json={"events": [wrong]})
        assert refused.status_code == 400
        assert reason in refused.json()["error"]
    broken = client.post("/events/broken-1", json={"events": [{"type": "A"}]})
    assert (broken.status_code, "names no decider" in broken.text) == (500, True)


def test_streams_and_categories(client):
    filled(client)
    found = read(client, "/streams", category="order", limit=2)
    assert found == {
        "streams": [{"stream": "order-1", "version": 2}, {"stream": "order-2", "version": 2}],
        "next": "order-2",
    }  # fmt: skip
    later = [one["stream"] for one in read(client, "/streams", after="account-4")["streams"]]
    assert later[:2] == ["account-5", "order-1"]
    assert read(client, "/categories")["categories"] == [
        {"category": "account", "streams": 5, "events": 5},
        {"category": "order", "streams": 5, "events": 10},
    ]


def test_names_with_slashes(client):
    for stream in ("bank-a%2Fb", "bank-a%2Fstate", "bank-%C3%A4%20%3F"):
        append(client, stream, {"type": "Opened", "data": {"account": "1"}})
        assert read(client, f"/events/{stream}")["version"] == 1
        assert read(client, f"/events/{stream}/state")["state"] == 0
    assert client.get("/events/bank-a/b").status_code == 404


def test_without_a_store(tmp_path):
    with serving(tmp_path, broker__bootstrap=AWAY) as served, served.client() as client:
        answer = client.get("/events/account-1")
        assert (answer.status_code, answer.json()["error"]) == (
            404, "this gateway has no event store",
        )  # fmt: skip
    store = f"sqlite:///{tmp_path}/new.db"
    with (
        serving(tmp_path, broker__bootstrap=AWAY, events__store=store) as served,
        served.client() as client,
    ):
        assert client.get("/events").status_code == 404
        assert not (tmp_path / "new.db").exists()
        condition = {"query": [{"types": ["Opened"]}]}
        append(client, "account-1", {"type": "Opened"}, condition=condition)
        assert positions(read(client)) == [1]


def test_a_locked_store_does_not_block_the_gateway(served, client, store, monkeypatch):
    append(client, "account-1", {"type": "A"})
    begun, done = threading.Event(), threading.Event()
    append_all = EventStore.append_all

    def watched(*args, **options):
        begun.set()
        return append_all(*args, **options)

    monkeypatch.setattr(EventStore, "append_all", watched)

    def append_slowly():
        with served.client() as other:
            append(other, "account-1", {"type": "B"})
        done.set()

    with store.transaction():
        writers = [threading.Thread(target=append_slowly) for _ in range(3)]
        for writer in writers:
            writer.start()
        assert begun.wait(TIMEOUT_S)
        assert positions(read(client)) == [1]
        assert client.get("/health").status_code == 200
        assert not done.is_set()
    for writer in writers:
        writer.join(TIMEOUT_S)
    assert positions(read(client)) == [1, 2, 3, 4]


def test_personal_fields_are_written_encrypted_and_not_read_in_plain_text(tmp_path):
    (tmp_path / "headwater.toml").write_text(
        f'[events]\nstore = "sqlite:///{tmp_path}/events.db"\n'
        "[subject.customer]\n"
        'topics = { "outbox.event.account" = { id = "account", personal = ["owner"] } }\n'
    )
    data = {"account": "1", "owner": "Ada Lovelace"}
    with (
        serving(tmp_path, broker__bootstrap=AWAY) as served,
        served.client() as client,
    ):
        append(client, "account-1", {"type": "Opened", "data": data})
        (event,) = client.get("/events/account-1").json()["events"]
    assert event["data"]["account"] == "1"
    assert event["data"]["owner"].startswith("hw1:")
    assert not any(
        b"Lovelace" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    )
    personal = personal_topics(str(tmp_path / "headwater.toml"))
    with open_store(f"sqlite:///{tmp_path}/events.db", personal=personal) as store:
        (read,) = store.read(stream="account-1")
        assert read.data == data
