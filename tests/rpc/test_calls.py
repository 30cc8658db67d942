"""Calls over topics: one reply for each, errors, timeouts, cancellation."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

import headwater as hw
from headwater.errors import CallFailed, CallTimedOut, RequestRefused, UsageError
from headwater.rpc.api import awaited
from headwater.rpc.messages import REPLIES, REPLY, reply_headers, topic_of

TIMEOUT_S = 60.0


def wait_until(condition):
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_reply(serve, caller, name):
    serve(lambda body: {"sum": body["a"] + body["b"]})
    assert caller.call(name, {"a": 2, "b": 3}, timeout_s=TIMEOUT_S) == {"sum": 5}


def test_a_coroutine_serves_and_a_task_calls(serve, caller, name):
    async def double(body):
        await asyncio.sleep(0)
        return body * 2

    serve(double)

    async def run():
        calls = [awaited(caller, name, n, timeout_s=TIMEOUT_S) for n in range(10)]
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == [n * 2 for n in range(10)]


def test_an_error_of_the_handler_is_raised_at_the_caller(serve, caller, name):
    def handler(body):
        if body == "ours":
            raise UsageError("no such item", detail="7", hint="there are 1 to 6")
        return {}[body]

    serve(handler)
    with pytest.raises(CallFailed) as raised:
        caller.call(name, "ours", timeout_s=TIMEOUT_S)
    error = raised.value
    assert (error.what, error.detail, error.hint) == ("no such item", "7", "there are 1 to 6")
    with pytest.raises(CallFailed, match="KeyError: 'other'"):
        caller.call(name, "other", timeout_s=TIMEOUT_S)


def test_a_reply_that_is_no_json_is_an_error(serve, caller, name):
    serve(lambda body: object())
    with pytest.raises(CallFailed, match="cannot be sent as JSON"):
        caller.call(name, timeout_s=TIMEOUT_S)


def test_a_service_that_nobody_has_ever_served(caller, name):
    with pytest.raises(RequestRefused, match="there is no service"):
        caller.call(name)


def test_a_request_that_is_not_begun_in_time_is_not_executed(serve, caller, name):
    ran, goes_on = [], threading.Event()

    def handler(body):
        ran.append(body)
        goes_on.wait(TIMEOUT_S)

    server = serve(handler, concurrency=1)
    first = caller.submit(name, "first", timeout_s=TIMEOUT_S, partition=0)
    wait_until(lambda: ran)
    second = caller.submit(name, "second", timeout_s=0.2, partition=0)
    wait_until(lambda: time.time() * 1000 > second.deadline_ms)
    goes_on.set()
    assert first.future.result(TIMEOUT_S) is None
    wait_until(lambda: server.skipped == 1)
    assert ran == ["first"]
    with pytest.raises(CallTimedOut, match=r"has not replied in 0\.05 s"):
        goes_on.clear()
        caller.call(name, "third", timeout_s=0.05)
    goes_on.set()


def test_a_cancelled_request_is_not_begun_and_one_that_runs_is_told(serve, caller, name):
    ran, cancelled = [], []

    def handler(request: hw.rpc.Request):
        ran.append(request.body)
        if request.cancelled.wait(TIMEOUT_S):
            cancelled.append(request.body)

    server = serve(handler, concurrency=1)
    first = caller.submit(name, "first", timeout_s=TIMEOUT_S, partition=0)
    wait_until(lambda: ran)
    second = caller.submit(name, "second", timeout_s=TIMEOUT_S, partition=0)
    caller.cancel(second)
    wait_until(
        lambda: any(one[0].request.cancelled.is_set() for one in list(server._waiting.values()))
    )
    caller.cancel(first)
    wait_until(lambda: server.skipped == 1)
    assert (ran, cancelled) == (["first"], ["first"])


def test_a_task_that_is_cancelled_cancels_a_coroutine(serve, caller, name):
    begun, ended = threading.Event(), threading.Event()

    async def handler(body):
        begun.set()
        try:
            await asyncio.sleep(TIMEOUT_S)
        except asyncio.CancelledError:
            ended.set()
            raise

    serve(handler)

    async def run():
        task = asyncio.create_task(awaited(caller, name, None, timeout_s=TIMEOUT_S))
        await asyncio.to_thread(begun.wait, TIMEOUT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert ended.wait(TIMEOUT_S)


def test_a_repeated_request_is_executed_once_by_the_same_server(serve, caller, name):
    ran = []

    def handler(request: hw.rpc.Request):
        ran.append(request.id)
        return len(ran)

    serve(handler)
    replies = [caller.call(name, request_id="order-7", timeout_s=TIMEOUT_S) for _ in range(3)]
    assert replies == [1, 1, 1]
    calls = [caller.submit(name, 1, request_id="8", timeout_s=TIMEOUT_S) for _ in range(3)]
    assert [call.future.result(TIMEOUT_S) for call in calls] == [2, 2, 2]
    assert ran == ["order-7", "8"]


def test_a_second_reply_and_one_for_nobody_are_left_out(serve, caller, name, rpc_broker):
    serve(lambda body: "first")
    call = caller.submit(name, timeout_s=TIMEOUT_S, body=None)
    assert call.future.result(TIMEOUT_S) == "first"
    producer = Producer({"bootstrap.servers": rpc_broker})
    for identity, value in ((call.id, b'"second"'), ("nobody", b"1"), (call.id, b"{broken")):
        producer.produce(
            REPLIES, value, partition=caller._reply_to, headers=reply_headers(identity, REPLY)
        )
    producer.produce(REPLIES, b"\xff", partition=caller._reply_to)
    assert producer.flush(TIMEOUT_S) == 0
    assert caller.call(name, timeout_s=TIMEOUT_S) == "first"  # replies are still read
    assert call.future.result(0) == "first"


def test_records_that_are_no_requests_end_nothing(serve, caller, name, rpc_broker):
    server = serve(lambda body: body)
    producer = Producer({"bootstrap.servers": rpc_broker})
    for headers in ([], [("headwater-id", b"\xff")], [("headwater-kind", None)]):
        producer.produce(topic_of(name), b"\x00\xff", partition=0, headers=headers)
    assert producer.flush(TIMEOUT_S) == 0
    wait_until(lambda: server.unreadable == 3)
    assert caller.call(name, 1, timeout_s=TIMEOUT_S) == 1


def test_a_hundred_callers_at_once_and_two_servers_share_them(serve, caller, name):
    by_server = Counter()

    def handler(server):
        def handle(body):
            by_server[server] += 1
            return body

        return handle

    first, second = serve(handler("first")), serve(handler("second"))
    wait_until(lambda: len(first.partitions) == len(second.partitions) == 2)

    def one(n):
        return caller.call(name, n, timeout_s=TIMEOUT_S)

    with ThreadPoolExecutor(100) as threads:
        assert list(threads.map(one, range(400))) == list(range(400))
    assert sum(by_server.values()) == 400  # none was done twice
    assert min(by_server.values()) > 50
