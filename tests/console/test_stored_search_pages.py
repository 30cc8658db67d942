"""Stored searches in the console: listed, tested, stored, changed and dropped, with the rights that
their topic asks for.
"""

import json
import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import TIMEOUT_S, serving

from headwater.client.topics import NewTopic as Topic
from headwater.client.topics import ensure_topics
from headwater.console.pages import stored_searches as page
from headwater.pipelines.search.stored_searches import StoredSearch, StoredSearches
from headwater.settings import ClientSettings


@pytest.fixture
def topic():
    """Of searches."""
    return f"searches-{uuid4().hex[:8]}"


@pytest.fixture
def stored(console_broker, topic):
    return StoredSearches(console_broker, ClientSettings(), topic)


@pytest.fixture
def documents(console_broker):
    """A topic of them, and what writes values into it, so many seconds ago."""
    name = f"articles-{uuid4().hex[:8]}"
    ensure_topics(console_broker, ClientSettings(), [Topic(name, 1)])
    producer = Producer({"bootstrap.servers": console_broker, "linger.ms": 0})

    def write(*values, ago_s=5):
        at_ms = int((time.time() - ago_s) * 1000)
        for value in values:
            data = value if isinstance(value, bytes) else json.dumps(value)
            producer.produce(name, data, timestamp=at_ms)
        assert producer.flush(TIMEOUT_S) == 0

    return name, write


def test_searches_are_stored_changed_and_dropped_after_a_confirmation(browser, stored, topic):
    fields = {
        "searches": topic, "id": "storms", "query": "storm AND\r\nNOT sports", "owner": "ann",
        "language": "english", "target": "ann@example.org", "limit": "10",
    }  # fmt: skip
    assert "Store search storms?" in browser.post("/new-search", fields).text
    assert stored.all() == {}
    answer = browser.post("/new-search", {**fields, "confirmed": "yes"})
    address = f"/searches/storms/?searches={topic}"
    assert (answer.status, answer.headers["location"]) == (303, address)
    search = stored.one("storms")
    assert (search.query, search.language, search.limit) == (
        "storm AND\nNOT sports", "english", 10,
    )  # fmt: skip
    shown = browser.get(f"/searches/storms.json?searches={topic}").json["search"]
    assert (shown["owner"], shown["target"], shown["error"]) == ("ann", "ann@example.org", "")
    assert shown["created"] == search.created

    change = {"searches": topic, "id": "storms", "query": "flood", "limit": ""}
    question = browser.post("/new-search", change).text
    assert "Replace search storms?" in question
    assert "Until now it is “storm AND\nNOT sports”" in question
    assert browser.post("/new-search", {**change, "confirmed": "yes"}).status == 303
    listed = browser.get(f"/searches.json?searches={topic}").json["searches"]
    assert [(row["id"], row["query"], row["limit"]) for row in listed] == [
        ("storms", "flood", None)
    ]

    assert "Drop it" in browser.post("/searches/storms/drop", {"searches": topic}).text
    assert "storms" in stored.all()
    gone = browser.post("/searches/storms/drop", {"searches": topic, "confirmed": "yes"})
    assert (gone.status, gone.headers["location"]) == (303, f"/searches?searches={topic}")
    assert stored.all() == {}
    assert browser.get(address).status == 404
    assert "No searches in searches yet" in browser.get("/searches").text  # the default topic


def test_mistakes_are_shown_with_their_place_and_nothing_is_stored(browser, stored, topic):
    good = {"searches": topic, "id": "a", "query": "storm", "confirmed": "yes"}
    for wrong, message in (
        ({"query": "storm AND (rain OR"}, "line 1, column 19: the query ends"),
        ({"query": ""}, "is empty"),
        ({"query": "NOT storm"}, "would match every document"),
        ({"language": "germann"}, "did you mean german?"),
        ({"id": "a b"}, "id of a search"),
        ({"limit": "0"}, "not a limit: 0"),
        ({"limit": "many"}, "not a limit: many"),
    ):
        answer = browser.post("/new-search", good | wrong)
        assert answer.status == 400, wrong
        assert message in answer.text.lower(), wrong
    assert browser.post("/new-search", good, token=False).status == 403
    assert stored.all() == {}


def test_searches_of_other_producers_are_listed_with_what_is_wrong(
    browser, stored, topic, console_broker
):
    stored.put(StoredSearch("good", "storm"))
    producer = Producer({"bootstrap.servers": console_broker, "linger.ms": 0})
    for value in (
        {"id": "a/b<i>", "query": "(rain", "owner": "<b>", "created": "yesterday"},
        {"query": "without an id"},
        {"id": "without a query"},
        [1],
    ):
        key = json.dumps({"id": value["id"] if "id" in value else uuid4().hex}).encode()
        producer.produce(topic, json.dumps(value), key)
    assert producer.flush(TIMEOUT_S) == 0
    listed = browser.get(f"/searches.json?searches={topic}&search=rain").json
    assert [row["id"] for row in listed["searches"]] == ["a/b<i>"]
    assert "column" in listed["searches"][0]["error"]
    assert listed["total"] == 2
    text = browser.get(f"/searches?searches={topic}").text
    assert "<i>" not in text
    assert "a/b&lt;i&gt;" in text
    one = browser.get(f"{page.address_of('a/b<i>', topic)}")
    assert one.status == 200
    assert "This search matches nothing" in one.text
    assert browser.post(
        "/searches/a%2Fb%3Ci%3E/drop", {"searches": topic, "confirmed": "yes"}
    ).status == 303  # fmt: skip
    assert list(stored.all()) == ["good"]


