"""The pages of topics in a real browser."""

import dataclasses
import json
import re

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import expect
from support.console.chromium import check_readable
from support.console.serving import serving
from tiers import long

from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker

TIMEOUT_S = 60.0
TOPIC = "looked-at"
PATHS = [
    "/topics", f"/topics/{TOPIC}/", f"/topics/{TOPIC}/records", f"/topics/{TOPIC}/records/0/1/",
    f"/topics/{TOPIC}/search", f"/topics/{TOPIC}/tail", f"/topics/{TOPIC}/produce", "/new-topic",
    f"/topics/{TOPIC}/settings",
    "/nowhere",
]  # fmt: skip


def create(bootstrap, *names, **options):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, **options) for name in names]).values():
        future.result(TIMEOUT_S)


def change(operation, before, after):
    source = {"schema": "public", "table": "customers", "ts_ms": 1_700_000_000_000}
    return json.dumps({"before": before, "after": after, "op": operation, "source": source})


@pytest.fixture(scope="module")
def produce(console_broker):
    create(console_broker, TOPIC, num_partitions=1)
    producer = Producer({"bootstrap.servers": console_broker})

    def write(value, key=None, topic=TOPIC, headers=None):
        producer.produce(topic, value, key, headers=headers)
        assert producer.flush(TIMEOUT_S) == 0

    write("plain", "first")
    write(change("u", {"id": 1, "city": "Wien"}, {"id": 1, "city": "Graz"}), '{"id":1}')
    write(bytes(range(200)), b"\xff\x00", headers={"trace": "abc"})
    write(None, "first")
    return write


def test_every_page_is_readable_in_light_and_dark_and_on_a_phone(console, produce, new_page):
    page = new_page()
    for path in PATHS:
        page.goto(console.url + path)
        assert page.locator("h1, #trouble strong").count() >= 1
        check_readable(page, path)


def test_the_switch_of_colours_is_remembered(console, produce, new_page):
    page = new_page(color_scheme="light")
    page.goto(f"{console.url}/topics")
    page.get_by_role("button", name="Theme: auto").click()
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 23)"


def test_by_keyboard_alone(console, produce, new_page):
    page = new_page()
    page.goto(f"{console.url}/topics")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == TOPIC:
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(TOPIC)
    page.get_by_role("link", name="Records").focus()
    page.keyboard.press("Enter")
    page.locator("#record-0-1 > summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#record-0-1 .diff")).to_be_visible()


@long
def test_a_change_is_shown_as_a_difference(console, produce, new_page):
    page = new_page()
    page.goto(f"{console.url}/topics/{TOPIC}/records")
    page.locator("#record-0-1 > summary").click()
    row = page.locator("#record-0-1 tr.differs")
    expect(row).to_have_count(1)
    expect(row.locator("th")).to_contain_text("city")
    expect(row.locator(".removed")).to_have_text('"Wien"')
    expect(row.locator(".added")).to_have_text('"Graz"')
    page.locator("#record-0-2 > summary").click()
    expect(page.locator("#record-0-2 pre").last).to_contain_text("00000000  00 01 02")


def test_markup_in_records_is_shown_as_text(console, produce, new_page):
    mean = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    create(console.console.config.bootstrap(), "mean", num_partitions=1)
    produce(mean, mean, "mean", {mean: mean})
    produce(json.dumps({"before": None, "after": {mean: mean}, "op": mean}), mean, "mean")
    page = new_page()
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(f"{console.url}/topics/mean/records")
    for offset in (0, 1):
        page.locator(f"#record-0-{offset} > summary").click()
        expect(page.locator(f"#record-0-{offset} .one")).to_contain_text(mean)
    assert page.locator("main img, main script").count() == 0
    page.goto(f"{console.url}/topics/mean/tail")
    expect(page.locator("#tail-state")).to_contain_text("following")
    produce(mean, mean, "mean", {mean: mean})
    expect(page.locator("#tail .record").first).to_contain_text(mean)
    page.goto(f"{console.url}/topics/mean/search?key={mean}")
    expect(page.get_by_label("Key", exact=True)).to_have_value(mean)
    assert page.locator("main img, main script").count() == 0
    assert not dialogs


@long
def test_a_live_tail_shows_what_is_written_and_says_what_it_leaves_out(console, produce, new_page):
    page = new_page()
    page.goto(f"{console.url}/topics/{TOPIC}/tail")
    expect(page.locator("#tail-state")).to_contain_text("following")
    produce("seen at once", "tail")
    expect(page.locator("#tail .record").first).to_contain_text("seen at once")
    page.get_by_role("button", name="Pause").click()
    for number in range(500):
        produce(f"burst {number}")
    produce("the last of the burst")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#tail .record").first).to_contain_text("the last of the burst")
    expect(page.locator("#tail-count")).to_contain_text(re.compile(r"\d+ were skipped"))
    page.locator("#tail .record > summary").first.click()
    expect(page.locator("#tail .record .one").first).to_contain_text("the last of the burst")


