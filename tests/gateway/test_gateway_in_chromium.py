"""A browser's own EventSource reads a topic, and goes on by itself where it stopped."""

import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.gateway.serving import TIMEOUT_S, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "live"
PAGE = """
<script>
  window.seen = [];
  const source = new EventSource("/topics/%s?from=start");
  source.onmessage = (event) => window.seen.push([event.lastEventId, JSON.parse(event.data).value]);
  window.stop = () => source.close();
</script>
"""


@pytest.fixture
def page(chromium, gateway):
    context = chromium.new_context()
    context.set_default_timeout(TIMEOUT_S * 1000)
    page = context.new_page()
    yield page
    context.close()


def open_page(page, url, topic):
    """A page of the gateway's own site, with our script in it."""
    page.route(f"{url}/", lambda route: route.fulfill(body=PAGE % topic, content_type="text/html"))
    page.goto(f"{url}/")


def seen(page, number):
    page.wait_for_function(f"window.seen.length >= {number}")
    return page.evaluate("window.seen")


def test_event_source(page, gateway, topic, gateway_broker):
    producer = Producer({"bootstrap.servers": gateway_broker})
    producer.produce(topic, '{"city":"Wien"}')
    assert producer.flush(TIMEOUT_S) == 0
    open_page(page, gateway.url, topic)
    assert seen(page, 1) == [["0:1", {"city": "Wien"}]]
    producer.produce(topic, '{"city":"Graz"}')
    assert producer.flush(TIMEOUT_S) == 0
    assert seen(page, 2)[1] == ["0:2", {"city": "Graz"}]
    page.evaluate("window.stop()")


@pytest.fixture
def plain_page(chromium):
    """Without the policy of the gateway's own pages, which are JSON and have no scripts. A page
    that is made up has no address, and a browser lets it open no socket to 127.0.0.1.
    """
    context = chromium.new_context(bypass_csp=True)
    context.set_default_timeout(TIMEOUT_S * 1000)
    yield context.new_page()
    context.close()


def test_a_web_socket_both_ways_and_not_for_other_sites(plain_page, gateway, topic, example):
    page = plain_page
    page.goto(f"{gateway.url}/health")
    url = f"ws://{gateway.address}/topics/{topic}"
    answer = page.evaluate(
        """(url) => new Promise((resolve) => {
          const socket = new WebSocket(url, ["headwater"]);
          const seen = [];
          socket.onopen = () => socket.send(JSON.stringify({id: 1, records: [{value: {n: 1}}]}));
          socket.onmessage = (event) => {
            seen.push(JSON.parse(event.data));
            if (seen.some((m) => m.written) && seen.some((m) => m.record)) resolve(seen);
          };
          socket.onerror = () => resolve("refused");
        })""",
        url,
    )
    assert {"id": 1, "written": [{"partition": 0, "offset": 0}]} in answer
    assert [m["record"]["value"] for m in answer if "record" in m] == [{"n": 1}]
    page.goto(example)
    refused = page.evaluate(
        """(url) => new Promise((resolve) => {
          const socket = new WebSocket(url);
          socket.onopen = () => resolve("open");
          socket.onerror = () => resolve("refused");
        })""",
        url,
    )
    assert refused == "refused"


def test_it_goes_on_after_a_restart_of_the_gateway(page, tmp_path, topic, gateway_broker):
    producer = Producer({"bootstrap.servers": gateway_broker})

    def write(value):
        producer.produce(topic, value)
        assert producer.flush(TIMEOUT_S) == 0

    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        address = served.address
        write("1")
        open_page(page, served.url, topic)
        assert [value for _, value in seen(page, 1)] == [1]
    write("2")
    with serving(tmp_path, listen=address, broker__bootstrap=gateway_broker):
        write("3")
        assert [value for _, value in seen(page, 3)] == [1, 2, 3]


@pytest.fixture
def example():
    """The origin of a server that has the page of the example."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(EXAMPLE))

        def log_message(self, *_):
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


def test_the_page_of_the_example(page, example, tmp_path, topic, gateway_broker):
    with (
        serving(
            tmp_path, broker__bootstrap=gateway_broker, gateway__allowed_origins=example
        ) as served,
        served.client() as client,
    ):
        page.goto(f"{example}/?gateway={served.url}&topic={topic}&where=$.total%3E=100")
        page.get_by_text("live", exact=True).wait_for()
        for total in (99, 100, 250):
            client.post(f"/topics/{topic}?key=order-{total}", json={"total": total})
        page.get_by_text("order-250").wait_for()
        rows = page.locator("#rows tr").all_inner_texts()
        assert [row.split()[0] for row in rows] == ["order-250", "order-100"]
        page.goto("about:blank")


def test_a_page_of_another_site_gets_nothing(page, gateway, topic):
    page.route(
        "http://evil.example/",
        lambda route: route.fulfill(body="<p>hello</p>", content_type="text/html"),
    )
    page.goto("http://evil.example/")
    refused = page.evaluate(
        """async (url) => {
            try { return (await fetch(url, {method: "POST", body: "{}"})).status; }
            catch (error) { return String(error); }
        }""",
        f"{gateway.url}/topics/{topic}",
    )
    assert refused == "TypeError: Failed to fetch"
    with gateway.client() as client:
        assert client.get(f"/topics/{topic}").json()["records"] == []
