"""GET /tables: rows of derived stores and of compacted topics, with read-your-writes."""

import json
import threading
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from support.gateway.derived_store import DerivedStore
from support.gateway.serving import TIMEOUT_S, serving

TOPIC = "tabled"
ROWS = [
    {
        "id": number,
        "city": ["Wien", "Graz", None][number % 3],
        "total": Decimal(number) / 2,
        "at": datetime(2026, 1, 1, number, tzinfo=UTC),
    }
    for number in range(6)
]


@pytest.fixture(scope="module")
def derived(tmp_path_factory, admin, gateway_broker):
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": gateway_broker})
    for number in range(10):
        producer.produce(TOPIC, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    store = DerivedStore(tmp_path_factory.mktemp("derived"), TOPIC)
    store.apply(ROWS, 6)
    store.apply([{**ROWS[1], "city": "a/b"}], 6, "pairs", ("id", "city"))
    return store


@pytest.fixture(scope="module")
def tables(derived, gateway_broker):
    with serving(derived.directory, broker__bootstrap=gateway_broker) as served:
        yield served


@pytest.fixture
def ask(tables):
    with tables.client() as client:
        yield client.get


def test_a_row_by_its_key(ask):
    answer = ask("/tables/orders/4")
    assert answer.json() == {
        "id": 4,
        "city": "Graz",
        "total": "2.00",
        "at": "2026-01-01T04:00:00Z",
    }
    assert answer.headers["headwater-position"] == f"{TOPIC}:0:5"
    assert ask("/tables/orders/4?columns=id,city").json() == {"id": 4, "city": "Graz"}
    assert ask("/tables/pairs/1/a%2Fb").json()["city"] == "a/b"
    missing = ask("/tables/orders/99")
    assert (missing.status_code, missing.json()["error"]) == (404, "there is no such row")


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"limit": 2}, [0, 1]),
        ({"where": "id>=4"}, [4, 5]),
        ({"where": ["id > 0", "city = Wien"]}, [3]),
        ({"where": 'city="Graz"', "order": "-id"}, [4, 1]),
        ({"where": "city=null"}, [2, 5]),
        ({"where": "city!=null", "order": "city,-id"}, [4, 1, 3, 0]),
        ({"where": "total=1.5"}, [3]),
        ({"where": "at>2026-01-01T03:30:00Z"}, [4, 5]),
        ({"where": "city=x' OR '1'='1"}, []),
    ],
)
def test_rows(ask, query, ids):
    answer = ask("/tables/orders", params=query)
    assert answer.status_code == 200, answer.text
    assert [row["id"] for row in answer.json()["rows"]] == ids


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tables/nothing", 404),
        ("/tables/nothing/1", 404),
        ("/tables/orders?sink=other", 404),
        ("/tables/orders?where=id", 400),
        ("/tables/orders?where=ids=1", 400),
        ("/tables/orders?where=1%3D1", 400),
        ("/tables/orders?where=id=one", 400),
        ("/tables/orders?where=total%3E1", 400),  # SQLite stores decimals as texts
        ("/tables/orders?order=id%20desc", 400),
        ("/tables/orders?columns=nothing", 400),
        ("/tables/orders?limit=0", 400),
        ("/tables/orders?limit=10001", 400),
        ("/tables/orders?sql=x", 400),
        ("/tables/orders/1?where=id=1", 400),
        ("/tables/orders/1/2", 400),
        ("/tables/orders/", 400),
        ("/tables/orders/%FF", 400),
        (f"/tables/{TOPIC}", 409),  # a topic that is not compacted
        ("/tables/__consumer_offsets", 403),
        ("/tables/a%20b", 404),
        ("/tables/..%2f..%2fetc", 404),
    ],
)
def test_what_is_refused(ask, path, status):
    answer = ask(path)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def test_a_table_that_was_never_written(tmp_path, gateway_broker):
    DerivedStore(tmp_path, TOPIC)
    with (
        serving(tmp_path, broker__bootstrap=gateway_broker) as served,
        served.client() as client,
    ):
        assert client.get("/tables/orders").status_code == 503


def test_reading_ones_own_writes(ask, derived):
    """The store is at offset 6: the record at 5 is in it, and that at 6 is not."""
    at = {"Headwater-Position": f"{TOPIC}:0:5"}
    assert ask("/tables/orders/5", headers=at).status_code == 200
    ahead = {"Headwater-Position": f"{TOPIC}:0:6"}
    late = ask("/tables/orders/5?wait_s=0.2", headers=ahead)
    assert (late.status_code, late.json()["reached"]) == (504, f"{TOPIC}:0:5")
    applied = threading.Timer(0.3, derived.apply, ([{**ROWS[0], "id": 7}], 7))
    applied.start()
    answer = ask("/tables/orders/7?wait_s=50", headers=ahead)
    applied.join(TIMEOUT_S)
    assert (answer.status_code, answer.headers["headwater-position"]) == (200, f"{TOPIC}:0:6")
    for wrong in ("nonsense", "other:0:1", f"{TOPIC}:x:1"):
        answer = ask("/tables/orders/5", headers={"Headwater-Position": wrong})
        assert answer.status_code == 400


