"""TLS under the protocol: what goes through it, who is at the other end, and what is no TLS."""

import logging
import os
import random
import shutil
import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from support.broker.secured import MECHANISMS, Login, secured_broker
from support.certificates import Authority
from support.wire import Wire, batch_of, records_in, wait_until

from headwater.broker.network import server as server_module
from headwater.broker.security.authentication import UNAUTHENTICATED_TIMEOUT_S
from headwater.broker.security.tls import TlsContext, _escaped
from headwater.errors import ConfigError
from headwater.testing import FakeClock


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.issue("broker")


def serving(path, certificate, **settings):
    cert, key = certificate
    return secured_broker(path / "data", tls_cert=cert, tls_key=key, **settings)


def encrypted(path, certificate, **settings):
    """Nobody is asked who they are."""
    return serving(path, certificate, authentication="none", **settings)


def mutual(path, certificate, authority, super_user="User:CN=ops,O=Example"):
    return serving(
        path,
        certificate,
        authentication="tls",
        tls_client_ca=authority.ca,
        super_users=(super_user,),
    )


def trusting(authority, certificate=None):
    context = ssl.create_default_context(cafile=authority.ca)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_over_tls(tmp_path, authority, certificate, mechanism, version):
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    with (
        serving(tmp_path, certificate) as broker,
        Login(broker.bootstrap, context) as client,
    ):
        assert client.log_in(mechanism).error_code == 0
        assert client.is_served()


def test_records_go_through_it_whole(tmp_path, authority, certificate):
    """Of all sizes around TLS's 16 KiB, the buffers' 64 and 256 KiB, and the sender's pieces."""
    values = [
        random.Random(size).randbytes(size)
        for size in (0, 1, 16_000, 16_384, 65_500, 65_536, 262_144, 900_000)
    ]
    with (
        encrypted(tmp_path, certificate) as broker,
        Login(broker.bootstrap, trusting(authority)) as client,
    ):
        client.create_topic("t")
        for offset, value in enumerate(values):
            answer = client.produce("t", batch_of(value))
            assert (answer.error_code, answer.base_offset) == (0, offset)
        read = client.fetch("t", 0, partition_max_bytes=50 << 20)
        assert [record.value for record in records_in(read.records)] == values


def test_many_requests_at_once_and_a_client_that_reads_slowly(tmp_path, authority, certificate):
    value = random.Random(1).randbytes(500_000)
    with encrypted(tmp_path, certificate) as broker:
        with Login(broker.bootstrap, trusting(authority)) as client:
            client.create_topic("t")
            assert client.produce("t", batch_of(value)).error_code == 0
        slow = Login(broker.bootstrap, trusting(authority), receive_buffer_bytes=8192)
        from support.wire import fetch_request

        def ask() -> None:
            for _ in range(30):
                slow.send(fetch_request("t", 0, partition_max_bytes=50 << 20), 12)

        sender = threading.Thread(target=ask)
        sender.start()
        with Login(broker.bootstrap, trusting(authority)) as other:
            assert other.produce("t", batch_of(b"x")).error_code == 0
        sender.join(60)
        for _ in range(30):
            answer = slow.receive().responses[0].partitions[0]
            assert records_in(answer.records)[0].value == value
        slow.close()


def test_the_client_is_the_subject_of_its_certificate(tmp_path, authority, certificate):
    with mutual(tmp_path, certificate, authority) as broker:
        for subject, name in (
            ({"O": "Example", "CN": "ops"}, "CN=ops,O=Example"),
            ({"O": "A, B", "OU": "#1", "CN": 'x"y+z '}, 'CN=x\\"y\\+z\\ ,OU=\\#1,O=A\\, B'),
        ):
            own = authority.issue("client", **subject)
            with Login(broker.bootstrap, trusting(authority, own)) as client:
                assert client.is_served()
                (connection,) = broker.running.server.connections
                assert str(connection.session.principal) == f"User:{name}"
            wait_until(lambda: not broker.running.server.connections)


