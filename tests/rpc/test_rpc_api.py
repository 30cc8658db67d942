"""`hw.rpc` as users write it: a file that serves, and a program that calls."""

import asyncio
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import headwater as hw

TIMEOUT_S = 60.0
FILE = """
import sys
import headwater as hw

@hw.rpc.serve("double", concurrency=2)
def double(n):
    return 2 * n

@hw.rpc.serve("triple", partitions=1)
async def triple(request: hw.rpc.Request):
    return 3 * request.body

@hw.rpc.answer("count", rows_of="counted")
def count(rows, question):
    return len(rows)

hw.rpc.run(bootstrap=sys.argv[1], ready=lambda servers: print("ready", flush=True))
"""


@pytest.fixture
def serving_file(rpc_broker, tmp_path):
    admin = AdminClient({"bootstrap.servers": rpc_broker})
    new = NewTopic("counted", 2, config={"cleanup.policy": "compact"})
    admin.create_topics([new])["counted"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": rpc_broker})
    for n in range(10):
        producer.produce("counted", "{}", str(n))
    assert producer.flush(TIMEOUT_S) == 0
    (tmp_path / "served.py").write_text(FILE)
    command = [sys.executable, str(tmp_path / "served.py"), rpc_broker]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_a_file_that_serves(serving_file, rpc_broker):
    options = {"timeout_s": TIMEOUT_S, "bootstrap": rpc_broker}
    assert hw.rpc.call("double", 21, **options) == 42
    assert asyncio.run(hw.rpc.call_async("triple", 2, **options)) == 6
    assert hw.rpc.ask("count", merge=sum, **options) == 10
    with pytest.raises(hw.rpc.CallFailed):
        hw.rpc.call("double", {}, **options)
