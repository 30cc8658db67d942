"""Foreign clients that log in: every mechanism, with and without TLS, rightly and wrongly."""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from support.broker.secured import AUDIENCE, ISSUER, Issuer
from support.certificates import Authority
from support.clients.kafka_tools import run_tool
from tiers import in_full, representative

from bench.peers import kafka
from bench.peers.provision import missing_tools

with warnings.catch_warnings():  # importing it reads files in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

PASSWORD = "pass, w=rd"
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HEADWATER = Path(sys.executable).with_name("headwater")
WAIT_S = 60


class SecuredBroker:
    """A broker process with one admin; `tls` says whether its listener speaks it."""

    def __init__(self, directory: Path, authority: Authority, issuer: Issuer, *, tls: bool) -> None:
        self.authority, self.issuer, self.tls = authority, issuer, tls
        made = subprocess.run(
            [HEADWATER, "user", "create", "admin", "--offline", "--data-dir", directory / "data"],
            input=PASSWORD, text=True, capture_output=True, check=False, cwd=directory,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        flags = {
            "listen": "127.0.0.1:0", "data-dir": directory / "data", "authentication": "sasl",
            "super-users": "admin",
            "sasl-mechanisms": ",".join((*PASSWORD_MECHANISMS, "OAUTHBEARER")),
            "oauth-jwks-file": issuer.path, "oauth-issuer": ISSUER, "oauth-audience": AUDIENCE,
        }  # fmt: skip
        if tls:
            cert, key = authority.issue("broker")
            flags |= {"tls-cert": cert, "tls-key": key}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        self.log = directory / "broker.log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [HEADWATER, "broker", "--json", "--log-level=debug", *arguments],
                stdout=subprocess.PIPE, stderr=log, cwd=directory,
            )  # fmt: skip
        self.address = json.loads(self.child.stdout.readline())["listen"]

    def stop(self) -> None:
        self.child.terminate()
        assert self.child.wait(WAIT_S) == 0
        self.child.stdout.close()

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def confluent(self, mechanism: str, password: str = PASSWORD, **more) -> dict:
        conf = {
            "bootstrap.servers": self.address, "security.protocol": self.protocol,
            "sasl.mechanism": mechanism, "log_level": 0,
        }  # fmt: skip
        if mechanism != "OAUTHBEARER":
            conf |= {"sasl.username": "admin", "sasl.password": password}
        return conf | ({"ssl.ca.location": self.authority.ca} if self.tls else {}) | more

    def token(self, **claims) -> str:
        return self.issuer.token(time.time(), sub="admin", **claims)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer") / "jwks.json")


@pytest.fixture(scope="module", params=[*in_full(False), True], ids=["plaintext", "tls"])
def secured(request, tmp_path_factory, authority, issuer):
    directory = tmp_path_factory.mktemp("secured")
    broker = SecuredBroker(directory, authority, issuer, tls=request.param)
    yield broker
    broker.stop()
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert "authenticated: User:admin" in log
    for secret in (PASSWORD, "wrong-password", "eyJ"):  # what every JWT begins with
        assert secret not in log


@pytest.fixture
def topic():
    return f"secured-{uuid4().hex[:12]}"


# ── librdkafka ────────────────────────────────────────────────────────────────────────────────


