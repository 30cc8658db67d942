"""POST /topics/T with personal fields: encrypted whatever the form, or refused."""

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from support.gateway.serving import serving
from support.gateway.topics import read_all
from websockets.sync.client import connect

NDJSON = {"Content-Type": "application/x-ndjson"}
RECORDS = {"Content-Type": "application/vnd.headwater.records+json"}
CSV = {"Content-Type": "text/csv"}
ANN = {"id": 42, "name": "Ann"}


@pytest.fixture
def served(gateway_broker, topic, tmp_path):
    (tmp_path / "headwater.toml").write_text(
        f"""
        [subject.customer]
        topics = {{ {topic} = {{ id = "id", personal = ["name"] }} }}
        [gateway]
        listen = "127.0.0.1:0"
        [gateway.webhook.inbox]
        topic = "{topic}"
        verify = "github"
        secret = "hush"
        """
    )
    with serving(tmp_path, broker__bootstrap=gateway_broker) as found:
        yield found


def test_every_form_is_encrypted(served, gateway_broker, topic):
    lines = b"".join(json.dumps(ANN).encode() + b"\n" for _ in range(3))
    signature = hmac.digest(b"hush", json.dumps(ANN).encode(), hashlib.sha256).hex()
    with served.client() as client:
        answers = [
            client.post(f"/topics/{topic}", json=ANN),
            client.post(f"/topics/{topic}", content=lines, headers=NDJSON),
            client.post(f"/topics/{topic}", content=iter([lines]), headers=NDJSON),
            client.post(f"/topics/{topic}", content=b"id,name\n42,Ann\n", headers=CSV),
            client.post(
                f"/topics/{topic}",
                content=json.dumps({"records": [{"key": "k", "value": ANN}]}),
                headers=RECORDS,
            ),
            client.post(f"/topics/{topic}", json=ANN, headers={"Idempotency-Key": "one"}),
            client.post(
                "/webhooks/inbox",
                content=json.dumps(ANN),
                headers={
                    "X-Hub-Signature-256": f"sha256={signature}",
                    "X-GitHub-Delivery": base64.b64encode(b"delivery").decode(),
                    "Content-Type": "application/json",
                },
            ),
        ]
        assert [answer.status_code for answer in answers] == [200] * 7, answers[-1].text
    records = read_all(gateway_broker, topic)
    assert len(records) == 11
    keyring = served.gateway.personal.keyring
    for record in records:
        value = json.loads(record.value)
        assert value["id"] in (42, "42")  # the same person
        assert keyring.decrypt(value["name"], "name") == b'"Ann"'
    assert len({json.loads(record.value)["name"] for record in records}) == 1


def test_what_cannot_be_encrypted_is_refused(served, gateway_broker, topic):
    with served.client() as client:
        url = f"/topics/{topic}"
        nobody = client.post(url, json={"name": "Ann"})
        assert nobody.status_code == 400
        assert "id does not say whose it is" in nobody.json()["detail"]
        assert client.post(url, content=b"text", headers={"Content-Type": "text/plain"}).is_error
        key = client.post(f"{url}?key_field=name", json=ANN)
        assert "keys are not encrypted" in key.json()["error"]
        mixed = f'{json.dumps(ANN)}\n{{"name": "Bob"}}\n'
        skipped = client.post(f"{url}?on_error=skip", content=mixed, headers=NDJSON)
        assert (skipped.json()["written"], skipped.json()["refused"]) == (1, 1)
        for file in Path(served.gateway.config.key_places().key_store).glob("keys.sqlite*"):
            file.unlink()
        lost = client.post(url, json={"id": 43, "name": "Bob"})
        assert lost.status_code == 503
        assert lost.json()["error"] == "the key store is not there"
    assert len(read_all(gateway_broker, topic)) == 1


def test_records_of_a_web_socket_are_encrypted_or_refused(served, gateway_broker, topic):
    with connect(f"ws://{served.address}/topics/{topic}?from=none", proxy=None) as socket:
        socket.send(json.dumps({"records": [{"value": ANN}]}))
        assert json.loads(socket.recv(60))["written"][0]["offset"] == 0
        socket.send(json.dumps({"records": [{"value": {"name": "Ann"}}]}))
        assert "does not say whose it is" in json.loads(socket.recv(60))["detail"]
    (record,) = read_all(gateway_broker, topic)
    sealed = json.loads(record.value)["name"]
    assert served.gateway.personal.keyring.decrypt(sealed, "name") == b'"Ann"'
