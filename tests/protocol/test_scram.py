"""SCRAM by RFC 7677's own example, and with messages that violate it."""

import base64
import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import AuthenticationFailed
from headwater.protocol import scram

# RFC 7677, 3: user "user", password "pencil".
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
CLIENT_FINAL = (
    f"c=biws,r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
).encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(mechanism="SCRAM-SHA-256", password="pencil", salt=SALT):
    salted = scram.salted_password(mechanism, password, salt, 4096)
    return scram.credential_of(mechanism, salted, salt, 4096)


@pytest.fixture
def exchange(monkeypatch):
    monkeypatch.setattr(scram.secrets, "token_urlsafe", lambda _: SERVER_NONCE)
    return scram.ServerExchange(scram.ClientFirst.read(CLIENT_FIRST), credential())


def test_the_example_of_the_rfc(exchange):
    assert exchange.server_first() == SERVER_FIRST
    assert exchange.server_final(CLIENT_FINAL) == SERVER_FINAL


@pytest.mark.parametrize("mechanism", scram.DIGESTS)
def test_both_sides_agree(mechanism):
    client = scram.ClientExchange(mechanism, "a=b,c", "päß=,")
    first = scram.ClientFirst.read(client.client_first())
    assert first.name == "a=b,c"
    server = scram.ServerExchange(first, scram.new_credential(mechanism, "päß=,", 4096))
    client.check(server.server_final(client.client_final(server.server_first())))


def test_a_server_without_the_password_is_found_out():
    client = scram.ClientExchange("SCRAM-SHA-256", "user", "pencil")
    server = scram.ServerExchange(scram.ClientFirst.read(client.client_first()), credential())
    client.client_final(server.server_first())
    with pytest.raises(AuthenticationFailed, match="impostor"):
        client.check(SERVER_FINAL)


def test_a_client_does_not_hash_indefinitely():
    client = scram.ClientExchange("SCRAM-SHA-256", "user", "pencil")
    nonce = client.client_first().decode().partition("r=")[2]
    for iterations in (1, 4095, 16385, 10**8):
        with pytest.raises(AuthenticationFailed, match="iterations"):
            client.client_final(f"r={nonce}x,s=YWJj,i={iterations}".encode())


def test_a_password_is_matched_and_a_credential_not_shown():
    stored = credential()
    assert stored.matches("pencil")
    assert not stored.matches("Pencil")
    assert "salt" not in repr(stored)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=user", b"n,,r=x,n=user", b"n,,n=,r=x", b"n,,n=user,r=",
        b"n,,n=us=er,r=x", b"n,,n=user,r=a b", b"n,,n=\xff,r=x", b"n,a=other,n=user,r=x",
        b"n,a,n=user,r=x", b"n,,n=user,r=" + b"x" * 513, b"n,,n=" + b"u" * 5000 + b",r=x",
        b"p=tls-unique,,n=user,r=x",
    ],
)  # fmt: skip
def test_a_first_message_of_another_form(message):
    with pytest.raises(AuthenticationFailed):
        scram.ClientFirst.read(message)


def test_a_first_message_in_all_its_forms():
    for message in (b"n,,n=user,r=x", b"y,,n=user,r=x", b"n,a=user,n=user,r=x,more=1"):
        first = scram.ClientFirst.read(message)
        assert (first.name, first.nonce) == ("user", "x")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # y,, where n,, was begun with
        (b"c=biws", b"c=!"),
        (b"c=biws,", b""),
        (b"%hvYDp", b"%hvYDq"),  # another nonce
        (b"p=dHzb", b"p=eHzb"),
        (b",p=", b",q="),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p="),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=YWJj"),
    ],
)
def test_a_last_message_that_is_not_right(exchange, old, new):
    with pytest.raises(AuthenticationFailed):
        exchange.server_final(CLIENT_FINAL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("c=biws", "c=eSws", "header"),  # a proxy has removed a channel binding
        (SERVER_NONCE, "ours", "nonce"),
    ],
)
def test_a_right_proof_does_not_make_up_for_another_header_or_nonce(exchange, old, new, reason):
    without_proof = CLIENT_FINAL.rpartition(b",p=")[0].decode().replace(old, new)
    message = b",".join((CLIENT_FIRST[3:], SERVER_FIRST, without_proof.encode()))
    salted = scram.salted_password("SCRAM-SHA-256", "pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = f"{without_proof},p={base64.b64encode(proof).decode()}"
    with pytest.raises(AuthenticationFailed, match=reason):
        exchange.server_final(final.encode())


@given(st.one_of(st.binary(max_size=200), st.text("n,=raypc\x00é2C3D+/", max_size=60)))
def test_any_bytes_are_a_message_or_refused(data):
    message = data if isinstance(data, bytes) else data.encode()
    with contextlib.suppress(AuthenticationFailed):
        scram.ClientFirst.read(message)
    server = scram.ServerExchange(scram.ClientFirst.read(CLIENT_FIRST), credential_once())
    with pytest.raises(AuthenticationFailed):
        server.server_final(message)


_KEPT = []


def credential_once():
    if not _KEPT:
        _KEPT.append(credential())
    return _KEPT[0]
