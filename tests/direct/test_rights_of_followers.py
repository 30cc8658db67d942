"""A followed file on a broker with ACLs: the rights that docs/security.md names are enough."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.direct.topic_reading import TIMEOUT_S

from headwater.direct.files.following import FollowedFile
from headwater.direct.files.writing import LineWriter
from headwater.errors import RequestRefused
from headwater.inspect.record_json import Record
from headwater.settings import ClientSettings, Secret

BOB = ClientSettings(username="bob", password=Secret("builder"))
TOPIC, TRANSACTION = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
RIGHTS = [
    (TOPIC, "logs", LITERAL, AclOperation.WRITE),
    (TRANSACTION, "headwater-follow-", PREFIXED, AclOperation.WRITE),
    (TOPIC, "__headwater_positions", LITERAL, AclOperation.READ),
    (TOPIC, "__headwater_positions", LITERAL, AclOperation.WRITE),
    (TOPIC, "__headwater_positions", LITERAL, AclOperation.CREATE),
]


def follow_once(broker, path):
    with LineWriter(
        broker.bootstrap, BOB, "logs", "test", parse=lambda line: Record(None, line),
        max_line_bytes=1000, patience_s=5,
    ) as writer:  # fmt: skip
        followed = FollowedFile(path, writer.position, max_line_bytes=1000, report=pytest.fail)
        try:
            writer.write(followed.read(), followed)
        finally:
            followed.close()


def test_each_right_is_needed_and_all_are_enough(tmp_path):
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    with secured_broker(tmp_path / "data") as broker:
        add_user(broker, "bob", "builder")
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        admin.create_topics([NewTopic("logs", 1)])["logs"].result(TIMEOUT_S)
        for kind, name, pattern, operation in reversed(RIGHTS):
            with pytest.raises(RequestRefused):
                follow_once(broker, path)
            binding = AclBinding(
                kind, name, pattern, "User:bob", "*", operation, AclPermissionType.ALLOW
            )
            admin.create_acls([binding])[binding].result(TIMEOUT_S)
        follow_once(broker, path)
        path.write_bytes(b"1\n2\n")
        follow_once(broker, path)
