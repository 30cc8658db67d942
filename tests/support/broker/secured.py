"""A broker that asks who is there, and a login of a plain socket that chooses every byte."""

import asyncio
import ssl
from contextlib import contextmanager

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from headwater.protocol import scram
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headwater.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker
from support.wire import Wire

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", "wonder=land,€"
ISSUER, AUDIENCE = "https://issuer.example", "headwater"


@contextmanager
def secured_broker(data_dir, *, clock=None, **settings):
    """With one user, who is a super user."""
    settings = BrokerSettings(
        **{
            "listen": "127.0.0.1:0",
            "authentication": "sasl",
            "sasl_mechanisms": MECHANISMS,
            "super_users": (f"User:{USER}",),
            **settings,
        }
    )
    with InProcessBroker.serving(str(data_dir), settings, clock=clock) as broker:
        if settings.authentication == "sasl":
            add_user(broker, USER, PASSWORD)
        yield broker


def add_user(broker, name, password, mechanisms=tuple(scram.DIGESTS)):
    credentials = {
        mechanism: scram.new_credential(mechanism, password, 4096) for mechanism in mechanisms
    }
    on_loop(broker, broker.running.broker.users.put({name: credentials}))


def on_loop(broker, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, broker._loop).result()


class Login(Wire):
    """A connection that logs in step by step."""

    def __init__(self, address, tls: ssl.SSLContext | None = None, **options) -> None:
        super().__init__(address, **options)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def begin(self, mechanism, version=1):
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def say(self, message, version=2):
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=message), version)
        answer.auth_bytes = bytes(answer.auth_bytes)
        return answer

    def log_in(self, mechanism, name=USER, password=PASSWORD):
        """The last answer."""
        assert self.begin(mechanism).error_code == 0
        if mechanism == "PLAIN":
            return self.say(f"\0{name}\0{password}".encode())
        exchange = scram.ClientExchange(mechanism, name, password)
        first = self.say(exchange.client_first())
        assert first.error_code == 0
        last = self.say(exchange.client_final(first.auth_bytes))
        if last.error_code == 0:
            exchange.check(last.auth_bytes)
        return last

    def is_served(self) -> bool:
        """Whether it may ask what strangers may not."""
        self.send(MetadataRequest(topics=[]), 12)
        try:
            return self.receive().cluster_id is not None
        except ConnectionResetError:
            return False


class Issuer:
    """Signs tokens; its public keys lie in a file."""

    def __init__(self, path) -> None:
        self.path = path
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.write(self.jwk())

    def jwk(self, key=None, **fields):
        public = (key or self.key).public_key()
        jwk = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
        return {**jwk, "kid": "one", "use": "sig", **fields}

    def write(self, *keys) -> None:
        import json

        self.path.write_text(json.dumps({"keys": list(keys)}))

    def token(self, now_s, *, key=None, algorithm="RS256", headers=None, **claims) -> str:
        body = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "exp": int(now_s) + 300, **claims}
        body = {name: value for name, value in body.items() if value is not None}
        headers = {"kid": "one"} if headers is None else headers
        key = None if algorithm == "none" else key or self.key
        return jwt.encode(body, key, algorithm=algorithm, headers=headers)

    def settings(self) -> dict:
        return {
            "sasl_mechanisms": ("OAUTHBEARER",),
            "oauth_jwks_file": str(self.path),
            "oauth_issuer": ISSUER,
            "oauth_audience": AUDIENCE,
        }


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()