def round_trip(conf, topic):
    """A record written and read again."""
    failures = []
    producer = Producer(conf)
    producer.produce(topic, b"x" * 100_000, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(WAIT_S) == 0
    assert failures == [None]
    consumer = Consumer(conf | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    assert message.value() == b"x" * 100_000


def refused_reason(conf) -> str:
    """What librdkafka says before it has a connection."""
    said = []
    admin = AdminClient(conf | {"error_cb": said.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(0.5)
    return " ".join(f"{record.name()} {record.str()}" for record in said)


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
@representative
def test_confluent(secured, topic, mechanism):
    round_trip(secured.confluent(mechanism), topic)


@pytest.mark.parametrize("mechanism", ["PLAIN", *in_full("SCRAM-SHA-256", "SCRAM-SHA-512")])
def test_confluent_with_a_wrong_password(secured, mechanism):
    said = refused_reason(secured.confluent(mechanism, "wrong-password"))
    assert "_AUTHENTICATION" in said
    assert f"Authentication failed: invalid credentials with {mechanism}" in said


def test_confluent_with_a_token(secured, topic):
    def token(_):
        return secured.token(), time.time() + 300

    round_trip(secured.confluent("OAUTHBEARER", oauth_cb=token), topic)


def test_confluent_with_an_expired_token(secured):
    def token(_):
        return secured.token(exp=1000), time.time() + 300

    said = refused_reason(secured.confluent("OAUTHBEARER", oauth_cb=token))
    assert "_AUTHENTICATION" in said


def test_confluent_renews_its_token(secured, topic):
    """KIP-368: the session lasts as long as the token; the connection lives on behind it."""

    expiries_s = []

    def token(_):
        ends_s = time.time() + 2
        expiries_s.append(int(ends_s) + 1)
        return secured.token(exp=expiries_s[-1]), ends_s

    producer = Producer(secured.confluent("OAUTHBEARER", oauth_cb=token))
    failures = []
    # Until the second token has expired, too, and some more has been written.
    while len(expiries_s) < 3 or time.time() < expiries_s[1] + 0.5:
        producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error))
        producer.flush(WAIT_S)
        time.sleep(0.1)
    assert len(failures) > 10
    assert set(failures) == {None}


def test_confluent_without_a_login_or_without_tls(secured):
    plain = {"bootstrap.servers": secured.address, "log_level": 0}
    assert "_TRANSPORT" in refused_reason(plain) or "_ALL_BROKERS_DOWN" in refused_reason(plain)


def test_confluent_with_another_ca(secured, tmp_path):
    if not secured.tls:
        pytest.skip("there is no certificate to be trusted")
    conf = secured.confluent("PLAIN", **{"ssl.ca.location": Authority(tmp_path, "other").ca})
    said = refused_reason(conf)
    assert "_SSL" in said
    assert "certificate verify failed" in said


def test_confluent_makes_and_deletes_users(secured, topic):
    admin = AdminClient(secured.confluent("SCRAM-SHA-512"))
    name = f"user-{topic}"
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    created = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(name, info, b"its password", b"salt")]
    )
    assert created[name].result(WAIT_S) is None
    described = admin.describe_user_scram_credentials([name])[name].result(WAIT_S)
    assert [info.iterations for info in described.scram_credential_infos] == [8192]
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        as_user = secured.confluent(mechanism, "its password", **{"sasl.username": name})
        assert AdminClient(as_user).list_topics(timeout=WAIT_S).brokers
    deleted = admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)]
    )
    assert deleted[name].result(WAIT_S) is None
    with pytest.raises(KafkaException) as caught:
        admin.describe_user_scram_credentials([name])[name].result(WAIT_S)
    assert caught.value.args[0].name() == "RESOURCE_NOT_FOUND"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_kcat(secured, topic, tmp_path, mechanism):
    conf = secured.confluent(mechanism)
    file = tmp_path / "kcat.conf"  # -X would take the comma of the password for its own
    file.write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
    kcat = ["kcat", "-F", str(file)]
    subprocess.run(
        [*kcat, "-P", "-t", topic], input="hello\n", text=True, check=True, timeout=WAIT_S
    )
    read = subprocess.run(
        [*kcat, "-C", "-t", topic, "-o", "beginning", "-e", "-q"],
        capture_output=True, text=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert read.stdout == "hello\n"


# ── Python's own clients ──────────────────────────────────────────────────────────────────────


class Provider(AbstractTokenProvider):
    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def token(self) -> str:
        return self._text


def kafka_python(broker, mechanism, password=PASSWORD, token=None):
    conf = {
        "bootstrap_servers": broker.address,
        "security_protocol": broker.protocol,
        "sasl_mechanism": mechanism,
        "ssl_cafile": broker.authority.ca if broker.tls else None,
    }
    if mechanism == "OAUTHBEARER":
        return conf | {"sasl_oauth_token_provider": Provider(token or broker.token())}
    return conf | {"sasl_plain_username": "admin", "sasl_plain_password": password}


@pytest.mark.parametrize("mechanism", [*PASSWORD_MECHANISMS, "OAUTHBEARER"])
def test_kafka_python(secured, topic, mechanism):
    conf = kafka_python(secured, mechanism)
    producer = KafkaProducer(**conf)
    producer.send(topic, b"hello").get(timeout=WAIT_S)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **conf)
    deadline_s = time.monotonic() + WAIT_S
    found = []
    while not found and time.monotonic() < deadline_s:
        found = [record.value for batch in consumer.poll(500).values() for record in batch]
    consumer.close()
    assert found == [b"hello"]


@pytest.mark.parametrize("mechanism", [*PASSWORD_MECHANISMS, "OAUTHBEARER"])
def test_kafka_python_with_the_wrong_secret(secured, mechanism):
    wrong = kafka_python(secured, mechanism, "wrong-password", secured.token(exp=1))
    with pytest.raises(KafkaError):
        KafkaProducer(**wrong, bootstrap_timeout_ms=700)


def aiokafka(broker, mechanism, password=PASSWORD):
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return broker.token()

    context = ssl.create_default_context(cafile=broker.authority.ca) if broker.tls else None
    conf = {
        "bootstrap_servers": broker.address,
        "security_protocol": broker.protocol,
        "sasl_mechanism": mechanism,
        "ssl_context": context,
    }
    if mechanism == "OAUTHBEARER":
        return conf | {"sasl_oauth_token_provider": Provider()}
    return conf | {"sasl_plain_username": "admin", "sasl_plain_password": password}


