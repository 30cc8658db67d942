"""Webhooks, to a real HTTP server; what was sent is recorded on a real broker."""

import base64
import hashlib
import hmac
import time
from contextlib import closing
from uuid import uuid4

import pyarrow as pa
import pytest
from support.sinks.kill_writer import ROWS, Work, write_and_be_killed
from support.sinks.sink_rows import batch, position, table
from support.sinks.webhook_receiver import receiving

from headwater.errors import (
    ConfigError,
    Fenced,
    RowRefused,
    StoreDiverged,
    StoreRefused,
    StoreUnreachable,
)
from headwater.pipelines.publishing.refused_rows import RefusedRows, refused_count
from headwater.settings import Secret
from headwater.sinks.contract import AT_LEAST_ONCE, Log, Target
from headwater.sinks.notifications import delivery
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from headwater.sinks.topic.transactional_positions import read_positions

ID = pa.schema([("id", pa.int64()), ("v", pa.string())])
KILLS = 10


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def store_with(receiver, topic_headwater):
    """Makes stores for the receiver; a name of their own for each test."""
    name = f"hooks{uuid4().hex[:8]}"

    def make(url=None, owner="shop", **options):
        settings = SinkSettings(
            name, kind="webhook", url=Secret(url or receiver.url), options=options
        )
        return store_of(settings, Target(owner, "orders", ()), Log(topic_headwater))

    return make


def ids(receiver):
    return [request.json["id"] for request in receiver.requests]


def test_each_row_is_a_request_in_order(receiver, store_with):
    store = store_with()
    store.check()
    assert store.versions() == []
    assert store.guarantee == AT_LEAST_ONCE
    rows = [{"id": 1, "v": "ä"}, {"id": 2}, {"id": 1}]
    with store.writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, rows, ["c", "u", "d"])))
        writer.apply(batch(0, table(ID, rows, ["c", "u", "d"])))
        writer.apply(batch(1, table(ID, [])))
    assert [request.json for request in receiver.requests] == [
        {"id": 1, "v": "ä", "_op": "c"},
        {"id": 2, "v": None, "_op": "u"},
        {"id": 1, "v": None, "_op": "d"},
    ]
    [request, *_] = receiver.requests
    assert request.path == "/hook?a=b"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Headwater-Target"] == "orders"
    [version] = store.versions()
    assert (version.number, version.is_live, version.position) == (1, True, position(1))
    with store.writer(1, ID) as writer:
        assert writer.position == position(1)
        writer.apply(batch(1, table(ID, [])))
        with pytest.raises(StoreDiverged):
            writer.apply(batch(7, table(ID, [])))
    assert len(receiver.requests) == 3


def test_requests_have_keys_of_their_own_and_are_signed(receiver, store_with):
    secret = b"0123456789abcdef"
    store = store_with(secret="whsec_" + base64.b64encode(secret).decode(), bearer_token="t0")
    with store.writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "same"}] * 3)))
    assert len({request.key for request in receiver.requests}) == 3
    for request in receiver.requests:
        assert request.headers["Authorization"] == "Bearer t0"
        assert request.headers["webhook-id"] == request.key
        at = request.headers["webhook-timestamp"]
        assert abs(int(at) - time.time()) < 60
        signed = f"{request.key}.{at}.".encode() + request.body
        digest = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
        assert request.headers["webhook-signature"] == f"v1,{digest}"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_is_not_taken_now_is_sent_again(receiver, store_with, status):
    receiver.answer = lambda number, _: (status, {"Retry-After": "1"}) if number == 1 else (200, {})
    began_s = time.monotonic()
    with store_with().writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1}, {"id": 2}, {"id": 3}])))
    assert ids(receiver) == [1, 2, 2, 3]
    assert receiver.requests[1].key == receiver.requests[2].key
    assert time.monotonic() - began_s >= 1


def test_a_row_that_is_refused(receiver, store_with):
    receiver.answer = lambda _, request: (422, {}) if request.json["id"] == 2 else (200, {})
    rows = table(ID, [{"id": 1}, {"id": 2, "v": "bad"}, {"id": 3}])
    with store_with().writer(1, ID) as writer:
        with pytest.raises(RowRefused, match="422") as caught:
            writer.apply(batch(0, rows))
        assert caught.value.row == {"id": 2, "v": "bad"}
        assert caught.value.detail == "because"
        refusals = []
        writer.apply(batch(0, rows), refusals.extend)
        assert [error.row["id"] for error in refusals] == [2]
        assert writer.position == position(0)
    assert ids(receiver) == [1, 2, 2, 3]


def test_refused_rows_of_a_batch_that_goes_on_behind_a_crash(receiver, store_with, topic_headwater):
    """None is left out: those behind the crash are not taken for those in front of it."""
    receiver.answer = lambda number, request: (
        {2: 422, 3: 404 if number == 2 else 200, 5: 422}.get(request.json["id"], 200), {}
    )  # fmt: skip
    rows = batch(0, table(ID, [{"id": n} for n in range(1, 6)]))
    log, pipeline, store = Log(topic_headwater), f"p{uuid4().hex[:8]}", store_with()
    for is_last in (False, True):
        refused = RefusedRows(log, f"{pipeline}/hooks", pipeline, 1)
        with closing(refused), store.writer(1, ID) as writer:
            if is_last:
                writer.apply(rows, refused.of_batch(rows))
            else:
                with pytest.raises(StoreRefused, match="404"):
                    writer.apply(rows, refused.of_batch(rows))
    assert ids(receiver) == [1, 2, 3, 3, 4, 5]
    assert refused_count(read_positions(log), f"{pipeline}/hooks", 1) == 2


