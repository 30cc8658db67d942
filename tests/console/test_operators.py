"""Who may run jobs: a right of its own, which gives nothing else."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import serving

TIMEOUT_S = 60.0
USERS = {
    # user: the ACLs it has
    "operator": [(ResourceType.GROUP, "headwater.operators", AclOperation.DELETE)],
    "consumer": [(ResourceType.GROUP, "*", AclOperation.READ)],
    "admin": [
        (ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER),
        (ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE),
    ],
    "nobody": [],
}


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        acls = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation,
                AclPermissionType.ALLOW,
            )
            for user, rights in USERS.items() for kind, name, operation in rights
        ]  # fmt: skip
        for future in admin.create_acls(acls).values():
            future.result(TIMEOUT_S)
        for user in USERS:
            add_user(broker, user, "password")
        with serving(
            tmp_path_factory.mktemp("c"),
            broker__listen=broker.bootstrap,
            broker__authentication="sasl",
        ) as served:
            yield served


def signed_in(served, name):
    browser = served.browser()
    answer = browser.post("/sign-in", {"name": name, "password": "password", "next": "/topics"})
    assert answer.status == 303
    return browser


def test_an_operator_runs_jobs(console):
    browser = signed_in(console, "operator")
    answer = browser.post("/stores/verify")
    assert answer.status == 303
    assert browser.get(answer.headers["location"]).status == 200
    assert len(browser.get("/jobs.json").json["jobs"]) == 1
    assert browser.post(f"{answer.headers['location']}cancel").status == 303


@pytest.mark.parametrize("user", ["consumer", "admin", "nobody"])
def test_others_do_not_whatever_else_they_may(console, user):
    browser = signed_in(console, user)
    answer = browser.post("/stores/verify")
    assert answer.status == 403
    assert f"headwater acl add {user} --allow delete --group headwater.operators" in answer.text
    assert "--cluster" not in answer.text
    assert browser.get("/jobs.json").json["jobs"] == []