@pytest.mark.parametrize("mechanism", [*PASSWORD_MECHANISMS, "OAUTHBEARER"])
def test_aiokafka(secured, topic, mechanism):
    async def go() -> bytes:
        conf = aiokafka(secured, mechanism)
        async with AIOKafkaProducer(**conf) as producer:
            await producer.send_and_wait(topic, b"hello")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **conf) as consumer:
            return (await asyncio.wait_for(consumer.getone(), WAIT_S)).value

    assert asyncio.run(go()) == b"hello"


@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_aiokafka_with_a_wrong_password(secured, mechanism):
    async def go() -> None:
        producer = AIOKafkaProducer(**aiokafka(secured, mechanism, "wrong-password"))
        try:
            with pytest.raises(AioKafkaError):
                await producer.start()
        finally:
            await producer.stop()

    asyncio.run(go())


# ── Java ──────────────────────────────────────────────────────────────────────────────────────

OAUTH = "org.apache.kafka.common.security.oauthbearer"
java = pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn")


def java_properties(broker, directory, mechanism, password=PASSWORD) -> str:
    module = {
        "PLAIN": "plain.PlainLoginModule",
        "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule",
    }.get(mechanism, "scram.ScramLoginModule")
    options = "" if mechanism == "OAUTHBEARER" else f' username="admin" password="{password}"'
    lines = [
        f"security.protocol={broker.protocol}",
        f"sasl.mechanism={mechanism}",
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required{options};",
    ]
    if broker.tls:
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={broker.authority.ca}"]
    if mechanism == "OAUTHBEARER":
        token = directory / "token"
        token.write_text(broker.token())
        lines += [
            f"sasl.oauthbearer.token.endpoint.url=file://{token}",
            f"sasl.oauthbearer.jwt.retriever.class={OAUTH}.FileJwtRetriever",
            f"sasl.login.callback.handler.class={OAUTH}.OAuthBearerLoginCallbackHandler",
        ]
    path = directory / "client.properties"
    path.write_text("\n".join(lines))
    return str(path)


@java
@pytest.mark.java
@pytest.mark.parametrize("mechanism", PASSWORD_MECHANISMS)
def test_java(secured, topic, tmp_path, mechanism):
    perform(run_tool, secured, topic, java_properties(secured, tmp_path, mechanism))


@java
@pytest.mark.java
def test_java_with_a_token(secured, topic, tmp_path):
    """In a JVM of its own: OAuth's token file must be allowed by name."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{tmp_path / 'token'}"
    files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={tmp_path / 'token'}"
    run = partial(kafka.run_tool, jvm=[*kafka.TOOL_JVM, allowed, files])
    perform(run, secured, topic, java_properties(secured, tmp_path, "OAUTHBEARER"))


def perform(run, secured, topic, conf) -> None:
    done = run(
        "ProducerPerformance",
        *("--bootstrap-server", secured.address, "--topic", topic, "--command-config", conf),
        *("--num-records", "1000", "--record-size", "1000", "--throughput", "-1"),
    )
    assert "1000 records sent" in done.stdout, done.stdout + done.stderr


@java
@pytest.mark.java
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_java_with_a_wrong_password(secured, tmp_path, mechanism):
    conf = java_properties(secured, tmp_path, mechanism, "wrong-password")
    done = run_tool(
        "TopicCommand", "--bootstrap-server", secured.address, "--list", "--command-config", conf
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert f"Authentication failed: invalid credentials with {mechanism}" in said


@java
@pytest.mark.java
def test_kafka_configs_makes_a_user(secured, tmp_path, topic):
    conf = java_properties(secured, tmp_path, "SCRAM-SHA-256")
    tool = ("kafka.admin.ConfigCommand", "--bootstrap-server", secured.address)
    name = f"java-{topic}"
    entity = ("--command-config", conf, "--entity-type", "users", "--entity-name", name)
    password = "SCRAM-SHA-256=[iterations=8192,password=its-password]"
    altered = run_tool(*tool, *entity, "--alter", "--add-config", password)
    assert f"Completed updating config for user {name}" in altered.stdout, altered.stderr
    described = run_tool(*tool, *entity, "--describe")
    assert "SCRAM-SHA-256=iterations=8192" in described.stdout, described.stderr
    as_user = secured.confluent("PLAIN", "its-password", **{"sasl.username": name})
    assert AdminClient(as_user).list_topics(timeout=WAIT_S).brokers
    deleted = run_tool(*tool, *entity, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert f"Completed updating config for user {name}" in deleted.stdout, deleted.stderr
