"""Which tokens count."""

import base64
import json
import os
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from support.broker.secured import AUDIENCE, ISSUER, USER, Issuer, bearer

from headwater.broker.security.oauth import LEEWAY_S, TokenVerifier
from headwater.errors import AuthenticationFailed, ConfigError


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("oauth") / "jwks.json")


@pytest.fixture
def verifier(issuer):
    issuer.write(issuer.jwk())
    return TokenVerifier(str(issuer.path), ISSUER, AUDIENCE, "sub")


def refused(verifier, token, because=None):
    with pytest.raises(AuthenticationFailed, match=because) as caught:
        verifier.verify(token)
    assert token not in str(caught.value)


def test_a_good_token(verifier, issuer):
    now_s = int(time.time())
    verified = verifier.verify(issuer.token(now_s))
    assert verified == (USER, (now_s + 300) * 1000)
    assert verifier.verify(issuer.token(now_s, aud=["other", AUDIENCE])).name == USER
    assert verifier.verify(issuer.token(now_s, algorithm="PS512")).name == USER
    assert verifier.verify(issuer.token(now_s, headers={})).name == USER


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1}, {"exp": None}, {"iss": "https://other.example"}, {"iss": None},
        {"aud": "other"}, {"aud": None}, {"sub": None}, {"sub": ""}, {"sub": "x" * 256},
        {"exp": "soon"}, {"nbf": "never"},
    ],
)  # fmt: skip
def test_claims_that_do_not_count(verifier, issuer, claims):
    refused(verifier, issuer.token(time.time(), **claims))


def test_clocks_may_differ_a_little(verifier, issuer):
    now_s = int(time.time())
    verifier.verify(issuer.token(now_s, exp=now_s - LEEWAY_S + 10))
    verifier.verify(issuer.token(now_s, nbf=now_s + LEEWAY_S - 10))
    refused(verifier, issuer.token(now_s, exp=now_s - LEEWAY_S - 10), "expired")
    refused(verifier, issuer.token(now_s, nbf=now_s + LEEWAY_S + 10), "not yet valid")


def test_a_token_that_expires_in_the_far_future(verifier, issuer):
    assert verifier.verify(issuer.token(time.time(), exp=10**30)).expires_at_ms < 2**63


def test_a_name_from_another_claim(issuer, verifier):
    by_client = TokenVerifier(str(issuer.path), ISSUER, AUDIENCE, "client_id")
    assert by_client.verify(issuer.token(time.time(), client_id="orders")).name == "orders"
    refused(by_client, issuer.token(time.time()))


def test_another_key_does_not_count(verifier, issuer):
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    refused(verifier, issuer.token(time.time(), key=other), "Signature")
    refused(verifier, issuer.token(time.time(), headers={"kid": "two"}), "no key")


def test_a_token_without_a_signature_does_not_count(verifier, issuer):
    refused(verifier, issuer.token(time.time(), algorithm="none"), "no key")
    head, body, _ = issuer.token(time.time()).split(".")
    refused(verifier, f"{head}.{body}.")


def test_the_public_key_is_no_secret(verifier, issuer):
    """HMAC with the public key for its secret: any client with the JWKS could make such a token."""
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    import hashlib
    import hmac

    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": int(time.time()) + 300}
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims)}"
    signature = hmac.digest(public, signed.encode(), hashlib.sha256)
    forged = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    refused(verifier, f"{signed}.{forged}", "no key")
    # Not even if the file lists a secret key.
    secret = {"kty": "oct", "kid": "one", "k": base64.urlsafe_b64encode(b"s" * 32).decode()}
    issuer.write(secret, issuer.jwk(kid="two"))
    refused(
        TokenVerifier(str(issuer.path), ISSUER, AUDIENCE, "sub"),
        jwt.encode(claims, b"s" * 32, "HS256", headers={"kid": "one"}),
    )


def test_the_algorithm_is_the_keys_own(issuer):
    issuer.write(issuer.jwk(alg="RS512"))
    verifier = TokenVerifier(str(issuer.path), ISSUER, AUDIENCE, "sub")
    refused(verifier, issuer.token(time.time()), "no key")
    assert verifier.verify(issuer.token(time.time(), algorithm="RS512")).name == USER


@pytest.mark.parametrize(
    ("key", "algorithm", "to_jwk"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ES256", jwt.algorithms.ECAlgorithm.to_jwk),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA", jwt.algorithms.OKPAlgorithm.to_jwk),
    ],
    ids=["EC", "Ed25519"],
)
def test_other_kinds_of_keys(issuer, key, algorithm, to_jwk):
    issuer.write({**to_jwk(key.public_key(), as_dict=True), "kid": "ec"}, issuer.jwk())
    verifier = TokenVerifier(str(issuer.path), ISSUER, AUDIENCE, "sub")
    token = issuer.token(time.time(), key=key, algorithm=algorithm, headers={"kid": "ec"})
    assert verifier.verify(token).name == USER
    assert verifier.verify(issuer.token(time.time())).name == USER


def test_the_file_is_read_again_when_it_changes(verifier, issuer):
    old = issuer.token(time.time())
    assert verifier.verify(old).name == USER
    new = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    issuer.write(issuer.jwk(new, kid="new"))
    os.utime(issuer.path, (1, 1))
    refused(verifier, old, "no key")
    token = issuer.token(time.time(), key=new, headers={"kid": "new"})
    assert verifier.verify(token).name == USER
    issuer.path.write_text("{")  # half written: the last good keys count
    assert verifier.verify(token).name == USER


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "RSA"}]}', "[]"])
def test_keys_that_cannot_be_used_are_a_mistake(tmp_path, text):
    path = tmp_path / "jwks.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="keys for tokens"):
        TokenVerifier(str(path), ISSUER, AUDIENCE, "sub").check()
    with pytest.raises(ConfigError):
        TokenVerifier(str(tmp_path / "none.json"), ISSUER, AUDIENCE, "sub").check()


def test_the_message_around_the_token(verifier):
    assert verifier.token_in(bearer("a.b.c")) == "a.b.c"
    assert verifier.token_in(b"n,,\x01host=h\x01auth=bearer a.b.c\x01port=1\x01\x01") == "a.b.c"
    for message in (
        b"", b"n,,", b"n,,\x01auth=Bearer a.b.c", b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01\x01", b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=other,\x01auth=Bearer a.b.c\x01\x01", b"n,,\x01auth=Bearer a\x00b\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * (1 << 17) + b"\x01\x01",
    ):  # fmt: skip
        with pytest.raises(AuthenticationFailed):
            verifier.token_in(message)


@given(st.one_of(st.binary(max_size=100), st.text(max_size=100)))
def test_any_bytes_are_a_message_or_refused(data):
    verifier = TokenVerifier("none", ISSUER, AUDIENCE, "sub")
    message = data if isinstance(data, bytes) else f"n,,\x01auth=Bearer {data}\x01\x01".encode()
    try:
        token = verifier.token_in(message)
    except AuthenticationFailed:
        return
    with pytest.raises(AuthenticationFailed):
        verifier.verify(token)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["alg", "kid", "exp", "crit", "b64", "typ"]), inner)))  # fmt: skip # noqa: E501
def test_any_json_in_a_token_is_refused(parts):
    encoded = base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()
    verifier = TokenVerifier("none", ISSUER, AUDIENCE, "sub")
    for token in (f"{encoded}.{encoded}.{encoded}", f"{encoded}.{encoded}.", encoded):
        with pytest.raises(AuthenticationFailed):
            verifier.verify(token)