@pytest.fixture(scope="module")
def compacted(admin, gateway_broker):
    name = "compacted-table"
    made = admin.create_topics([NewTopic(name, 2, config={"cleanup.policy": "compact"})])
    made[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": gateway_broker})
    for key, value in [
        ("a", '{"n":1}'), ("b", '{"n":2,"city":"Wien"}'), ("c", '{"n":3}'), ("a", '{"n":10}'),
        ("c", None), ("d", '"5"'), ("e/f", "text"),
    ]:  # fmt: skip
        producer.produce(name, value, key=key, partition=ord(key[0]) % 2)
    assert producer.flush(TIMEOUT_S) == 0
    return name


def test_a_compacted_topic_is_a_table(client, compacted):
    answer = client.get(f"/tables/{compacted}/a").json()
    assert (answer["key"], answer["value"], answer["partition"]) == ("a", {"n": 10}, 1)
    assert client.get(f"/tables/{compacted}/c").status_code == 404  # deleted
    assert client.get(f"/tables/{compacted}/e%2Ff").json()["value"] == "text"
    assert client.get(f"/tables/{compacted}/a?columns=value").json() == {"value": {"n": 10}}


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ({}, ["a", "b", "d", "e/f"]),
        ({"where": "n>=2"}, ["a", "b"]),
        ({"where": "n>=2", "order": "n"}, ["b", "a"]),
        ({"where": "$.city=Wien"}, ["b"]),
        ({"where": '$="5"'}, ["d"]),
        ({"where": "$=5"}, []),
        ({"order": "-n"}, ["a", "b", "d", "e/f"]),
    ],
)
def test_rows_of_a_compacted_topic(client, compacted, query, keys):
    answer = client.get(f"/tables/{compacted}", params=query)
    assert [row["key"] for row in answer.json()["rows"]] == keys


def test_a_captured_table_has_the_rows_after_its_changes(client, new_topic):
    """As captures write them: the topic has all records, and is not compacted."""
    topic = new_topic(retention_ms="-1")
    row = {"id": 1, "city": "Wien", "note": "long"}
    left_out = {**row, "city": "Graz", "note": "__debezium_unavailable_value"}

    def write(*pairs):
        lines = "".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in pairs)
        kind = {"Content-Type": "application/vnd.headwater.records+ndjson"}
        assert client.post(f"/topics/{topic}", content=lines, headers=kind).is_success

    one, two = '{"id":1}', '{"id":2}'
    write(
        (one, {"op": "c", "before": None, "after": row}),
        (two, {"op": "r", "before": None, "after": {**row, "id": 2}}),
        (one, {"schema": None, "payload": {"op": "u", "before": None, "after": left_out}}),
    )
    found = client.get(f"/tables/{topic}/1").json()
    assert (found["key"], found["value"]) == (one, {**row, "city": "Graz"})
    assert client.get(f"/tables/{topic}/%7B%22id%22%3A1%7D").json() == found
    rows = client.get(f"/tables/{topic}", params={"where": "city=Wien"}).json()["rows"]
    assert [one["value"]["id"] for one in rows] == [2]
    write((one, {"op": "d", "before": row, "after": None}), (one, None))
    assert client.get(f"/tables/{topic}/1").status_code == 404
    write((None, {"op": "t", "before": None, "after": None}))
    assert client.get(f"/tables/{topic}").json()["rows"] == []
    write((two, {"op": "c", "before": None, "after": row}))
    assert client.get(f"/tables/{topic}/2").json()["value"] == row


def test_keys_of_several_columns(client, new_topic):
    topic = new_topic(cleanup_policy="compact")
    key = {"Headwater-Key": '{"country":"AT","day":3}'}
    assert client.post(f"/topics/{topic}", json=1, headers=key).is_success
    assert client.get(f"/tables/{topic}/AT/3").json()["value"] == 1
    for other in ("AT/4", "AT/x", "AT", "AT/3/1"):
        assert client.get(f"/tables/{topic}/{other}").status_code == 404


def test_what_was_written_to_a_topic_is_read(client, new_topic):
    topic = new_topic(cleanup_policy="compact")
    for number in range(5):
        written = client.post(f"/topics/{topic}?key=k", json=number)
        token = {"Headwater-Position": written.headers["headwater-position"]}
        assert client.get(f"/tables/{topic}/k", headers=token).json()["value"] == number
    ahead = {"Headwater-Position": f"{topic}:0:5"}
    late = client.get(f"/tables/{topic}/k?wait_s=0.1", headers=ahead)
    assert (late.status_code, late.json()["reached"]) == (504, f"{topic}:0:4")


def test_a_topic_that_does_not_fit(client, new_topic, monkeypatch):
    monkeypatch.setattr("headwater.gateway.tables.latest.MAX_BYTES", 2000)
    topic = new_topic(cleanup_policy="compact")
    for number in range(10):
        assert client.post(f"/topics/{topic}?key={number}", json=number).status_code == 200
    assert client.get(f"/tables/{topic}").status_code == 413


def test_rights(secured, tmp_path):
    """A table may be read by who may read the topics that it is derived from."""
    from support.broker.secured import PASSWORD, USER

    derived = DerivedStore(tmp_path, "closed")
    derived.apply(ROWS, 6)
    with serving(
        tmp_path,
        broker__listen=secured.broker.bootstrap,
        broker__authentication="sasl",
        client__username=USER,
        client__password=PASSWORD,
    ) as served:
        with served.client(user=secured.alice) as client:
            assert len(client.get("/tables/orders").json()["rows"]) == 6
        with served.client(user=secured.bob) as client:
            denied, missing = client.get("/tables/orders"), client.get("/tables/missing")
            assert denied.status_code == missing.status_code == 403
            assert denied.text.replace("orders", "missing") == missing.text
            assert client.get("/tables/orders/1").status_code == 403
