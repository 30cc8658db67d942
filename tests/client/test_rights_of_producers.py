"""Our client where the broker asks who is there."""

import dataclasses

import pytest
from support.broker.secured import PASSWORD, USER, secured_broker
from support.certificates import Authority
from support.client.written import batch, committed, producer
from support.clients import rights
from support.clients.rights import guarded_broker

from headwater.broker.security.acls import Operation, ResourceType
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import RequestRefused
from headwater.settings import ClientSettings, Secret

ADMIN = ClientSettings(username=USER, password=Secret(PASSWORD))


def test_over_tls_with_scram(tmp_path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("broker")
    login = dataclasses.replace(ADMIN, tls_ca=authority.ca, sasl_mechanism="SCRAM-SHA-512")
    with secured_broker(tmp_path / "data", tls_cert=cert, tls_key=key) as broker:
        address = broker.bootstrap
        ensure_topics(address, login, [NewTopic("t", 2)])
        with producer(address, "id", login=login) as writer:
            for number in range(3):
                writer.send({("t", 1): [batch(b"x" * 100_000, b"%d" % number)]})
                writer.commit()
        found = committed(
            address, "t", 1, security_protocol="sasl_ssl", ssl_ca_location=authority.ca,
            sasl_mechanism="SCRAM-SHA-512", sasl_username=USER, sasl_password=PASSWORD,
        )  # fmt: skip
        assert found[1::2] == [b"0", b"1", b"2"]
        assert read_committed_latest(address, login, "t") == {b"k": b"2"}
        wrong = dataclasses.replace(login, password=Secret("wrong"))
        with pytest.raises(RequestRefused, match="refuses the login"):
            producer(address, "id", login=wrong)
        stranger = Authority(tmp_path, "stranger")
        with pytest.raises(RequestRefused, match="not to be trusted"):
            producer(address, "id", login=dataclasses.replace(login, tls_ca=stranger.ca))


def test_the_right_that_is_missing_is_named(tmp_path) -> None:
    with guarded_broker(tmp_path) as broker:
        name, topic, address = broker.user(), broker.topic(), broker.address
        bob = ClientSettings(username=name, password=Secret(rights.PASSWORD))
        with pytest.raises(RequestRefused, match="cannot be created") as refused:
            ensure_topics(address, bob, [NewTopic("mine")])
        assert "headwater acl add USER --allow create --topic mine" in refused.value.hint
        with pytest.raises(RequestRefused, match=topic):
            read_committed_latest(address, bob, topic)
        with TransactionalProducer(address, "bobs-id", login=bob) as writer:
            for operation in (Operation.DESCRIBE, Operation.WRITE):
                with pytest.raises(RequestRefused) as refused:
                    writer.fence()
                assert "headwater acl add" in refused.value.hint
                assert "--transactional-id bobs-id" in refused.value.hint
                broker.allow(name, operation, ResourceType.TRANSACTIONAL_ID, "bobs-id")
            writer.fence()
            with pytest.raises(RequestRefused) as refused:
                writer.partitions(topic)
            assert f"acl add USER --allow describe --topic {topic}`" in refused.value.hint
            broker.allow(name, Operation.DESCRIBE, ResourceType.TOPIC, topic)
            with pytest.raises(RequestRefused) as refused:
                writer.send({(topic, 0): [batch(b"v")]})
            assert f"acl add USER --allow write --topic {topic}`" in refused.value.hint
            writer.abort()
            broker.allow(name, Operation.WRITE, ResourceType.TOPIC, topic)
            writer.send({(topic, 0): [batch(b"v")]})
            writer.commit()
        broker.allow(name, Operation.READ, ResourceType.TOPIC, topic)
        broker.allow(name, Operation.READ, ResourceType.GROUP, "headwater-", prefix=True)
        assert read_committed_latest(address, bob, topic) == {b"k": b"v"}
