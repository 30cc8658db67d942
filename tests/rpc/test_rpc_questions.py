"""A question to all partitions of a topic: each is answered by who owns it, from all its rows."""

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.errors import CallFailed, CallTimedOut, RequestRefused, UsageError
from headwater.rpc.owned_rows import OwnedRows
from headwater.rpc.server import Server
from headwater.settings import ClientSettings

TIMEOUT_S = 60.0
PARTITIONS = 3


@pytest.fixture
def visits(rpc_broker, name):
    topic = f"visits-{name}"
    new = NewTopic(topic, PARTITIONS, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": rpc_broker})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    return topic


def write(bootstrap, topic, rows):
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, row in rows:
        producer.produce(topic, None if row is None else json.dumps(row), key)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def answering(rpc_broker, name, visits):
    servers = []

    def started():
        rows = OwnedRows(rpc_broker, ClientSettings(), visits)
        handler = rows.handler(
            lambda found, url: sum(url in visitor["urls"] for visitor in found.values())
        )
        server = Server(rpc_broker, ClientSettings(), name, handler, rows=rows)
        servers.append(server.start())
        assert server.is_ready.wait(TIMEOUT_S)
        return server

    yield started
    for server in servers:
        server.close()


def test_how_many_has_this_url_reached(answering, caller, rpc_broker, name, visits):
    write(rpc_broker, visits, [(f"ada-{n}", {"urls": ["/sale"]}) for n in range(30)])
    write(rpc_broker, visits, [("ada-0", {"urls": ["/"]}), ("ada-1", None)])
    answering()
    parts = caller.ask(name, "/sale", timeout_s=TIMEOUT_S)
    assert len(parts) == PARTITIONS
    assert all(parts)
    assert caller.ask(name, "/sale", timeout_s=TIMEOUT_S, merge=sum) == 28
    write(rpc_broker, visits, [("new", {"urls": ["/sale"]})])
    assert caller.ask(name, "/sale", timeout_s=TIMEOUT_S, merge=sum) == 29  # what was written is in


def test_servers_that_come_and_go_own_each_partition_once(
    answering, caller, rpc_broker, name, visits
):
    write(rpc_broker, visits, [(str(n), {"urls": ["/sale"]}) for n in range(50)])
    first = answering()
    second = answering()
    for _ in range(20):
        assert caller.ask(name, "/sale", timeout_s=TIMEOUT_S, merge=sum) == 50
    assert second.executed + first.executed >= 20 * PARTITIONS
    first.close()
    assert caller.ask(name, "/sale", timeout_s=TIMEOUT_S, merge=sum) == 50
    assert second.partitions == list(range(PARTITIONS))


def test_what_is_missing_is_named(answering, caller, name):
    answering().close()
    with pytest.raises(CallTimedOut) as raised:
        caller.ask(name, "/sale", timeout_s=0.2)
    assert raised.value.detail == "0 of 3 have; missing: 0, 1, 2"


def test_one_partition_is_not_called(answering, caller, rpc_broker, name, visits):
    """Its answer would pass for that of all."""
    write(rpc_broker, visits, [("ada", {"urls": ["/sale"]})])
    answering()
    with pytest.raises(CallFailed, match="answers questions to all partitions") as raised:
        caller.call(name, "/sale", timeout_s=TIMEOUT_S)
    assert f"POST /rpc/{name}/ask" in raised.value.hint
    assert caller.ask(name, "/sale", timeout_s=TIMEOUT_S, merge=sum) == 1


def test_a_call_service_is_not_asked(serve, caller, name):
    server = serve(lambda body: body)
    with pytest.raises(CallFailed, match="takes calls"):
        caller.ask(name, "/sale", timeout_s=TIMEOUT_S)
    assert server.executed == 0


def test_a_service_with_other_partitions_is_refused(serve, rpc_broker, name, visits):
    serve(lambda body: body)  # four partitions
    rows = OwnedRows(rpc_broker, ClientSettings(), visits)
    with pytest.raises(UsageError, match="has 4 partitions"):
        Server(rpc_broker, ClientSettings(), name, rows.handler(len), rows=rows)
    with pytest.raises(RequestRefused, match="there is no topic"):
        OwnedRows(rpc_broker, ClientSettings(), "no-such-topic").count()
