"""`headwater acl …`, against a broker that asks who its clients are."""

import itertools
import json

import pytest

from .conftest import Cli, environment, running_broker, wait_until

PASSWORD = "s3cret"
_users = itertools.count(1)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def secured(data_dir, forked_commands):
    """The address of a broker with SASL, whose super user is `admin`."""
    offline = Cli("127.0.0.1:1", data_dir, forked_commands)
    offline.environment = environment()
    offline("user", "create", "admin", "--offline", "--data-dir", data_dir, stdin=PASSWORD)
    options = ("--authentication", "sasl", "--super-users", "admin")
    with running_broker(data_dir, *options) as (_, ready):
        yield ready["listen"]


def logged_in(address, cwd, user, forked_commands):
    cli = Cli(address, cwd, forked_commands)
    cli.environment |= {
        "HEADWATER_CLIENT__USERNAME": user,
        "HEADWATER_CLIENT__PASSWORD": PASSWORD,
    }
    return cli


@pytest.fixture
def admin(secured, tmp_path, forked_commands):
    return logged_in(secured, tmp_path, "admin", forked_commands)


@pytest.fixture
def user(admin):
    """The name of a new user without any right."""
    name = f"user-{next(_users)}"
    admin("user", "create", name, stdin=PASSWORD)
    return name


@pytest.fixture
def client(secured, tmp_path, user, forked_commands):
    return logged_in(secured, tmp_path, user, forked_commands)


def test_add_list_remove(admin, user):
    added = admin.json("acl", "add", user, "--allow", "read,write", "--topic", "orders")
    assert {acl["operation"] for acl in added} == {"read", "write"}
    listed = admin.json("acl", "list", user)
    assert listed == [
        {
            "principal": f"User:{user}",
            "permission": "allow",
            "operation": operation,
            "resource": "topic",
            "pattern": "literal",
            "name": "orders",
            "host": "*",
        }
        for operation in ("read", "write")
    ]
    shown = admin("acl", "list", user).splitlines()
    assert shown[0].split() == [
        "PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST",
    ]  # fmt: skip
    assert len(shown) == 3
    admin("acl", "remove", user, "--allow", "write", "--topic", "orders", "--yes")
    assert [acl["operation"] for acl in admin.json("acl", "list", user)] == ["read"]


def test_a_producer_and_a_consumer_need_no_more_than_their_role(admin, user, client):
    topic = f"{user}-topic"
    admin("topic", "create", topic)
    assert "authorization" in client.error("produce", topic, stdin="one\n").lower()
    admin("acl", "add", user, "--producer", "--topic", topic)
    client("produce", topic, stdin="one\n")
    reading = ("consume", topic, "-g", user, "-o", "start", "-e", "-f", "%v\n")
    assert "authorization" in client.error(*reading).lower()
    admin("acl", "add", user, "--consumer", "--topic", topic, "--group", user)
    assert client(*reading) == "one\n"


def test_a_denial_wins(admin, user, client):
    topic = f"{user}-topic"
    admin("topic", "create", topic)
    admin("acl", "add", user, "--allow", "all", "--topic", "*")
    client("produce", topic, stdin="one\n")
    admin("acl", "add", user, "--deny", "write", "--topic", user, "--prefix")
    assert "authorization" in client.error("produce", topic, stdin="two\n").lower()


def test_list_shows_what_has_a_say_on_a_resource(admin, user):
    admin("acl", "add", user, "--allow", "read", "--topic", "team-", "--prefix")
    admin("acl", "add", user, "--allow", "write", "--topic", "*")
    admin("acl", "add", user, "--allow", "delete", "--topic", "other")
    admin("acl", "add", user, "--allow", "read", "--group", "team-", "--prefix")
    found = admin.json("acl", "list", user, "--topic", "team-orders")
    assert {(acl["pattern"], acl["name"]) for acl in found} == {
        ("prefixed", "team-"),
        ("literal", "*"),
    }


