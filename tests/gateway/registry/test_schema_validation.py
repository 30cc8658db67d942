"""Topics with headwater.schema.validation take records of their schema only."""

import json

import pytest
from support.gateway.serving import TIMEOUT_S

from headwater.schemas.wire_format import framed

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def register(client, subject, schema, kind="JSON"):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = {"schema": text, "schemaType": kind}
    answer = client.post(f"/subjects/{subject}/versions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


@pytest.fixture
def checked(new_topic):
    return new_topic(**{"headwater.schema.validation": "value"})


def test_json_of_the_topics_schema_is_taken_and_other_is_not(client, checked):
    register(client, f"{checked}-value", OBJECT)
    assert client.post(f"/topics/{checked}", json={"a": 1}).json()["offset"] == 0
    refused = client.post(f"/topics/{checked}", json={"a": "x"})
    assert refused.status_code == 400
    assert refused.json()["detail"] == (
        'the value is not of its schema: "x" is not of type "integer" at #/a'
    )
    lines = b'{"a": 1}\n{"b": 1}\n{"a": 2}\n'
    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.post(f"/topics/{checked}", content=lines, headers=headers)
    assert (answer.status_code, answer.json()["line"]) == (400, 2)
    skipping = client.post(f"/topics/{checked}?on_error=skip", content=lines, headers=headers)
    assert skipping.json()["written"] == 2
    assert skipping.json()["errors"][0]["line"] == 2


def test_values_with_an_id_have_to_have_one_of_the_subject_and_be_readable(client, checked):
    other = register(client, f"{checked}-other", '"long"', "AVRO")
    text = register(client, f"{checked}-value", '"string"', "AVRO")
    headers = {"Content-Type": "application/octet-stream"}

    def post(value):
        return client.post(f"/topics/{checked}", content=value, headers=headers)

    assert post(framed(text, b"\x04hi")).status_code == 200
    for value, reason in (
        (framed(other, b"\x02"), "is none of"),
        (framed(text, b"\x06hi"), "too early"),
        (b'"plain"', "AVRO has the id of its schema before it"),
    ):
        answer = post(value)
        assert answer.status_code == 400
        assert reason in answer.json()["detail"]


def test_a_topic_without_a_schema_takes_nothing(client, checked):
    answer = client.post(f"/topics/{checked}", json={"a": 1})
    assert answer.status_code == 400
    assert f"Subject '{checked}-value' not found" in answer.json()["detail"]


def test_keys_are_checked_where_it_is_asked_for(client, new_topic):
    topic = new_topic(**{"headwater.schema.validation": "key"})
    register(client, f"{topic}-key", {"type": "integer"})
    assert client.post(f"/topics/{topic}?key=7", json="anything").status_code == 200
    refused = client.post(f"/topics/{topic}?key=x", json="anything")
    assert "the key is not of its schema" in refused.json()["detail"]


def test_other_topics_take_anything(client, topic):
    assert client.post(f"/topics/{topic}", json={"a": "x"}).status_code == 200


def test_a_setting_that_is_none_is_refused(admin):
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    topic = NewTopic("never", 1, config={"headwater.schema.validation": "sometimes"})
    with pytest.raises(KafkaException):
        admin.create_topics([topic])["never"].result(TIMEOUT_S)


def test_records_go_out_decoded(client, topic):
    """By the schema that the id before the value stands for, from the log and as they come."""
    schema_id = register(client, f"{topic}-value", '"string"', "AVRO")
    headers = {"Content-Type": "application/octet-stream"}
    for value in (framed(schema_id, b"\x04hi"), framed(1_000_000, b"\xff")):
        assert client.post(f"/topics/{topic}", content=value, headers=headers).status_code == 200
    asked = {"Accept": "application/x-ndjson"}
    lines = client.get(f"/topics/{topic}?from=start&until=end", headers=asked).text.splitlines()
    values = [json.loads(line)["value"] for line in lines]
    assert values == ["hi", {"base64": "AAAPQkD/"}]
    raw = client.get(f"/topics/{topic}?from=start&until=end&decode=none", headers=asked).text
    assert json.loads(raw.splitlines()[0])["value"] != "hi"


def test_a_compacted_topic_is_a_table_of_decoded_values(client, new_topic):
    topic = new_topic(cleanup_policy="compact")
    schema_id = register(client, f"{topic}-value", '"string"', "AVRO")
    headers = {"Content-Type": "application/octet-stream"}
    value = framed(schema_id, b"\x04hi")
    posted = client.post(f"/topics/{topic}?key=a", content=value, headers=headers)
    assert posted.status_code == 200
    assert client.get(f"/tables/{topic}/a").json()["value"] == "hi"
