"""Many live queries share one reading; what cannot be served is refused; a browser follows one."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.gateway.derived_store import DerivedStore
from support.gateway.events import events
from support.gateway.live_client import LiveClient
from support.gateway.serving import TIMEOUT_S, serving
from tiers import in_full

from headwater.gateway.live import loading
from headwater.gateway.live import table as tables

PAGE = Path(__file__).parents[2] / "examples/live_query/index.html"
COMPACTED = {"cleanup_policy": "compact"}


def is_ready(client):
    return client.names[-1] == "ready"


def write(bootstrap, topic, *pairs):
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for key, row in pairs:
        producer.produce(topic, None if row is None else json.dumps(row), key)
    assert producer.flush(TIMEOUT_S) == 0


async def follow(address, path, wanted):
    """The rows of a client that reads until it has these."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    client, lines = LiveClient(), []
    while client.table != wanted:
        line = await asyncio.wait_for(reader.readline(), TIMEOUT_S)
        assert line, "the stream has ended"
        if line[:1] in (b"e", b"d", b"i", b"\n", b":", b"r"):  # no sizes of chunks
            lines.append(line.decode().rstrip("\r\n"))
        if line == b"\n":
            for event in events(lines):
                client.take(event)
            lines = []
    writer.close()
    return client.table


@pytest.mark.parametrize("clients", [200, *in_full(2000)])
def test_many_subscribers_share_one_reading(
    tmp_path, gateway_broker, new_topic, clients, monkeypatch
):
    topic = new_topic(2, **COMPACTED)
    write(gateway_broker, topic, *[(str(n), {"n": n}) for n in range(20)])
    loads, read = [], loading.load
    monkeypatch.setattr(
        "headwater.gateway.live.tables.load", lambda *args: loads.append(1) or read(*args)
    )
    wanted = {str(n): {"n": n + 100} for n in range(10)}

    async def run(address):
        following = [
            asyncio.create_task(follow(address, f"/live/{topic}?where=n>={n % 4}", wanted))
            for n in range(clients)
        ]
        rows = [(str(n), {"n": n + 100} if n < 10 else None) for n in range(20)]
        await asyncio.to_thread(write, gateway_broker, topic, *rows)
        await asyncio.gather(*following)

    with serving(tmp_path, broker__bootstrap=gateway_broker, gateway__max_connections=8000) as one:
        asyncio.run(run(one.address))
    assert len(loads) == 1


def test_a_client_that_is_slower_than_the_changes_catches_up(
    client, gateway_broker, new_topic, monkeypatch
):
    """What it has missed is no longer held: it gets each row that has changed once."""
    monkeypatch.setattr(tables, "_RING_BYTES", 20_000)
    topic = new_topic(**COMPACTED)
    write(gateway_broker, topic, *[(str(n), {"n": n, "text": "x" * 2000}) for n in range(2000)])
    mine = LiveClient()
    rows = {}
    with client.stream("GET", f"/live/{topic}") as answer:
        found = events(answer.iter_lines())
        for event in found:
            mine.take(event)
            if event.name == "snapshot":
                break
        for n in range(300):  # while the snapshot is on its way
            rows[str(n)] = {"n": -n, "text": "y" * 500}
        write(gateway_broker, topic, *rows.items(), ("1999", None))
        for event in found:
            mine.take(event)
            is_there = "1999" not in mine.table and len(mine.table) == 1999
            if is_there and all(mine.table[key] == row for key, row in rows.items()):
                break
    assert mine.names.count("reset") == 1
    assert mine.names.count("changed") < 600  # not all again


def test_where_a_client_cannot_go_on_it_begins_again(client, gateway_broker, new_topic):
    topic = new_topic(**COMPACTED)
    write(gateway_broker, topic, ("a", {"n": 1}))
    mine = LiveClient()
    mine.read(client, f"/live/{topic}", is_ready)
    topic_id, given, _ = mine.mark.split(".", 2)
    for mark, reason in (
        (f"00000000.{given}.0:1", "the topic was created again"),
        (f"{topic_id}.1000.0:0", "compaction may have removed"),
        (f"{topic_id}.{given}.0:99", "ahead of the log"),
        (f"{topic_id}.{given}.0:1,1:1", "other partitions"),
        ("0:1", "not one of a live query"),
    ):
        headers = {"Last-Event-ID": mark}
        with client.stream("GET", f"/live/{topic}", headers=headers) as answer:
            first = next(events(answer.iter_lines()))
        assert first.name == "reset"
        assert reason in first.json["reason"]
        assert first.id == ""


