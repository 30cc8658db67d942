"""The registry's answers over HTTP: content types, codes, rights, and bodies that are none."""

import json
from urllib.parse import quote

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.broker.secured import add_user
from support.gateway.serving import TIMEOUT_S
from tiers import count

from headwater.gateway import tokens
from headwater.gateway.registry.exchange import MAX_BODY_BYTES
from headwater.settings import ClientSettings, Secret

V1 = "application/vnd.schemaregistry.v1+json"


def refused(answer):
    assert answer.headers["content-type"] == V1
    body = answer.json()
    assert set(body) == {"error_code", "message"}
    return answer.status_code, body["error_code"]


def test_answers_have_the_content_type_that_is_accepted(client):
    assert client.get("/subjects", headers={"Accept": "*/*"}).headers["content-type"] == V1
    for accepted in (V1, "application/json", "application/vnd.schemaregistry+json"):
        answer = client.get("/subjects", headers={"Accept": accepted})
        assert answer.headers["content-type"] == accepted
    several = f"{V1}, application/vnd.schemaregistry+json, application/json"
    assert client.get("/subjects", headers={"Accept": several}).headers["content-type"] == V1


def test_a_version_has_what_clients_read(client, subject, record):
    made = client.post(f"/subjects/{subject}/versions", json={"schema": record()}).json()
    assert set(made) == {"id", "version", "guid"}
    found = client.get(f"/subjects/{subject}/versions/latest").json()
    assert found == {
        "subject": subject,
        "version": 1,
        "id": made["id"],
        "guid": made["guid"],
        "schema": found["schema"],
    }
    assert json.loads(found["schema"]) == json.loads(record())
    assert client.get(f"/schemas/ids/{made['id']}").json() == {"schema": found["schema"]}
    raw = client.get(f"/subjects/{subject}/versions/1/schema").text
    assert raw == client.get(f"/schemas/ids/{made['id']}/schema").text == found["schema"]
    looked_up = client.post(f"/subjects/{subject}", json={"schema": record()}).json()
    assert looked_up == found
    assert client.get(f"/schemas/ids/{made['id']}/subjects").json() == [subject]
    assert client.get("/schemas/types").json() == ["JSON", "PROTOBUF", "AVRO"]
    assert client.get("/contexts").json() == ["."]
    listed = client.get("/schemas", params={"subjectPrefix": subject}).json()
    assert listed == [found]
    assert client.get("/subjects", params={"subjectPrefix": subject}).json() == [subject]
    assert client.get(f"/schemas/guids/{made['guid']}/ids").json() == [
        {"context": ".", "id": made["id"]}
    ]


def test_lists_come_in_pages(client, subject):
    for number in range(3):
        client.post(f"/subjects/{subject}-{number}/versions", json={"schema": '"int"'})
    page = {"subjectPrefix": f"{subject}-", "offset": 1, "limit": 1}
    assert client.get("/subjects", params=page).json() == [f"{subject}-1"]
    assert client.get("/subjects", params={"offset": "x"}).status_code == 400


def test_compatibility_says_why(client, subject, record):
    client.post(f"/subjects/{subject}/versions", json={"schema": record()})
    path = f"/compatibility/subjects/{subject}/versions"
    other = record('{"name": "a", "type": "int"}', '{"name": "c", "type": "int"}')
    assert client.post(f"{path}/latest", json={"schema": other}).json() == {"is_compatible": False}
    verbose = client.post(path, params={"verbose": "true"}, json={"schema": other}).json()
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in verbose["messages"][0]
    assert refused(client.post(f"{path}/9", json={"schema": other})) == (404, 40402)
    assert refused(client.post(path, json={"schema": "{"})) == (422, 42201)
    broken = client.post(path, params={"verbose": "true"}, json={"schema": "{"}).json()
    assert broken["is_compatible"] is False
    assert "no JSON" in broken["messages"][0]
    nowhere = "/compatibility/subjects/nowhere/versions/latest"
    assert client.post(nowhere, json={"schema": other}).json() == {"is_compatible": True}


def test_a_protobuf_schema_is_text_or_serialised(client, subject):
    text = 'syntax = "proto3"; message A { int32 a = 1; }'
    body = {"schema": text, "schemaType": "PROTOBUF"}
    schema_id = client.post(f"/subjects/{subject}/versions", json=body).json()["id"]
    assert "message A {" in client.get(f"/schemas/ids/{schema_id}").json()["schema"]
    serialised = client.get(f"/schemas/ids/{schema_id}", params={"format": "serialized"}).json()
    body["schema"] = serialised["schema"]
    assert client.post(f"/subjects/{subject}/versions", json=body).json()["id"] == schema_id
    other = client.get(f"/schemas/ids/{schema_id}", params={"format": "xml"})
    assert refused(other) == (422, 42201)