def test_the_cluster_and_transactions(admin, user):
    admin("acl", "add", user, "--allow", "describe", "--cluster", "--transactional-id", "tx")
    found = admin.json("acl", "list", user)
    assert {(acl["resource"], acl["name"]) for acl in found} == {
        ("cluster", "kafka-cluster"),
        ("transactional-id", "tx"),
    }


def test_removing_asks_and_reports_when_there_is_none(admin, user):
    asked = admin.error("acl", "remove", user, "--allow", "read", "--topic", "x", code=2)
    assert "--yes" in asked
    missing = admin.error("acl", "remove", user, "--allow", "read", "--topic", "x", "--yes")
    assert "no such ACL" in missing


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("add", "x", "--allow", "read"), "--topic"),
        (("add", "x", "--topic", "t"), "--allow"),
        (("add", "x", "--allow", "fly", "--topic", "t"), "alter-configs"),
        (("add", "x", "--consumer", "--topic", "t"), "--group"),
        (("add", "x", "--producer", "--group", "g"), "--topic"),
    ],
)
def test_mistakes(offline, arguments, expected):
    assert expected in offline.error("acl", *arguments, code=2)


def test_a_user_without_the_right_is_refused(client, user):
    assert "uthorization" in client.error("acl", "list")
    assert "uthorization" in client.error("acl", "add", user, "--allow", "all", "--topic", "*")


def test_the_audit_log_has_it_all(admin, user, client, data_dir):
    topic = f"{user}-audited"
    admin("topic", "create", topic)
    admin("acl", "add", user, "--allow", "describe", "--topic", topic)
    client.error("produce", topic, stdin="x\n")  # librdkafka asks for a producer id first

    def events():
        lines = (data_dir / "audit.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        return {
            (event["event"], event["principal"], event.get("operation"))
            for event in entries
            if topic in event.get("resource", "") or event["event"] != "change"
        }

    wait_until(
        lambda: (
            {
                ("authentication", "User:admin", None),
                ("authentication", f"User:{user}", None),
                ("change", "User:admin", "CREATE"),
                ("denied", f"User:{user}", "IDEMPOTENT_WRITE"),
            }
            <= events()
        )
    )
    assert PASSWORD not in (data_dir / "audit.jsonl").read_text()


def test_a_command_without_the_right_says_so(client):
    for command in (("user", "list"), ("user", "delete", "admin", "-y"), ("acl", "list")):
        error = client.error(*command)
        assert "CLUSTER_AUTHORIZATION_FAILED" in error
        assert "hint: a user who may change ACLs can grant it" in error


def test_reading_without_a_group_needs_no_right_on_one(admin, client, user):
    admin("topic", "create", "readable", "--if-not-exists")
    admin("produce", "readable", stdin="hello\n")
    admin("acl", "add", user, "--allow", "read", "--topic", "readable")
    assert client("consume", "readable", "-o", "start", "-e") == "hello\n"
    assert "GROUP_AUTHORIZATION_FAILED" in client.error("consume", "readable", "-g", "g", "-e")


def test_who_may_not_see_the_configs_of_a_topic_sees_its_partitions(admin, client, user):
    admin("topic", "create", "seen", "--if-not-exists")
    admin("acl", "add", user, "--allow", "describe", "--topic", "seen")
    (described,) = client.json("topic", "describe", "seen")
    assert (described["partitions"][0]["end_offset"], described["configs"]) == (0, None)
    assert "you may not see its configs" in client("topic", "describe", "seen")


def test_without_authentication_there_are_none(cli):
    for command in (("list",), ("add", "alice", "--producer", "--topic", "orders")):
        error = cli.error("acl", *command)
        assert "SECURITY_DISABLED" in error
        assert "hint: the broker needs authentication" in error
    assert "cannot add the ACL: User:alice allow write topic literal orders *" in error
