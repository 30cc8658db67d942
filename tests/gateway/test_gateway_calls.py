"""POST /rpc/NAME: calls of services over HTTP."""

import json
import threading

import httpx
import pytest
from support.gateway.serving import TIMEOUT_S

from headwater.errors import CallFailed, UsageError
from headwater.rpc.messages import Request
from headwater.rpc.owned_rows import OwnedRows
from headwater.rpc.server import Server
from headwater.rpc.work import handler_of
from headwater.settings import ClientSettings


@pytest.fixture(scope="module")
def price(gateway_broker):
    waiting, cancelled, ran = threading.Event(), threading.Event(), []

    def handler(request: Request):
        ran.append(request.id)
        if request.body == "slow":
            waiting.set()
            if request.cancelled.wait(TIMEOUT_S):
                cancelled.set()
            return None
        if request.body == "none":
            raise UsageError("there is no price", hint="ask for another item")
        return {"price": request.body["item"] * 10}

    server = Server(gateway_broker, ClientSettings(), "price", handler_of(handler), partitions=2)
    with server:
        assert server.is_ready.wait(TIMEOUT_S)
        server.waiting, server.cancelled, server.ran = waiting, cancelled, ran
        yield server


def test_a_call(client, price):
    answer = client.post("/rpc/price", json={"item": 7})
    assert (answer.status_code, answer.json()) == (200, {"price": 70})


def test_a_repeated_call_is_executed_once(client, price):
    before = len(price.ran)
    for _ in range(3):
        answer = client.post("/rpc/price", json={"item": 1}, headers={"Idempotency-Key": "k"})
        assert answer.json() == {"price": 10}
    assert len(price.ran) == before + 1


def test_what_goes_wrong(client, price):
    assert client.post("/rpc/nobody", json=1).status_code == 404
    failed = client.post("/rpc/price", json="none")
    assert (failed.status_code, failed.json()) == (
        502, {"error": "there is no price", "hint": "ask for another item"},
    )  # fmt: skip
    assert client.post("/rpc/price", content=b"{").status_code == 400
    assert client.post("/rpc/price?timeout=1", json=1).status_code == 400
    assert client.post("/rpc/pr%2Fice", json=1).status_code in (400, 404)
    late = client.post("/rpc/price?timeout_s=0.1", json="slow")
    assert late.status_code == 504


def test_a_question_to_all_partitions(gateway_broker, client, new_topic):
    visits = new_topic(partitions=3, cleanup_policy="compact")
    rows = OwnedRows(gateway_broker, ClientSettings(), visits)

    def count(found, url):
        if url is None:
            raise CallFailed("which one?")
        return sum(url in visitor["urls"] for visitor in found.values())

    lines = "".join(
        json.dumps({"key": f"ada-{n}", "value": {"urls": ["/sale"]}}) + "\n" for n in range(30)
    )
    records = {"Content-Type": "application/vnd.headwater.records+ndjson"}
    assert client.post(f"/topics/{visits}", content=lines, headers=records).is_success
    server = Server(gateway_broker, ClientSettings(), "reach", rows.handler(count), rows=rows)
    with server:
        assert server.is_ready.wait(TIMEOUT_S)
        answers = client.post("/rpc/reach/ask", json="/sale").json()
        assert (len(answers), sum(answers)) == (3, 30)
        failed = client.post("/rpc/reach/ask", json=None)
        assert (failed.status_code, failed.json()["error"]) == (502, "which one?")
        called = client.post("/rpc/reach", json="/sale")
        assert "POST /rpc/reach/ask" in called.json()["hint"]
    silent = client.post("/rpc/reach/ask?timeout_s=0.2", json="/sale")
    assert (silent.status_code, silent.json()["detail"]) == (
        504, "0 of 3 have; missing: 0, 1, 2",
    )  # fmt: skip
    assert client.post("/rpc/nobody/ask", json=1).status_code == 404


def test_a_client_that_leaves_cancels_its_request(gateway, price):
    price.waiting.clear()
    price.cancelled.clear()
    with gateway.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/rpc/price", json="slow", timeout=httpx.Timeout(TIMEOUT_S, read=0.5))
    assert price.waiting.wait(TIMEOUT_S)
    assert price.cancelled.wait(TIMEOUT_S)


def test_who_may_not_write_requests_may_not_call(secured):
    with secured.client(user=secured.bob) as client:
        assert client.post("/rpc/price", json=1).status_code == 403
    with secured.client() as client:
        assert client.post("/rpc/price", json=1).status_code == 401