def test_a_subject_may_have_any_signs(client, subject):
    name = f"{subject}/a b/ü%.proto"
    path = f"/subjects/{quote(name, safe='')}"
    assert client.post(f"{path}/versions", json={"schema": '"int"'}).status_code == 200
    assert name in client.get("/subjects").json()
    assert client.get(f"{path}/versions/1").json()["subject"] == name
    assert client.delete(path).json() == [1]


BODIES = [b"", b"{", b"[]", b"3", b'"x"', b"null", b"\xff", b"{}", b'{"schema": null}',
          b'{"schema": 3}', b'{"schema": "\\"int\\"", "references": 3}',
          b'{"schema": "\\"int\\"", "references": [{"name": 3}]}',
          b'{"schema": "\\"int\\"", "references": [{"name": "a", "subject":"b","version":1.5}]}',
          b'{"schema": "\\"int\\"", "id": "x"}', b'{"schema": "\\"int\\"", "version": 1e9}',
          b'{"schema": "\\"int\\"", "metadata": 3}', b'{"schema": "\\"int\\"", "schemaType": []}',
          b"[" * 100_000, b'{"a":' * 100_000]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_none_is_refused(client, subject, body):
    for method, path in (
        ("POST", f"/subjects/{subject}/versions"),
        ("POST", f"/subjects/{subject}"),
        ("POST", f"/compatibility/subjects/{subject}/versions"),
        ("PUT", f"/config/{subject}"),
        ("PUT", f"/mode/{subject}"),
    ):
        answer = client.request(method, path, content=body)
        if "config" in path and body in (b"{}", b'{"schema": null}'):
            assert answer.status_code == 200, "nothing is set"
            continue
        if "compatibility" in path and (b'"id"' in body or b'"version": 1e9' in body):
            continue  # only registering has them
        status, code = refused(answer)
        assert status in (400, 404, 422), answer.text
        assert code in (400, 40401, 42201, 42204, 42205), answer.text


def test_a_body_that_is_too_long_is_not_read(client, subject):
    body = b'{"schema": "' + b"x" * MAX_BODY_BYTES + b'"}'
    answer = client.post(f"/subjects/{subject}/versions", content=body)
    assert answer.status_code == 413
    large = json.dumps({"type": "record", "name": "L", "fields": [], "doc": "x" * 950_000})
    answer = client.post(f"/subjects/{subject}/versions", json={"schema": large})
    assert refused(answer) == (422, 42209)


@settings(
    max_examples=count(60, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    st.lists(
        st.sampled_from(
            ["subjects", "schemas", "ids", "guids", "types", "versions", "latest", "config",
             "mode", "compatibility", "contexts", "schema", "referencedby", "1", "0", "-1", "x",
             "%2F", "%00", "..", ":.:", ":.c:s", "a" * 2000, "%FF", ""]
        ),
        min_size=1, max_size=6,
    ),
    st.one_of(st.binary(max_size=30), st.sampled_from([b'{"schema": "\\"int\\""}', b"{}"])),
)  # fmt: skip
def test_no_address_and_no_body_makes_it_fail(client, method, parts, body):
    answer = client.request(method, f"{client.base_url}/" + "/".join(parts), content=body)
    assert answer.status_code < 500, answer.text


# Rights


@pytest.fixture(scope="module")
def rights(secured):
    """`carol` may read schemas."""
    secured.carol = ("carol", "singer")
    add_user(secured.broker, *secured.carol)
    with secured.client() as client:
        client.get("/subjects", auth=secured.alice)  # creates the topic
    allowed = AclBinding(
        ResourceType.TOPIC, "_schemas", ResourcePatternType.LITERAL, "User:carol", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in secured.admin.create_acls([allowed]).values():
        future.result(TIMEOUT_S)
    return secured


def test_users_need_the_right_to_read_or_write_the_topic(rights):
    with rights.client() as client:
        assert client.get("/subjects").status_code == 401
        made = client.post("/subjects/s/versions", json={"schema": '"int"'}, auth=rights.alice)
        assert made.status_code == 200, made.text
        assert client.get("/subjects", auth=rights.carol).json() == ["s"]
        assert client.get("/schemas/ids/1", auth=rights.carol).status_code == 200
        for method, path in (
            ("POST", "/subjects/t/versions"),
            ("DELETE", "/subjects/s"),
            ("PUT", "/config"),
            ("PUT", "/mode/s"),
        ):
            answer = client.request(method, path, json={"schema": '"int"'}, auth=rights.carol)
            assert refused(answer) == (403, 403), (method, path)
        assert client.get("/subjects", auth=rights.alice).json() == ["s"]


def test_tokens_have_their_own_rights(rights):
    login = ClientSettings(username=rights.alice[0], password=Secret(rights.alice[1]))
    token, text = tokens.new_token("test", ["_schemas"], ["read"], None)
    tokens.store(rights.broker.bootstrap, login, token)
    with rights.client(token=text) as client:
        assert client.get("/subjects").status_code == 200
        answer = client.post("/subjects/t/versions", json={"schema": '"int"'})
        assert refused(answer) == (403, 403)
