"""What a token may do, and how `headwater token` makes, lists and revokes them."""

import json
import subprocess
import sys

import pytest

from headwater.errors import UsageError
from headwater.gateway import tokens
from headwater.settings import ClientSettings, Secret

COMMAND = [sys.executable, "-m", "headwater.cli.main", "token"]
TIMEOUT_S = 60.0


def token(*topics, operations=("read", "write")):
    return tokens.new_token("test", topics, operations, None)[0]


def test_rights_of_a_token():
    shop = token("orders", "shop.*", operations=("read",))
    assert shop.allows("read", "orders")
    assert shop.allows("read", "shop.public.customers")
    assert not shop.allows("write", "orders")
    assert not shop.allows("read", "orders2")
    assert not shop.allows("read", "sho")
    everything = token("*")
    assert everything.allows("write", "orders")
    assert not everything.allows("read", "__headwater_tokens")
    assert not token("__*").allows("read", "__headwater_tokens")


def test_only_its_text_authenticates():
    made, text = tokens.new_token("test", ["orders"], ["read"], None)
    stored = tokens.decoded({made.id.encode(): made.to_json()})
    assert stored == {made.id: made}
    assert text not in made.to_json().decode()
    assert tokens.matching(stored, text) == made
    for other in ("", "hw_", text[:-1], text + "x", text.upper(), f"hw_{made.id}_{'a' * 43}"):
        assert tokens.matching(stored, other) is None


def test_what_is_no_token_authenticates_nobody():
    assert tokens.decoded({b"a": b"{}", b"b": b"\xff", b"\xff": b"[1]", b"c": b"null"}) == {}


@pytest.mark.parametrize("topics", [(), ("a/b",), ("",), ("a*b",), ("x" * 300,), ("a",) * 101])
def test_topics_that_are_none(topics):
    with pytest.raises(UsageError):
        tokens.new_token("test", topics, ["read"], None)


def test_a_new_token_is_valid_at_once(secured):
    """Also right after another one that nobody knows, for which all tokens were read."""
    name, password = secured.alice
    login = ClientSettings(username=name, password=Secret(password))
    with secured.client() as client:
        for _ in range(3):
            _, unknown = tokens.new_token("test", ["open"], ["read"], None)
            made, text = tokens.new_token("test", ["open"], ["read"], None)
            found = [client.get("/", headers={"Authorization": f"Bearer {unknown}"})]
            tokens.store(secured.broker.bootstrap, login, made)
            found.append(client.get("/", headers={"Authorization": f"Bearer {text}"}))
            assert [answer.status_code for answer in found] == [401, 200]


def run(broker, *arguments, cwd, check):
    command = [*COMMAND, *arguments, "-b", broker]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd, check=check
    )


def test_the_command(gateway_broker, gateway, tmp_path):
    made = run(
        gateway_broker, "create", "thermometer", "-t", "readings", "--allow", "write",
        "--expires", "90d", "--json", cwd=tmp_path, check=True,
    )  # fmt: skip
    created = json.loads(made.stdout)
    listed = json.loads(run(gateway_broker, "list", "--json", cwd=tmp_path, check=True).stdout)
    (found,) = [entry for entry in listed if entry["id"] == created["id"]]
    assert (found["name"], found["topics"], found["operations"]) == (
        "thermometer",
        ["readings"],
        ["write"],
    )
    assert created["token"] not in json.dumps(listed)
    with gateway.client(token=created["token"]) as client:
        assert client.get("/").status_code == 200
    run(gateway_broker, "revoke", created["id"], cwd=tmp_path, check=True)
    again = run(gateway_broker, "revoke", created["id"], cwd=tmp_path, check=False)
    assert (again.returncode, "there is no token" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments", [("create", "x"), ("create", "x", "-t", "a", "--allow", "delete")]
)
def test_wrong_usage(gateway_broker, tmp_path, arguments):
    ended = run(gateway_broker, *arguments, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