def test_what_would_have_matched_in_the_last_hour(browser, stored, topic, documents):
    name, write = documents
    write({"title": "An old storm"}, ago_s=7200)
    write({"title": "<b>Storms</b> & <em>rain</em>"}, {"title": "Quiet"}, b"\xff no JSON")
    stored.put(StoredSearch("storms", "storm", language="english"))
    address = f"/searches/storms.json?searches={topic}"
    test = f"&topic={name}&text=title,+body&language=english"
    tested = browser.get(address + test).json["tested"]
    assert (tested["query"], tested["text"], tested["since"]) == ("storm", ["title", "body"], "1h")
    assert (tested["found"], tested["documents"], tested["unreadable"]) == (1, 2, 1)
    (match,) = tested["matches"]
    assert match["highlights"] == ["<b><em>Storms</em></b> & <em>rain</em>"]
    assert (match["partition"], match["offset"]) == (0, 1)
    text = browser.get((address + test).replace(".json", "/")).text
    assert "&lt;b&gt;<em>Storms</em>&lt;/b&gt; &amp; &lt;em&gt;rain&lt;/em&gt;" in text
    assert f'href="/topics/{name}/records/0/1/"' in text
    day = browser.get(f"{address}{test}&since=1d").json["tested"]
    assert [match["offset"] for match in day["matches"]] == [1, 0]  # the newest first
    other = browser.get(f"{address}{test}&query=quiet").json
    assert (other["tested"]["matches"][0]["offset"], other["search"]["query"]) == (2, "storm")
    unsaved = browser.get(f"/new-search?query=quiet&topic={name}&text=title")
    assert "1 of 2 documents would have matched" in unsaved.text
    assert stored.one("storms").query == "storm"


def test_a_test_that_cannot_be_made_says_why_on_its_page(browser, documents):
    name, _ = documents
    for given, message in (
        (f"query=storm+AND&topic={name}&text=title", "column 10: the query ends"),
        (f"query=storm&topic={name}&text=", "a test needs a topic and the text fields"),
        ("query=storm&topic=nowhere&text=title", "there is no topic nowhere"),
        (f"query=storm&topic={name}&text=title&language=elvish", "there is no language elvish"),
    ):
        assert message in browser.get(f"/new-search.json?{given}").json["tested"]["error"]
        shown = browser.get(f"/new-search?{given}")
        assert shown.status == 200
        assert "would have matched</strong>" not in shown.text


def test_a_test_is_bounded(browser, documents, monkeypatch):
    name, write = documents
    write(*({"title": f"storm {number}", "filler": "x" * 900} for number in range(120)))
    address = f"/new-search.json?query=storm&topic={name}&text=title"
    tested = browser.get(address).json["tested"]
    assert (tested["found"], len(tested["matches"])) == (120, 50)
    assert tested["matches"][0]["highlights"] == ["<em>storm</em> 119"]
    monkeypatch.setattr(page, "_RECORDS_BYTES", 10_000)
    tested = browser.get(address).json["tested"]
    assert (tested["documents"], tested["matches"][0]["offset"]) == (10, 119)
    monkeypatch.setattr(page, "_RECORDS", 7)
    assert browser.get(address).json["tested"]["documents"] == 7


def test_users_need_the_rights_of_the_topic_of_searches(tmp_path):
    with secured_broker(tmp_path / "broker") as broker:
        add_user(broker, "reader", "reads")
        add_user(broker, "writer", "writes")
        login = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        admin = AdminClient(login)
        for future in admin.create_topics([NewTopic("searches", 1), NewTopic("news", 1)]).values():
            future.result(TIMEOUT_S)
        producer = Producer(login)
        producer.produce("searches", b'{"id": "rain", "query": "rain"}', b'{"id": "rain"}')
        producer.produce("news", b'{"title": "Rain"}')
        assert producer.flush(TIMEOUT_S) == 0
        rules = [
            _allowed("reader", ResourceType.TOPIC, "searches", AclOperation.READ),
            _allowed("writer", ResourceType.TOPIC, "searches", AclOperation.READ),
            _allowed("writer", ResourceType.TOPIC, "searches", AclOperation.WRITE),
            _allowed(
                "writer", ResourceType.TRANSACTIONAL_ID, "headwater-searches-searches",
                AclOperation.WRITE,
            ),
            _allowed("writer", ResourceType.TOPIC, "news", AclOperation.READ),
        ]  # fmt: skip
        for future in admin.create_acls(rules).values():
            future.result(TIMEOUT_S)
        with serving(
            tmp_path, broker__listen=broker.bootstrap, broker__authentication="sasl"
        ) as served:
            anybody = served.browser()
            assert anybody.get("/searches.json").status == 401
            reader = _signed_in(served, "reader", "reads")
            assert [row["id"] for row in reader.get("/searches.json").json["searches"]] == ["rain"]
            form = {"id": "snow", "query": "snow", "confirmed": "yes"}
            refused = reader.post("/new-search", form)
            assert refused.status == 403
            assert "AUTHORIZATION" in refused.text
            assert reader.post("/searches/rain/drop", {"confirmed": "yes"}).status == 403
            test = "/new-search.json?query=rain&topic=news&text=title"
            assert "AUTHORIZATION" in reader.get(test).json["tested"]["detail"]
            writer = _signed_in(served, "writer", "writes")
            assert writer.get(test).json["tested"]["found"] == 1
            assert writer.post("/new-search", form).status == 303
            assert writer.post("/searches/rain/drop", {"confirmed": "yes"}).status == 303
            assert [row["id"] for row in writer.get("/searches.json").json["searches"]] == ["snow"]
            assert writer.get("/searches.json?searches=hidden").status in (200, 403)


def _signed_in(served, name, password):
    browser = served.browser()
    fields = {"name": name, "password": password, "next": "/searches"}
    assert browser.post("/sign-in", fields).status == 303
    return browser


def _allowed(user, kind, name, operation):
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip
