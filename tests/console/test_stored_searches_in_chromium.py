"""The pages of stored searches in a real browser: from a test to what is stored and dropped."""

import json
from uuid import uuid4

from confluent_kafka import Producer
from playwright.sync_api import expect
from support.console.chromium import check_readable

from headwater.client.topics import NewTopic, ensure_topics
from headwater.pipelines.search.stored_searches import StoredSearch, StoredSearches
from headwater.settings import ClientSettings

HOSTILE = '<img src=x onerror="alert(1)"> the storm </em><script>alert(2)</script>'


def test_a_query_is_tested_stored_changed_and_dropped(console, console_broker, new_page):
    name = uuid4().hex[:8]
    articles, topic = f"articles-{name}", f"searches-{name}"
    ensure_topics(console_broker, ClientSettings(), [NewTopic(articles, 1)])
    producer = Producer({"bootstrap.servers": console_broker})
    for title in (HOSTILE, "Quiet"):
        producer.produce(articles, json.dumps({"title": title}))
    producer.flush()
    stored = StoredSearches(console_broker, ClientSettings(), topic)
    stored.put(StoredSearch("other", "rain AND (snow OR hail) " * 20, "ann", "english", "x" * 60))
    page = new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{console.url}/searches?searches={topic}")
    expect(page.get_by_role("row", name="other")).to_be_visible()
    check_readable(page, "/searches")
    nav, who = page.locator(".top nav").bounding_box(), page.locator(".who").bounding_box()
    assert nav["x"] + nav["width"] <= who["x"]  # on one line

    page.get_by_role("link", name="New search").click()
    test = page.locator("#test")
    test.get_by_label("Query").fill("storm")
    test.get_by_label("Topic of the documents").fill(articles)
    test.get_by_label("Text fields").fill("title")
    test.get_by_role("button", name="Test").click()
    matches = page.locator("#tested-matches")
    expect(matches).to_contain_text("1 of 2 documents would have matched")
    expect(matches.locator("em")).to_have_text("storm")
    expect(matches.locator(".fragment")).to_have_text(HOSTILE)
    assert matches.locator("img, script").count() == 0
    check_readable(page, "/new-search")

    page.get_by_label("Id").fill("storms")
    page.get_by_role("button", name="Store …").click()
    expect(page.locator("h1")).to_have_text("Store search storms?")
    assert list(stored.all()) == ["other"]
    page.get_by_role("button", name="Store it").click()
    expect(page.locator("h1")).to_have_text("Stored searches storms")
    assert stored.one("storms").query == "storm"
    check_readable(page, "/searches/storms/")
    page.get_by_role("button", name="Drop …").click()
    page.get_by_role("button", name="Drop it").click()
    expect(page.get_by_role("row", name="other")).to_be_visible()
    assert list(stored.all()) == ["other"]
