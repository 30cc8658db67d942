"""Logging in, byte by byte: who is served, who is not, and what a client may cost before."""

import base64
import contextlib
import json
import logging
import struct
import threading
import time

import pytest
from support import wire
from support.broker.secured import (
    MECHANISMS,
    PASSWORD,
    USER,
    Issuer,
    Login,
    add_user,
    bearer,
    on_loop,
    secured_broker,
)
from support.wire import Wire, framed, payload, wait_until

from headwater.broker.admission.quotas import CLIENT_ID, REQUEST_PERCENTAGE, entity_of
from headwater.broker.network import server as server_module
from headwater.broker.security.authentication import (
    FAILED_DELAY_S,
    UNAUTHENTICATED_MAX_REQUEST_BYTES,
    UNAUTHENTICATED_TIMEOUT_S,
)
from headwater.protocol import scram
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestScramCredentialDeletion,
)
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headwater.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headwater.testing import FakeClock


@pytest.fixture
def broker(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with secured_broker(tmp_path / "data") as running:
        yield running


def principals(broker):
    return [str(connection.session.principal) for connection in broker.running.server.connections]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_right_password(broker, mechanism):
    with Login(broker.bootstrap) as client:
        answer = client.log_in(mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        assert client.is_served()
        assert principals(broker) == [f"User:{USER}"]
        assert not broker.running.server.unauthenticated


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_login_does_not_learn_what_was_wrong(broker, caplog, mechanism, name, password):
    with Login(broker.bootstrap) as client:
        began_s = time.monotonic()
        answer = client.log_in(mechanism, name, password)
        assert time.monotonic() - began_s >= FAILED_DELAY_S
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            f"Authentication failed: invalid credentials with {mechanism}"
        )
        assert answer.auth_bytes == b""
        assert client.is_ended()
    assert f"authentication as '{name}' by {mechanism}: wrong user or password" in caplog.text
    assert broker.running.broker.metrics.logins_failed == 1
    wait_until(lambda: not broker.running.server.connections)


def test_an_unauthenticated_client_may_ask_for_versions_and_nothing_else(broker, caplog):
    with Login(broker.bootstrap) as client:
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0
        assert not client.is_served()
    assert "a request before authentication; does the client use SASL?: Metadata" in caplog.text


def test_a_client_between_the_two_messages_is_unauthenticated(broker):
    with Login(broker.bootstrap) as client:
        client.begin("SCRAM-SHA-256")
        exchange = scram.ClientExchange("SCRAM-SHA-256", USER, PASSWORD)
        assert client.say(exchange.client_first()).error_code == 0
        assert not client.is_served()


def test_a_mechanism_that_is_not_offered(broker):
    with Login(broker.bootstrap) as client:
        answer = client.begin("GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == list(MECHANISMS)
        assert client.is_ended()


def test_a_message_without_a_handshake(broker):
    with Login(broker.bootstrap) as client:
        assert client.say(b"\0a\0b").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_proof_cannot_be_used_twice(broker):
    with Login(broker.bootstrap) as one, Login(broker.bootstrap) as two:
        exchange = scram.ClientExchange("SCRAM-SHA-256", USER, PASSWORD)
        answers = []
        for client in (one, two):
            client.begin("SCRAM-SHA-256")
            answers.append(client.say(exchange.client_first()).auth_bytes)
        proof = exchange.client_final(answers[0])
        assert two.say(proof).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert one.say(proof).error_code == 0


def test_no_user_acts_as_another(broker):
    add_user(broker, "mallory", "m")
    with Login(broker.bootstrap) as client:
        client.begin("PLAIN")
        answer = client.say(f"{USER}\0mallory\0m".encode())
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "message",
    [b"", b"\0\0", b"\0a", b"\0a\0", b"a\0b\0c\0d", b"\xff\0a\0b", b"\0" + b"a" * 5000 + b"\0b"],
)
def test_a_plain_message_of_no_form(broker, message):
    with Login(broker.bootstrap) as client:
        client.begin("PLAIN")
        assert client.say(message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_ended()


def test_an_unknown_user_looks_like_a_registered_one(broker):
    """Also after a restart: salt and iterations stay what they were."""

    def first_answer(name):
        with Login(broker.bootstrap) as client:
            client.begin("SCRAM-SHA-256")
            exchange = scram.ClientExchange("SCRAM-SHA-256", name, "x")
            answer = client.say(exchange.client_first())
            assert answer.error_code == 0
            _, salt, iterations = answer.auth_bytes.decode().split(",")
            return salt, iterations

    unknown, existing = first_answer("nobody"), first_answer(USER)
    assert unknown[1] == existing[1] == "i=4096"
    assert len(unknown[0]) == len(existing[0])
    assert first_answer("nobody") == unknown
    assert first_answer("nobody else") != unknown
    broker.restart()
    assert first_answer("nobody") == unknown


def test_an_unknown_user_has_as_many_iterations_as_most_users(broker):
    for name in ("a", "b", "c"):
        salted = scram.credential_of("SCRAM-SHA-512", b"hash" * 16, b"s" * 26, 9000)
        on_loop(broker, broker.running.broker.users.put({name: {"SCRAM-SHA-512": salted}}))
    with Login(broker.bootstrap) as client:
        client.begin("SCRAM-SHA-512")
        answer = client.say(scram.ClientExchange("SCRAM-SHA-512", "nobody", "x").client_first())
    _, salt, iterations = answer.auth_bytes.decode().split(",", 2)
    assert (len(base64.b64decode(salt[2:])), iterations) == (26, "i=9000")


def test_a_user_who_is_deleted_is_gone_also_where_it_is_logged_in(broker):
    add_user(broker, "bob", "b")
    with contextlib.ExitStack() as stack:
        admin, *bobs, other = (stack.enter_context(Login(broker.bootstrap)) for _ in range(6))
        admin.log_in("SCRAM-SHA-256")
        other.log_in("PLAIN")
        for client, mechanism in zip(bobs, (*MECHANISMS, "PLAIN"), strict=True):
            client.log_in(mechanism, "bob", "b")
        for number in scram.NUMBERS.values():
            deletion = AlterUserScramCredentialsRequestScramCredentialDeletion(
                name="bob", mechanism=number
            )
            request = AlterUserScramCredentialsRequest(deletions=[deletion])
            assert admin.ask(request, 0).results[0].error_code == 0
        assert all(client.is_ended() for client in bobs)
        assert admin.is_served()
        assert other.is_served()


def test_a_user_that_deletes_itself_still_gets_the_answer(broker):
    with Login(broker.bootstrap) as client:
        client.log_in("SCRAM-SHA-256")
        deletion = AlterUserScramCredentialsRequestScramCredentialDeletion(name=USER, mechanism=1)
        answer = client.ask(AlterUserScramCredentialsRequest(deletions=[deletion]), 0)
        assert answer.results[0].error_code == 0


@pytest.mark.parametrize("new_password", ["another", None])
def test_a_login_that_is_not_over_when_the_password_changes_fails(broker, new_password):
    with Login(broker.bootstrap) as client:
        client.begin("SCRAM-SHA-256")
        exchange = scram.ClientExchange("SCRAM-SHA-256", USER, PASSWORD)
        final = exchange.client_final(client.say(exchange.client_first()).auth_bytes)
        if new_password is None:
            on_loop(broker, broker.running.broker.users.put({USER: dict.fromkeys(scram.DIGESTS)}))
        else:
            add_user(broker, USER, new_password)
        assert client.say(final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_plain_login_that_is_not_over_when_the_user_is_deleted_fails(broker, monkeypatch):
    users = broker.running.broker.users
    hashing, deleted = threading.Event(), threading.Event()
    real = scram.salted_password

    def slowly(*args):
        hashing.set()
        assert deleted.wait(60)
        return real(*args)

    monkeypatch.setattr(scram, "salted_password", slowly)
    with Login(broker.bootstrap) as client:
        client.begin("PLAIN")
        message = f"\0{USER}\0{PASSWORD}".encode()
        client.send(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert hashing.wait(60)
        on_loop(broker, users.put({USER: dict.fromkeys(scram.DIGESTS)}))
        deleted.set()
        assert client.receive().error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_users_survive_a_crash(broker):
    add_user(broker, "bob", "b")
    broker.restart(crash=True)
    with Login(broker.bootstrap) as client:
        assert client.log_in("SCRAM-SHA-512", "bob", "b").error_code == 0


def test_a_changed_password_counts_at_once_also_where_the_old_one_was_remembered(broker):
    for password in (PASSWORD, PASSWORD):  # the second time it is remembered
        with Login(broker.bootstrap) as client:
            assert client.log_in("PLAIN", USER, password).error_code == 0
    add_user(broker, USER, "new")
    for password, is_right in ((PASSWORD, False), ("new", True), (PASSWORD, False)):
        with Login(broker.bootstrap) as client:
            assert (client.log_in("PLAIN", USER, password).error_code == 0) is is_right
    on_loop(broker, broker.running.broker.users.put({USER: dict.fromkeys(scram.DIGESTS)}))
    with Login(broker.bootstrap) as client:
        assert client.log_in("PLAIN", USER, "new").error_code != 0


def test_a_password_that_was_right_is_not_hashed_again(broker, monkeypatch):
    hashed = []
    real = scram.salted_password
    monkeypatch.setattr(scram, "salted_password", lambda *args: hashed.append(args) or real(*args))
    for _ in range(5):
        with Login(broker.bootstrap) as client:
            assert client.log_in("PLAIN").error_code == 0
    assert len(hashed) == 1


# ── again, with the same connection (KIP-368) ─────────────────────────────────────────────────


def test_a_further_login_must_be_the_same(broker):
    add_user(broker, "bob", "b")
    with Login(broker.bootstrap) as client:
        client.log_in("PLAIN")
        assert client.log_in("PLAIN").error_code == 0
        assert client.is_served()
        assert client.log_in("PLAIN", "bob", "b").error_code != 0
        assert client.is_ended()
    with Login(broker.bootstrap) as client:
        client.log_in("PLAIN")
        assert client.begin("SCRAM-SHA-256").error_code != 0
        assert client.is_ended()


def test_a_token_ends_its_session_unless_it_is_renewed(tmp_path):
    clock = FakeClock()
    issuer = Issuer(tmp_path / "jwks.json")
    # A token's own times are checked against the machine's clock, the session against the broker's.
    with secured_broker(tmp_path / "data", clock=clock, **issuer.settings()) as broker:
        ends_s = int(time.time()) + 3600
        lifetime_ms = ends_s * 1000 - clock.now_ms()
        with Login(broker.bootstrap) as client, Login(broker.bootstrap) as forgetful:
            for wire_client in (client, forgetful):
                wire_client.begin("OAUTHBEARER")
                answer = wire_client.say(bearer(issuer.token(0, exp=ends_s)))
                assert answer.error_code == 0
                assert answer.session_lifetime_ms == lifetime_ms
                assert wire_client.is_served()
            assert f"User:{USER}" in principals(broker)
            broker.advance(lifetime_ms / 1000 - 1)
            assert client.is_served()
            client.begin("OAUTHBEARER")
            longer = issuer.token(0, exp=ends_s + 60)
            assert client.say(bearer(longer)).session_lifetime_ms == 61_000
            broker.advance(2)
            assert client.is_served()
            assert not forgetful.is_served()


def test_a_token_that_is_refused(tmp_path, caplog):
    """RFC 7628: the refusal is an answer that the client must acknowledge."""
    issuer = Issuer(tmp_path / "jwks.json")
    token = issuer.token(1)
    with (
        secured_broker(tmp_path / "data", **issuer.settings()) as broker,
        Login(broker.bootstrap) as client,
    ):
        client.begin("OAUTHBEARER")
        answer = client.say(bearer(token))
        assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
        answer = client.say(b"\x01")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_ended()
    assert "the token is refused: Signature has expired" in caplog.text
    assert token not in caplog.text


def test_every_token_that_is_refused_is_one_connection_and_one_line_of_the_audit_log(tmp_path):
    issuer = Issuer(tmp_path / "jwks.json")
    with secured_broker(tmp_path / "data", **issuer.settings()) as broker:
        with Login(broker.bootstrap) as client:
            client.begin("OAUTHBEARER")
            assert client.say(bearer(issuer.token(1))).error_code == 0
            assert client.begin("OAUTHBEARER").error_code != 0
            assert client.is_ended()
        with Login(broker.bootstrap) as client:
            client.begin("OAUTHBEARER")
            client.say(bearer(issuer.token(1)))  # and goes without a word
    lines = (tmp_path / "data" / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line).get("repeated") for line in lines] == [None, 1]
    assert all(json.loads(line)["allowed"] is False for line in lines)


def test_an_unauthenticated_client_uses_up_no_quota(tmp_path):
    with secured_broker(tmp_path) as broker:
        quotas = broker.running.broker.quotas
        default_client = entity_of({CLIENT_ID: None})
        on_loop(broker, quotas.alter({default_client: {REQUEST_PERCENTAGE: 0.000001}}))
        with Wire(broker.bootstrap) as stranger:
            assert stranger.ask(ApiVersionsRequest(), 0).error_code == 0
        assert quotas.throttled_ms[REQUEST_PERCENTAGE] == 0


# ── what an unauthenticated client may cost
# ──────────────────────────────────────────────────────────────────


def test_an_unauthenticated_client_sends_no_large_request(broker, caplog):
    with Login(broker.bootstrap) as client:
        client.raw(struct.pack(">i", UNAUTHENTICATED_MAX_REQUEST_BYTES + 1))
        assert client.is_ended()
    assert f"a request of {UNAUTHENTICATED_MAX_REQUEST_BYTES + 1} bytes" in caplog.text
    with Login(broker.bootstrap) as client:
        client.log_in("PLAIN")
        client.raw(struct.pack(">i", UNAUTHENTICATED_MAX_REQUEST_BYTES + 1))
        client.socket.settimeout(0.2)
        assert not client.is_ended()


def test_what_follows_a_login_that_fails_is_not_served(broker):
    with Login(broker.bootstrap) as client:
        client.begin("PLAIN")
        client.raw(
            framed(payload(SaslAuthenticateRequest(auth_bytes=b"\0alice\0no"), 2, 10))
            + framed(payload(MetadataRequest(topics=[]), 12, 11))
        )
        assert struct.unpack(">i", client.receive_frame()[:4]) == (10,)
        assert client.is_ended()


def test_what_follows_a_login_that_succeeds_is_served(broker):
    with Login(broker.bootstrap) as client:
        message = f"\0{USER}\0{PASSWORD}".encode()
        client.raw(
            framed(payload(SaslHandshakeRequest(mechanism="PLAIN"), 1, 9))
            + framed(payload(SaslAuthenticateRequest(auth_bytes=message), 2, 10))
            + framed(payload(MetadataRequest(topics=[]), 12, 11))
        )
        numbers = [struct.unpack(">i", client.receive_frame()[:4])[0] for _ in range(3)]
        assert numbers == [9, 10, 11]


def test_unauthenticated_clients_are_ended_after_a_while(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "SWEEP_S", 0.05)
    clock = FakeClock()
    with (
        secured_broker(tmp_path / "data", clock=clock) as broker,
        Login(broker.bootstrap) as existing,
        Login(broker.bootstrap) as idle,
        Login(broker.bootstrap) as half,
    ):
        existing.log_in("SCRAM-SHA-256")
        half.begin("SCRAM-SHA-256")
        wait_until(lambda: len(broker.running.server.unauthenticated) == 2)
        broker.advance(UNAUTHENTICATED_TIMEOUT_S + 1)
        assert idle.is_ended()
        assert half.is_ended()
        assert existing.is_served()
    assert "not authenticated after 31 s" in caplog.text


def test_a_thousand_unauthenticated_clients_keep_no_other_out(tmp_path):
    """The oldest makes way for the newest."""
    with (
        secured_broker(tmp_path / "data", max_unauthenticated_connections=50) as broker,
        wire.many(broker.bootstrap, 1000) as unauthenticated,
    ):
        server = broker.running.server
        wait_until(lambda: len(server.unauthenticated) == 50 and len(server.connections) == 50)
        with Login(broker.bootstrap) as client:
            assert client.log_in("SCRAM-SHA-256").error_code == 0
            assert client.is_served()
        assert unauthenticated[0].is_ended()
        assert unauthenticated[-1].ask(ApiVersionsRequest(), 0).error_code == 0


def test_unauthenticated_clients_do_not_take_the_room_of_others(tmp_path):
    """Each announces a large request, and sends a little of it."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(secured_broker(tmp_path, max_buffered_bytes=16 << 20))
        server = broker.running.server
        for number in range(300):
            stranger = stack.enter_context(Wire(broker.bootstrap))
            stranger.socket.sendall(
                struct.pack(">i", UNAUTHENTICATED_MAX_REQUEST_BYTES) + b"x" * 100
            )
            wait_until(lambda number=number: server.broker.metrics.connections_opened > number)
        with Login(broker.bootstrap) as client:
            assert client.log_in("SCRAM-SHA-256").error_code == 0
            large = framed(payload(ApiVersionsRequest(), 0) + b"\0" * 1_000_000)
            client.socket.sendall(large[:-1])
            wait_until(lambda: server.buffered_bytes >= 1_000_000)
            client.socket.sendall(large[-1:])
            assert client.socket.recv(1)
        assert 0 < server.unauthenticated_bytes <= 2 << 20
    assert (server.unauthenticated_bytes, server.buffered_bytes) == (0, 0)


def test_a_login_moves_what_a_client_holds_to_the_authenticated(broker):
    server = broker.running.server
    with Login(broker.bootstrap) as client:
        client.begin("PLAIN")
        client.socket.sendall(
            framed(payload(SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode()), 2))
            + struct.pack(">i", 100_000)
        )
        wait_until(lambda: server.buffered_bytes >= 100_000)
        assert server.unauthenticated_bytes == 0
    wait_until(lambda: server.buffered_bytes == 0)
    assert server.unauthenticated_bytes == 0


def test_an_unauthenticated_client_that_takes_no_answers_does_not_hold_up_the_end(tmp_path):
    with secured_broker(tmp_path / "data") as broker:
        client = Login(broker.bootstrap, receive_buffer_bytes=4096)
        client.begin("PLAIN")
        client.socket.settimeout(0.5)
        flood = framed(payload(ApiVersionsRequest(), 0)) * 1000
        with contextlib.suppress(TimeoutError):
            while True:
                client.socket.sendall(flood)
        assert len(broker.running.server.connections) == 1
    client.close()  # the broker has stopped


def test_no_secret_is_in_the_log(tmp_path, caplog):
    """All of the ways in, right and wrong, with everything logged that can be."""
    caplog.set_level(logging.DEBUG)
    issuer = Issuer(tmp_path / "jwks.json")
    token = issuer.token(time.time())
    mechanisms = (*MECHANISMS, "OAUTHBEARER")
    settings = {**issuer.settings(), "sasl_mechanisms": mechanisms}
    with secured_broker(tmp_path / "data", **settings) as broker:
        for mechanism in MECHANISMS:
            for password in (PASSWORD, "swordfish"):
                with Login(broker.bootstrap) as client:
                    client.log_in(mechanism, USER, password)
        for good in (token, issuer.token(1)):
            with Login(broker.bootstrap) as client:
                client.begin("OAUTHBEARER")
                client.say(bearer(good))
        with Login(broker.bootstrap) as client:
            client.begin("PLAIN")
            client.say(b"swordfish\0swordfish")
    log_text = caplog.text
    stored = (tmp_path / "data" / "catalog.jsonl").read_text()
    audit = (tmp_path / "data" / "audit.jsonl").read_text()
    assert "authenticated: User:alice with SCRAM-SHA-512" in log_text
    for text in (log_text, stored, audit):
        for secret in (PASSWORD, "wonder", "swordfish", token, token.split(".")[2]):
            assert secret not in text
    for secret in _stored_secrets(stored):
        assert secret not in log_text + audit


def _stored_secrets(catalog: str):
    import re

    found = re.findall(r'"(?:salt|stored_key|server_key)":"([^"]+)"', catalog)
    assert found
    return found


def test_the_catalog_is_for_its_owner_alone(tmp_path):
    with secured_broker(tmp_path / "data"):
        catalog = tmp_path / "data" / "catalog.jsonl"
        assert catalog.stat().st_mode & 0o777 == 0o600
        assert catalog.parent.stat().st_mode & 0o777 == 0o700  # names of topics are in it
        catalog.chmod(0o644)  # as an earlier version made it
    with secured_broker(tmp_path / "data"):
        assert catalog.stat().st_mode & 0o777 == 0o600
