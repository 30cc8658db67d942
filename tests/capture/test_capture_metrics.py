"""Metrics of a running capture, and its readiness."""

import contextlib
import http.client
import socket
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.capture.contract import Lag
from headwater.capture.http import HttpEndpoint
from headwater.capture.metrics import CaptureState, SnapshotProgress, exposition
from headwater.errors import ConfigError, SourceUnreachable
from headwater.probe_http import MAX_CONNECTIONS

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture
def state():
    return CaptureState("shop")


@pytest.fixture
def endpoint(state):
    endpoint = HttpEndpoint("127.0.0.1:0", state)
    yield endpoint
    endpoint.close()


def get(endpoint, path):
    connection = http.client.HTTPConnection(endpoint.address, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def busy(state):
    state.committed(3, 40, 5000, 0.012, int(time.time() * 1000) - 250)
    state.committed(0, 2, 100, 0.5, 0)  # rows of a snapshot
    state.lag(Lag(1000, 1 << 20))
    state.snapshot("public.orders", 500, 1000, is_done=False)
    state.snapshot("public.items", 7, None, is_done=True)
    state.table_failed("public.odd", SourceUnreachable("no replica identity"))
    return state


def test_everything_is_counted(state, endpoint):
    busy(state)
    status, text = get(endpoint, "/metrics")
    assert status == 200
    found = samples(text)
    assert found["headwater_capture_transactions_total", "shop"] == 3
    assert found["headwater_capture_changes_total", "shop"] == 42
    assert found["headwater_capture_bytes_total", "shop"] == 5100
    assert found["headwater_capture_commit_seconds", "shop"] == 0.5
    assert 0.25 <= found["headwater_capture_lag_seconds", "shop"] < 60
    assert found["headwater_capture_lag_bytes", "shop"] == 1000
    assert found["headwater_capture_retained_bytes", "shop"] == 1 << 20
    assert found["headwater_capture_snapshot_rows", "public.orders", "shop"] == 500
    assert found["headwater_capture_snapshot_estimated_rows", "public.orders", "shop"] == 1000
    assert found["headwater_capture_snapshot_done", "public.items", "shop"] == 1
    assert ("headwater_capture_snapshot_estimated_rows", "public.items", "shop") not in found
    assert found["headwater_capture_table_failed", "public.odd", "shop"] == 1
    assert found["headwater_capture_errors_total", "TableFailed", "shop"] == 1


def test_what_is_not_measured_is_not_exposed(state):
    found = samples(exposition(state))
    assert found["headwater_capture_changes_total", "shop"] == 0
    assert not any("lag" in name or "source_timestamp" in name for name, *_ in found)


def test_caught_up_is_no_seconds_behind(state):
    state.committed(1, 1, 1, 0.1, 0)
    state.lag(Lag(0))
    assert samples(exposition(state))["headwater_capture_lag_seconds", "shop"] == 0


def test_ready_once_it_follows_and_not_after_an_error(state, endpoint):
    assert get(endpoint, "/live") == (200, "alive\n")
    assert get(endpoint, "/ready") == (503, "not ready: the capture is starting\n")
    state.lag(Lag())
    assert get(endpoint, "/ready") == (200, "ready\n")
    state.error(SourceUnreachable("the database does not answer", detail="refused\ntwice"))
    reason = "not ready: the database does not answer: refused twice\n"
    assert get(endpoint, "/ready") == (503, reason)
    state.restarted()
    state.committed(1, 1, 1, 0.1, 0)
    assert get(endpoint, "/ready")[0] == 200
    found = samples(exposition(state))
    assert found["headwater_capture_errors_total", "SourceUnreachable", "shop"] == 1
    assert found["headwater_capture_restarts_total", "shop"] == 1


def test_a_new_snapshot_repairs_a_failed_table(state):
    busy(state)
    state.snapshot("public.odd", 0, 10, is_done=False)
    assert state.failed_tables == {}
    assert state.snapshots["public.odd"] == SnapshotProgress(0, 10, is_done=False)


def test_every_metric_of_a_capture_is_documented(state):
    page = OPERATIONS.read_text(encoding="utf-8")
    families = list(text_string_to_metric_families(exposition(busy(state))))
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}" in page, f"{name} is not in docs/operations.md"


def test_strangers_do_no_harm(endpoint):
    host, port = endpoint.address.split(":")
    for sent in (b"", b"\x00\xff\n\n", b"GET /metrics\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert get(endpoint, "/elsewhere")[0] == 404
    assert get(endpoint, "/live")[0] == 200


def silent(endpoint, sent=b"GET /re"):
    host, port = endpoint.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(sent)
    return connection


def is_ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_clients_that_send_no_request_block_no_others(state, endpoint, monkeypatch):
    """Nor do those that do not read: connections are bounded, and the oldest gives way."""
    monkeypatch.setattr("headwater.probe_http.REQUEST_TIMEOUT_S", 600)  # it is not what ends them
    state.lag(Lag())
    with contextlib.ExitStack() as stack:
        sent = (b"", b"GET /re", b"GET /metrics HTTP/1.1\r\n\r\n")
        clients = [
            stack.enter_context(silent(endpoint, sent[number % 3]))
            for number in range(3 * MAX_CONNECTIONS)
        ]
        assert get(endpoint, "/ready") == (200, "ready\n")
        assert is_ended(clients[0])
        assert get(endpoint, "/live") == (200, "alive\n")


def test_a_request_has_a_deadline_as_a_whole(endpoint, monkeypatch):
    monkeypatch.setattr("headwater.probe_http.REQUEST_TIMEOUT_S", 0.2)
    with silent(endpoint) as connection:
        connection.settimeout(0.01)
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("a client that sends a byte now and then stays")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "db.example.org:9100"])
def test_an_address_that_others_reach_is_asked_for_explicitly(state, listen):
    with pytest.raises(ConfigError, match="reached from the network") as caught:
        HttpEndpoint(listen, state)
    assert "capture.shop.allow_insecure_network" in caught.value.hint


def test_an_address_that_others_reach_if_it_is_wanted(state):
    endpoint = HttpEndpoint("0.0.0.0:0", state, allow_insecure_network=True)
    try:
        assert get(endpoint, "/live") == (200, "alive\n")
    finally:
        endpoint.close()


def test_an_address_that_is_taken(state, endpoint):
    with pytest.raises(ConfigError, match=r"capture\.shop\.metrics_listen cannot be bound"):
        HttpEndpoint(endpoint.address, state)
