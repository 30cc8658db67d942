"""Our reading client where the broker asks who is there."""

import dataclasses
from pathlib import Path

import pytest
from support.broker.secured import PASSWORD, USER, secured_broker
from support.certificates import Authority
from support.client.written import batch, producer
from support.clients import rights
from support.clients.rights import guarded_broker
from test_fetching import end_of, values

from headwater.broker.security.acls import Operation, ResourceType
from headwater.client.group_offsets import GroupOffsets
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.client.refusals import refused_topic
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import RequestRefused
from headwater.protocol.error_codes import ErrorCode
from headwater.settings import ClientSettings, Secret


def test_over_tls_with_scram(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("broker")
    login = ClientSettings(
        username=USER,
        password=Secret(PASSWORD),
        tls_ca=authority.ca,
        sasl_mechanism="SCRAM-SHA-512",
    )
    large = b"x" * 900_000
    with secured_broker(tmp_path / "data", tls_cert=cert, tls_key=key) as broker:
        ensure_topics(broker.bootstrap, login, [NewTopic("t")])
        with producer(broker.bootstrap, "id", login=login, compression="none") as writer:
            writer.send({("t", 0): [batch(large) for _ in range(20)]})
            writer.commit()
        with Fetcher(broker.bootstrap, login) as fetcher:
            assert values(fetcher, "t", 0, end_of(fetcher, "t")) == [large] * 20
        with GroupOffsets(broker.bootstrap, login, "g") as offsets:
            offsets.commit({("t", 0): 5})
            assert offsets.committed([("t", 0)]) == {("t", 0): 5}
        wrong = dataclasses.replace(login, password=Secret("wrong"))
        with (
            Fetcher(broker.bootstrap, wrong) as fetcher,
            pytest.raises(RequestRefused, match="refuses the login"),
        ):
            fetcher.partitions("t")


def test_the_right_that_is_missing_is_named(tmp_path: Path) -> None:
    with guarded_broker(tmp_path) as broker:
        name, topic = broker.user(), broker.topic()
        bob = ClientSettings(username=name, password=Secret(rights.PASSWORD))
        with Fetcher(broker.address, bob) as fetcher:
            with pytest.raises(RequestRefused, match=f"no right to .*{topic}") as refused:
                fetcher.partitions(topic)
            assert "write" not in refused.value.hint
            broker.allow(name, Operation.DESCRIBE, ResourceType.TOPIC, topic)
            assert fetcher.offsets([(topic, 0)], LATEST) == {(topic, 0): 0}
            with pytest.raises(RequestRefused, match="cannot be read") as refused:
                list(fetcher.read(topic, 0, 0, 1))
            assert f"headwater acl add USER --allow read --topic {topic}" in refused.value.hint
        with GroupOffsets(broker.address, bob, "mine") as offsets:
            with pytest.raises(RequestRefused, match="group mine") as refused:
                offsets.commit({(topic, 0): 1})
            assert "--group mine" in refused.value.hint


@pytest.mark.parametrize("topic", ["__headwater_positions", "__headwater_signals"])
def test_no_hint_grants_write_on_internal_topics(topic: str) -> None:
    """Who writes there decides where captures and sinks go on."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for operation in ("describe", "read", "write"):
        assert "--allow write" not in refused_topic(code, topic, operation=operation).hint
    assert "--allow write --topic t" in refused_topic(code, "t", operation="write").hint