@long
def test_a_search_finds_a_record(console, produce, new_page):
    produce("the needle in it", "hay")
    page = new_page()
    page.goto(f"{console.url}/topics/{TOPIC}/search")
    page.get_by_label("Value contains").first.fill("needle in")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("status")).to_contain_text("1 record found")
    expect(page.locator(".record .value")).to_have_text("the needle in it")


def test_nothing_is_written_or_deleted_without_a_confirmation(console, console_broker, new_page):
    create(console_broker, "precious", num_partitions=2)
    page = new_page()
    page.goto(f"{console.url}/topics/precious/produce")
    page.get_by_label("Key", exact=True).fill("k")
    page.get_by_label("Value", exact=True).fill('{"a": 1}')
    page.get_by_label("Headers").fill("source=console")
    page.get_by_role("button", name="Write …").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Write a record to precious?")
    assert console.browser().get("/topics/precious/records.json").json["records"] == []
    page.get_by_role("button", name="Write it").click()
    expect(page.locator(".one")).to_contain_text("source")
    (record,) = console.browser().get("/topics/precious/records.json").json["records"]
    assert (record["key"], record["value"]) == ("k", '{"a": 1}')
    assert record["headers"] == [["source", "console"]]

    page.goto(f"{console.url}/topics/precious/settings")
    page.get_by_role("button", name="Delete this topic …").click()
    page.get_by_label("Type precious to confirm").fill("preciou")
    page.get_by_role("button", name="Delete it permanently").click()
    expect(page.get_by_text("The name does not match.")).to_be_visible()
    assert console.browser().get("/topics/precious.json").status == 200
    page.get_by_label("Type precious to confirm").fill("precious")
    page.get_by_role("button", name="Delete it permanently").click()
    page.wait_for_url("**/topics")
    assert console.browser().get("/topics/precious.json").status == 404


def test_a_topic_is_created(console, new_page):
    page = new_page()
    page.goto(f"{console.url}/topics")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name").fill("made-here")
    page.get_by_label("Partitions").fill("3")
    page.get_by_label("Configuration").fill("retention.ms=7d")
    page.get_by_role("button", name="Create …").click()
    page.get_by_role("button", name="Create it").click()
    expect(page.locator("tr.changed")).to_contain_text("retention.ms")
    expect(page.locator("tr.changed")).to_contain_text("604800000")
    page.get_by_text("not set here").click()
    expect(page.get_by_text("segment.index.bytes")).to_be_visible()
    with page.expect_response("**/topics/made-here/"):
        pass  # it has renewed itself
    expect(page.get_by_text("segment.index.bytes")).to_be_visible()


def test_a_hidden_tab_sends_no_requests(console, produce, new_page):
    page = new_page()
    page.clock.install()
    page.goto(f"{console.url}/topics")
    asked = []
    page.on("request", lambda request: asked.append(request.resource_type))
    with page.expect_response("**/topics"):
        page.clock.run_for(2500)
    assert "xhr" in asked
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    asked.clear()
    page.clock.run_for(60_000)
    assert "xhr" not in asked


@long
def test_a_broken_broker_is_reported_and_the_last_data_stay(tmp_path, new_page):
    broker = InProcessBroker(str(tmp_path / "broker"))
    broker.start()
    address = broker.bootstrap
    try:
        create(address, "kept", num_partitions=1)
        with serving(tmp_path, broker__bootstrap=address) as served:
            page, late = new_page(), new_page()
            page.goto(f"{served.url}/topics")
            expect(page.get_by_role("link", name="kept")).to_be_visible()
            broker.stop()
            expect(page.locator("#trouble")).to_contain_text("The broker does not answer")
            expect(page.get_by_role("link", name="kept")).to_be_visible()
            late.goto(f"{served.url}/topics/kept/")
            expect(late.locator("#trouble")).to_contain_text("The broker does not answer")
            broker = InProcessBroker(
                str(tmp_path / "broker"), dataclasses.replace(BrokerSettings(), listen=address)
            )
            broker.start()
            expect(page.locator("#trouble")).to_be_empty()
            expect(late.locator("h1")).to_contain_text("kept")
            expect(late.locator("#trouble")).to_be_empty()
    finally:
        broker.stop()