def test_escaping_as_in_rfc_2253():
    assert _escaped("plain") == "plain"
    assert _escaped(" a ") == "\\ a\\ "
    assert _escaped("#a;b<c>") == "\\#a\\;b\\<c\\>"
    assert _escaped("back\\slash") == "back\\\\slash"


@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_a_client_whose_certificate_does_not_count(tmp_path, authority, certificate, caplog, kind):
    own = {
        "none": lambda: None,
        "of another authority": lambda: Authority(tmp_path, "other").issue("client"),
        "expired": lambda: authority.issue("expired", days=-1),
    }[kind]()
    reason = {
        "none": "TLS handshake: the client shows no certificate",
        "of another authority": "the client's certificate is refused: unable to get local issuer",
        "expired": "the client's certificate is refused: certificate has expired",
    }[kind]
    with mutual(tmp_path, certificate, authority) as broker:
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            Login(broker.bootstrap, trusting(authority, own)) as client,
        ):
            client.create_topic("t")  # in TLS 1.3 the client learns of it with the first answer
        wait_until(lambda: reason in caplog.text)
        wait_until(lambda: not broker.running.server.connections)
        assert broker.running.broker.metrics.logins_failed == 1
    (line,) = (tmp_path / "data" / "audit.jsonl").read_text().splitlines()
    assert '"mechanism":"TLS","allowed":false' in line


def test_a_certificate_does_not_replace_a_login(tmp_path, authority, certificate):
    """Both are asked for; the name is the login's."""
    own = authority.issue("client")
    with serving(tmp_path, certificate, tls_client_ca=authority.ca) as broker:
        with Login(broker.bootstrap, trusting(authority, own)) as client:
            assert not client.is_served()
        with Login(broker.bootstrap, trusting(authority, own)) as client:
            client.log_in("PLAIN")
            assert client.is_served()
            assert "User:alice" in {
                str(connection.session.principal)
                for connection in broker.running.server.connections
            }


def test_a_client_does_not_trust_another_authority(tmp_path, certificate, caplog):
    other = Authority(tmp_path, "other")
    with encrypted(tmp_path, certificate) as broker:
        with pytest.raises(ssl.SSLCertVerificationError):
            Login(broker.bootstrap, trusting(other))
        wait_until(lambda: "the client does not trust our certificate" in caplog.text)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_old_tls_is_refused(tmp_path, certificate, caplog):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with encrypted(tmp_path, certificate) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Login(broker.bootstrap, context)
        wait_until(lambda: "TLS is older than 1.2" in caplog.text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP without TLS"),
        (b"\0\0\0\x12\0\x12\0\0\0\0\0\1\0\4test", "the client does not speak TLS"),
        (b"\x16\x03\x01\x00\x05\xff\xff\xff\xff\xff", "TLS handshake: "),
    ],
)
def test_what_is_no_tls_is_named(tmp_path, certificate, authority, caplog, data, reason):
    with encrypted(tmp_path, certificate) as broker:
        with Wire(broker.bootstrap) as client:
            client.raw(data)
            client.socket.settimeout(10)
            while client.socket.recv(1000):
                pass
        wait_until(lambda: reason in caplog.text)
        with Login(broker.bootstrap, trusting(authority)) as client:
            assert client.is_served()