def test_rows_that_are_sent_together(receiver, store_with):
    receiver.answer = lambda _, request: (
        (400, {}) if any(row["id"] == 4 for row in request.json) else (200, {})
    )
    refusals = []
    with store_with(rows_per_request="3").writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": n} for n in range(7)])), refusals.extend)
    sent = [[row["id"] for row in request.json] for request in receiver.requests]
    assert sent == [[0, 1, 2], [3, 4, 5], [3], [4], [5], [6]]
    assert [error.row["id"] for error in refusals] == [4]


@pytest.mark.parametrize("status", [302, 401, 404])
def test_an_address_that_is_wrong_refuses_no_row(receiver, store_with, status):
    receiver.answer = lambda *_: (status, {"Location": "http://127.0.0.1/elsewhere"})
    refusals = []
    with store_with().writer(1, ID) as writer, pytest.raises(StoreRefused, match=str(status)):
        writer.apply(batch(0, table(ID, [{"id": 1}])), refusals.extend)
    assert not refusals


def test_the_next_writer_goes_on_behind_what_was_sent(receiver, store_with, monkeypatch):
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.3)
    rows = table(ID, [{"id": n} for n in range(5)])
    receiver.answer = lambda number, _: (200, {}) if number < 3 else (503, {})
    with store_with().writer(1, ID) as writer, pytest.raises(StoreUnreachable, match="arrive"):
        writer.apply(batch(0, rows))
    tries = len(receiver.requests) - 3
    assert tries > 1
    receiver.answer = lambda *_: (200, {})
    with store_with().writer(1, ID) as writer:
        writer.apply(batch(0, rows))
    assert ids(receiver) == [0, 1, 2, *[3] * tries, 3, 4]
    assert len({request.key for request in receiver.requests}) == 5


def test_a_batch_that_comes_in_another_order_is_sent_with_the_same_keys(
    receiver, store_with, monkeypatch
):
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.0)
    receiver.answer = lambda number, _: (200, {}) if number < 2 else (503, {})
    with store_with().writer(1, ID) as writer, pytest.raises(StoreUnreachable):
        writer.apply(batch(0, table(ID, [{"id": 1}, {"id": 2}, {"id": 3}])))
    receiver.answer = lambda *_: (200, {})
    with store_with().writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 3}, {"id": 2}, {"id": 1}])))
    assert ids(receiver) == [1, 2, 3, 3, 2, 1]
    keys = [request.key for request in receiver.requests]
    assert keys[:3] == keys[:2:-1]


def test_no_server_listens(store_with, monkeypatch):
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.2)
    store = store_with("http://127.0.0.1:1/")
    with pytest.raises(StoreUnreachable):
        store.check()
    with store.writer(1, ID) as writer, pytest.raises(StoreUnreachable, match="arrive"):
        writer.apply(batch(0, table(ID, [{"id": 1}])))


def test_zombies_owners_and_versions(receiver, store_with):
    store = store_with()
    zombie = store.writer(1, ID)
    with store.writer(1, ID) as writer:
        writer.apply(batch(0, table(ID, [{"id": 1}])))
        with pytest.raises(Fenced):
            zombie.apply(batch(0, table(ID, [{"id": 1}])))
        assert writer.position == position(0)
    zombie.close()
    assert {request.key for request in receiver.requests} == {receiver.requests[0].key}
    with pytest.raises(StoreRefused, match="belongs to shop"):
        store_with(owner="another").writer(1, ID)
    assert store_with(owner="another").versions() == []
    for ask in (lambda: store.writer(2, ID), lambda: store.promote(2), lambda: store.drop(1)):
        with pytest.raises(StoreRefused) as caught:
            ask()
        assert caught.value.hint or caught.value.detail
    with pytest.raises(StoreRefused, match="read back"):
        store.read(1)
    store.promote(1)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://x/", {}),
        (None, {"rows_per_request": "0"}),
        (None, {"secret": "whsec_%"}),
        (None, {"tls_ca": "/nowhere"}),
        (None, {"timeout_s": "soon"}),
    ],
)
def test_settings_that_are_wrong(store_with, url, options):
    if "tls_ca" in options:
        url = "https://127.0.0.1/"
    with pytest.raises(ConfigError):
        store_with(url, **options)


def test_killed_senders_lose_nothing_and_keep_the_order(receiver, topic_headwater):
    """What comes twice has the same key; the first of each are in order."""
    target = Target("shop", f"kills{uuid4().hex[:8]}", ())
    work = Work("webhook", receiver.url, {}, target, Log(topic_headwater), "added")
    batches = write_and_be_killed(work, KILLS)
    expected = [row for number in range(batches) for row in ROWS["added"](number).to_pylist()]
    first = {}
    for request in receiver.requests:
        assert first.setdefault(request.key, request.json) == request.json
    assert list(first.values()) == expected
    with closing(work.store()) as store:
        assert store.versions()[0].position == position(batches - 1)


@pytest.mark.parametrize("host", ["hooks.example.org", "192.0.2.7", "[2001:db8::1]"])
@pytest.mark.parametrize(
    ("user", "options"), [("", {"bearer_token": "t0"}), ("me:secret@", {}), ("me@", {})]
)
def test_credentials_do_not_go_over_a_network_in_clear(store_with, host, user, options):
    with pytest.raises(ConfigError, match="in clear") as refused:
        store_with(f"http://{user}{host}/hook", **options)
    assert "t0" not in str(refused.value)
    assert "secret" not in str(refused.value)
    for url in (f"https://{user}{host}/hook", f"http://{user}127.0.0.1:9/", f"http://{user}[::1]/"):
        store_with(url, **options).close()


def test_a_signature_is_no_credential(store_with):
    store_with("http://hooks.example.org/hook", secret="whsec_" + "QUJD" * 8).close()