def test_what_is_no_table_is_refused(client, new_topic, gateway_broker, tmp_path):
    def refused(path, status):
        answer = client.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()

    assert "deleted by age" in refused(f"/live/{new_topic()}", 409)["detail"]
    both = new_topic(cleanup_policy="compact,delete")
    assert "deleted by age" in refused(f"/live/{both}", 409)["detail"]
    refused("/live/no-such-table", 404)
    refused("/live/__headwater_tokens", 403)
    compacted = new_topic(**COMPACTED)
    refused(f"/live/{compacted}?limit=1", 400)
    refused(f"/live/{compacted}?where=n", 400)
    write(gateway_broker, compacted, *[(str(n), {"t": "x" * 1000}) for n in range(100)])
    with (
        serving(
            tmp_path, broker__bootstrap=gateway_broker, gateway__max_table_bytes="50KiB"
        ) as small,
        small.client() as other,
    ):
        answer = other.get(f"/live/{compacted}")
        assert answer.status_code == 413
        assert "max_table_bytes" in answer.json()["hint"]
        assert small.gateway.live_memory.used_bytes == 0
    truncated = new_topic(2, retention_ms="-1")
    write(gateway_broker, truncated, (None, {"op": "t", "before": None, "after": None}))
    assert "several partitions" in refused(f"/live/{truncated}", 409)["error"]


def test_a_table_of_a_database_is_refused_with_the_way_to_follow_it(
    tmp_path, gateway_broker, new_topic
):
    store = DerivedStore(tmp_path, new_topic())
    with (
        serving(store.directory, broker__bootstrap=gateway_broker) as served,
        served.client() as client,
    ):
        answer = client.get("/live/orders")
    assert answer.status_code == 409
    assert "sink cache" in answer.json()["error"]
    assert 'into = "topic"' in answer.json()["hint"]


def test_a_table_that_nobody_follows_is_dropped(client, gateway, new_topic, monkeypatch):
    monkeypatch.setattr("headwater.gateway.live.tables._IDLE_S", 0.0)
    topic = new_topic(**COMPACTED)
    LiveClient().read(client, f"/live/{topic}", is_ready)
    until_s = time.monotonic() + TIMEOUT_S
    while gateway.gateway.live_memory.used_bytes:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_stream_ends_when_its_topic_is_deleted(client, admin, new_topic, gateway_broker):
    topic = new_topic(**COMPACTED)
    with client.stream("GET", f"/live/{topic}") as answer:
        found = events(answer.iter_lines())
        assert [next(found).name for _ in range(2)] == ["reset", "ready"]
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        last = next(found)
        assert last.name == "error"
        assert "there is no topic" in last.json["error"]
        assert list(found) == []


def test_rights(secured):
    with secured.client(user=secured.bob) as client:
        assert client.get("/live/closed").status_code == 403
        assert client.get("/live/inbox").status_code == 403
        assert client.get("/live/open").status_code == 409  # it may be read, but is no table


def test_the_page_of_the_example_in_chromium(chromium, gateway, new_topic, gateway_broker):
    topic = new_topic(**COMPACTED)
    write(
        gateway_broker,
        topic,
        ("1", {"item": "pen", "total": 5}),
        ("2", {"item": "desk", "total": 120}),
    )
    page = chromium.new_context().new_page()
    page.set_default_timeout(TIMEOUT_S * 1000)
    page.route(
        lambda url: url.startswith(f"{gateway.url}/page?"),
        lambda route: route.fulfill(body=PAGE.read_text(), content_type="text/html"),
    )
    page.goto(f"{gateway.url}/page?at={gateway.url}/live/{topic}?where=total%3E=100")

    def shows(*lines):
        page.wait_for_function(
            "wanted => JSON.stringify([...document.querySelectorAll('tr')].map(line =>"
            " [...line.children].map(cell => cell.textContent).join(' ')).sort()) === wanted",
            arg=json.dumps(sorted(lines), separators=(",", ":")),
        )

    shows("2 desk 120")
    write(
        gateway_broker,
        topic,
        ("1", {"item": "pen", "total": 100}),
        ("2", {"item": "desk", "total": 130}),
    )
    shows("1 pen 100", "2 desk 130")
    write(
        gateway_broker,
        topic,
        ("1", {"item": "pen", "total": 1}),
        ("2", None),
        ("3", {"item": "<b>", "total": 999}),
    )
    shows("3 <b> 999")
    page.context.close()