def test_any_bytes_are_refused(tmp_path, certificate, authority):
    chance = random.Random(20261115)
    with encrypted(tmp_path, certificate) as broker:
        hello = client_hello()
        for round_number in range(150):
            data = bytearray(hello)
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            if round_number % 3 == 0:
                data = chance.randbytes(chance.randint(1, 400))
            with Wire(broker.bootstrap) as client:
                client.raw(bytes(data))
        with Login(broker.bootstrap, trusting(authority)) as client:
            assert client.is_served()
        wait_until(lambda: len(broker.running.server.connections) == 0)


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_damage_on_the_way_ends_the_connection(tmp_path, certificate, authority, caplog):
    """A byte changed behind the handshake: the record's own check finds it."""
    with encrypted(tmp_path, certificate) as broker:
        host, _, port = broker.bootstrap.rpartition(":")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection((host, int(port)), 10) as connection:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(65536))
            tls.write(b"\0\0\0\x12\0\x12\0\0\0\0\0\1\0\4test")
            data = bytearray(outgoing.read())
            data[-1] ^= 1
            connection.sendall(data)
            while connection.recv(65536):
                pass
        wait_until(lambda: "TLS: decryption failed or bad record mac" in caplog.text)


def test_half_a_handshake_is_ended_after_a_while(tmp_path, certificate, caplog, monkeypatch):
    monkeypatch.setattr(server_module, "SWEEP_S", 0.05)
    clock = FakeClock()
    with encrypted(tmp_path, certificate, clock=clock) as broker:
        with Wire(broker.bootstrap) as silent, Wire(broker.bootstrap) as half:
            half.raw(client_hello()[:100])
            wait_until(lambda: len(broker.running.server.unauthenticated) == 2)
            broker.advance(UNAUTHENTICATED_TIMEOUT_S + 1)
            assert silent.is_ended()
            assert half.is_ended()
        assert "not authenticated after 31 s" in caplog.text


def test_stalled_handshakes_do_not_keep_anybody_out(tmp_path, certificate, authority):
    settings = {"max_unauthenticated_connections": 20}
    with encrypted(tmp_path, certificate, **settings) as broker:
        stalled = [Wire(broker.bootstrap) for _ in range(200)]
        wait_until(lambda: len(broker.running.server.connections) == 20)
        with Login(broker.bootstrap, trusting(authority)) as client:
            assert client.is_served()
        for other in stalled:
            other.close()


def test_a_probe_of_the_port_is_not_logged(tmp_path, certificate, caplog):
    caplog.set_level(logging.WARNING)
    with encrypted(tmp_path, certificate) as broker:
        Wire(broker.bootstrap).close()
        with Wire(broker.bootstrap) as client:
            client.raw(client_hello()[:50])
        wait_until(lambda: "in the middle of the TLS handshake" in caplog.text)
        wait_until(lambda: not broker.running.server.connections)
    assert caplog.text.count("connection ended") == 1


def test_a_new_certificate_is_used_without_a_restart(tmp_path, authority, caplog):
    caplog.set_level(logging.INFO)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    for source, target in zip(authority.issue("first"), (cert, key), strict=True):
        shutil.copy(source, target)

    def common_name(broker):
        with Login(broker.bootstrap, trusting(authority)) as client:
            assert client.is_served()
            return dict(part[0] for part in client.socket.getpeercert()["subject"])["commonName"]

    with encrypted(tmp_path, (cert, key)) as broker:
        assert common_name(broker) == "first"
        new_cert, new_key = authority.issue("second")
        shutil.copy(new_cert, cert)
        os.utime(cert, (1, 1))
        assert common_name(broker) == "first"  # certificate and key do not fit
        assert "a new certificate cannot be used, the old one stays" in caplog.text
        shutil.copy(new_key, key)
        os.utime(key, (1, 1))
        assert common_name(broker) == "second"
        os.unlink(key)
        assert common_name(broker) == "second"


def test_files_that_cannot_be_used_are_a_mistake(tmp_path, authority, certificate):
    cert, key = certificate
    _, other_key = authority.issue("other")
    locked = tmp_path / "locked.key"
    with open(key, "rb") as file:
        private = serialization.load_pem_private_key(file.read(), None)
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for files in (
        (cert, other_key, None),
        (cert, str(locked), None),
        (cert, str(tmp_path / "none"), None),
        (key, key, None),
        (cert, key, str(empty)),
    ):
        with pytest.raises(ConfigError, match="the files for TLS cannot be used"):
            TlsContext(*files)
