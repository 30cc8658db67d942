"""POST /topics/T: what is taken, what is refused, and what the answer says."""

import json
import secrets
import subprocess
from http.client import HTTPConnection

import pytest
from confluent_kafka.admin import NewTopic
from support.gateway.serving import TIMEOUT_S, serving
from support.gateway.topics import read_all

NDJSON = {"Content-Type": "application/x-ndjson"}
RECORDS = {"Content-Type": "application/vnd.headwater.records+json"}
CSV = {"Content-Type": "text/csv"}


@pytest.fixture
def written(gateway_broker, topic):
    """The records of the topic: (key, value, headers)."""

    def read(name=topic):
        return [
            (record.key, record.value, list(record.headers))
            for record in read_all(gateway_broker, name)
        ]

    return read


@pytest.fixture(scope="module")
def empty_topic(admin):
    """Nothing is ever written to it."""
    name = "gateway-empty"
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    return name


def test_one_record(client, topic, written):
    answer = client.post(f"/topics/{topic}?key=ada&header=source:shop", json={"total": 12})
    assert answer.status_code == 200
    assert answer.json() == {"topic": topic, "partition": 0, "offset": 0}
    assert answer.headers["headwater-position"] == f"{topic}:0:0"
    again = client.post(
        f"/topics/{topic}",
        content='{ "total": 13 }',
        headers={
            "Content-Type": "application/json; charset=utf-8",
            "Headwater-Key": "grün".encode(),
            "Headwater-Header": "source: web",
        },
    )
    assert again.json()["offset"] == 1
    assert written() == [
        (b"ada", b'{"total":12}', [("source", b"shop")]),
        ("grün".encode(), b'{ "total": 13 }', [("source", b"web")]),  # as it was sent
    ]


def test_bytes_that_are_no_json(client, topic, written):
    for kind in ("text/plain", "application/octet-stream"):
        answer = client.post(
            f"/topics/{topic}", content=b"\xff\x00{", headers={"Content-Type": kind}
        )
        assert answer.status_code == 200
    assert [value for _, value, _ in written()] == [b"\xff\x00{"] * 2


def test_a_batch_of_records(client, new_topic, written):
    topic = new_topic(partitions=3)
    records = [
        {"key": "a", "value": {"n": 1}, "headers": {"h": "1"}, "partition": 2, "timestamp": 1000},
        {"key": {"base64": "/w=="}, "value": "text", "partition": 0},
        {"key": "a", "value": None, "partition": 2},
    ]
    answer = client.post(f"/topics/{topic}", json={"records": records}, headers=RECORDS).json()
    assert answer == {
        "topic": topic,
        "written": 3,
        "partitions": [
            {"partition": 0, "records": 1, "first": 0, "last": 0},
            {"partition": 2, "records": 2, "first": 0, "last": 1},
        ],
        "records": [
            {"partition": 2, "offset": 0},
            {"partition": 0, "offset": 0},
            {"partition": 2, "offset": 1},
        ],
    }
    assert sorted(written(topic), key=str) == sorted(
        [(b"a", b'{"n":1}', [("h", b"1")]), (b"\xff", b"text", []), (b"a", None, [])], key=str
    )


def test_lines(client, topic, written):
    lines = "".join(f'{{"id":{number}}}\r\n\n' for number in range(100)) + '{"id":100}'
    answer = client.post(f"/topics/{topic}?key_field=id", content=lines, headers=NDJSON)
    assert answer.json() == {
        "topic": topic,
        "written": 101,
        "partitions": [{"partition": 0, "records": 101, "first": 0, "last": 100}],
    }
    assert written() == [(b"%d" % n, b'{"id":%d}' % n, []) for n in range(101)]


def test_lines_that_are_records(client, topic, written):
    kind = {"Content-Type": "application/vnd.headwater.records+ndjson"}
    lines = '{"key":"a","value":1}\n{"key":"b","value":"x","headers":[["h",null]]}\n'
    assert client.post(f"/topics/{topic}", content=lines, headers=kind).status_code == 200
    assert written() == [(b"a", b"1", []), (b"b", b"x", [("h", None)])]


def test_a_stream_of_lines(client, topic, written):
    """Without a length: written while it comes."""

    def lines():
        for number in range(2000):
            yield b'{"n":%d}\n{"n"' % number
            yield b":%d}\n" % -number

    answer = client.post(f"/topics/{topic}", content=lines(), headers=NDJSON)
    assert answer.json()["written"] == 4000
    values = [json.loads(value)["n"] for _, value, _ in written()]
    assert values == [sign * number for number in range(2000) for sign in (1, -1)]


def test_csv(client, topic, written):
    text = '\ufeffid,name\r\n1,"Ada, ""the"" first"\r\n2,"two\nlines"\r\n\r\n3,\r\n'
    answer = client.post(f"/topics/{topic}?key_field=id", content=text.encode(), headers=CSV)
    assert answer.json()["written"] == 3
    assert [(key, json.loads(value)) for key, value, _ in written()] == [
        (b"1", {"id": "1", "name": 'Ada, "the" first'}),
        (b"2", {"id": "2", "name": "two\nlines"}),
        (b"3", {"id": "3", "name": ""}),
    ]


def thousand(bad=b"{"):
    return b"\n".join(bad if number == 3 else b'{"n":%d}' % number for number in range(1, 1001))


def test_a_bad_line_refuses_all_and_says_which(client, topic, written):
    answer = client.post(f"/topics/{topic}", content=thousand(), headers=NDJSON)
    assert answer.status_code == 400
    assert (answer.json()["line"], answer.json()["written"]) == (3, 0)
    assert "not JSON" in answer.json()["detail"]
    assert written() == []


def test_a_bad_line_is_left_out_where_that_is_asked_for(client, topic, written):
    path = f"/topics/{topic}?on_error=skip"
    answer = client.post(path, content=thousand(b"\xff"), headers=NDJSON).json()
    assert (answer["written"], answer["refused"]) == (999, 1)
    assert [error["line"] for error in answer["errors"]] == [3]
    assert len(written()) == 999


def test_a_bad_line_in_a_stream(client, topic, written):
    """What is in front of it may be written: a part of the lines from the first one on."""

    def lines():
        for _ in range(500):
            yield b"1\n" * 100
        yield b"{\n"
        yield b"2\n" * 100

    answer = client.post(f"/topics/{topic}", content=lines(), headers=NDJSON)
    assert answer.status_code == 400
    assert answer.json()["line"] == 50_001
    found = written()
    assert answer.json()["written"] == len(found) <= 50_000
    assert {value for _, value, _ in found} <= {b"1"}


@pytest.mark.parametrize(
    ("path", "content", "kind", "status", "words"),
    [
        ("", "{", "application/json", 400, "not JSON"),
        ("", b"\xff", "application/json", 400, "not JSON"),
        ("", b'"\xed\xa0\x80"', "application/json", 400, "not JSON"),
        ("", "[" * 100_000, "application/json", 400, "not JSON"),
        ("", "{}", "application/x-www-form-urlencoded", 415, "curl --json"),
        ("", "{}", "", 415, "content type"),
        ("", "[]", RECORDS["Content-Type"], 400, "records"),
        ("", '{"records":1}', RECORDS["Content-Type"], 400, "records"),
        ("", '{"records":[{"valeu":1}]}', RECORDS["Content-Type"], 400, "did you mean"),
        ("", '{"records":[{"value":1,"partition":9}]}', RECORDS["Content-Type"], 400, "partition"),
        ("", '{"records":[{"key":{"base64":"?"}}]}', RECORDS["Content-Type"], 400, "base64"),
        ("?partition=7", "{}", "application/json", 400, "no partition 7"),
        ("?partition=-1", "{}", "application/json", 400, "whole number"),
        ("?timestamp=yesterday", "{}", "application/json", 400, "whole number"),
        ("?kei=1", "{}", "application/json", 400, "did you mean key"),
        ("?key=a&key_field=b", "{}", "application/json", 400, "exclude"),
        ("?key_field=id", "{}", "application/json", 400, "no field id"),
        ("?key_field=id", "[1]", "application/json", 400, "no field id"),
        ("?header=x", "{}", "application/json", 400, "name:value"),
        ("?on_error=maybe", "{}", "application/json", 400, "refuse or skip"),
        ("", 'a,b\n1,"2', "text/csv", 400, "not closed"),
        ("", "a,b\n1,2,3", "text/csv", 400, "3 fields"),
        ("", "a,a\n1,2", "text/csv", 400, "distinct"),
        ("", b"a,b\n\xff,2", "text/csv", 400, "UTF-8"),
        ("", 'a,b\n1"2"3,"4"5', "text/csv", 400, "not CSV"),
    ],
)
def test_what_is_refused(client, empty_topic, written, path, content, kind, status, words):
    headers = {"Content-Type": kind} if kind else {}
    answer = client.post(f"/topics/{empty_topic}{path}", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert written(empty_topic) == []


def test_topics_that_are_not_there(client, admin):
    answer = client.post("/topics/never-created", json={})
    assert (answer.status_code, answer.json()["error"]) == (404, "there is no topic never-created")
    assert "never-created" not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert client.post("/topics/__consumer_offsets", json={}).status_code == 403
    assert client.post("/topics/a%2Fb", json={}).status_code == 404
    assert client.post("/topics/a b", json={}).status_code == 400


def test_a_compressed_body_is_refused(client, topic):
    answer = client.post(f"/topics/{topic}", json={}, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415


def test_bodies_and_lines_that_are_too_long(tmp_path, gateway_broker, topic, written):
    with (
        serving(
            tmp_path, broker__bootstrap=gateway_broker, gateway__max_request_bytes="10kB"
        ) as served,
        served.client() as client,
    ):
        large = b'"' + b"x" * 10_000 + b'"'
        kind = {"Content-Type": "application/json"}
        assert client.post(f"/topics/{topic}", content=large, headers=kind).status_code == 413
        unsized = client.post(f"/topics/{topic}", content=iter([large]), headers=kind)
        assert unsized.status_code == 413
        assert written() == []
        lines = client.post(
            f"/topics/{topic}", content=iter([b"1\n2\n", large * 2]), headers=NDJSON
        )
        assert (lines.status_code, lines.json()["written"]) == (413, 2)
        small = client.post(f"/topics/{topic}", content=b"1\n" * 8_000, headers=NDJSON)
        assert small.json()["written"] == 8_000  # of any length


def test_a_record_that_the_topic_does_not_take(client, new_topic):
    topic = new_topic(max_message_bytes="1000")
    answer = client.post(f"/topics/{topic}", json=secrets.token_hex(5000))
    assert answer.status_code == 413, answer.text
    assert "max.message.bytes" in answer.json()["hint"]


def test_no_room_for_more_bodies(tmp_path, gateway_broker, topic):
    with (
        serving(
            tmp_path, broker__bootstrap=gateway_broker, gateway__max_buffered_bytes="50kB"
        ) as served,
        served.client() as client,
    ):
        answer = client.post(f"/topics/{topic}", json="x" * 200_000)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert served.gateway.budget.used_bytes == 0
        lines = client.post(f"/topics/{topic}", content=iter([b"1\n" * 9999] * 4), headers=NDJSON)
        assert lines.json()["written"] == 9999 * 4  # it waits for room
        assert served.gateway.budget.used_bytes == 0


def test_rights_of_users(secured):
    with secured.client(user=secured.bob) as client:
        assert client.post("/topics/inbox", json=1).status_code == 200
        denied = client.post("/topics/closed", json=1)
        missing = client.post("/topics/missing", json=1)
        assert denied.status_code == missing.status_code == 403
        assert denied.text.replace("closed", "missing") == missing.text
        assert client.post("/topics/open", json=1).status_code == 403
    with secured.client(user=secured.alice) as client:
        assert client.post("/topics/closed", json=1).status_code == 200
        assert client.post("/topics/missing", json=1).status_code == 404


def test_curl_sends_a_file(gateway, topic, written, tmp_path):
    (tmp_path / "orders.ndjson").write_bytes(b'{"n":1}\n{"n":2}\n')
    command = [
        "curl", "-s", "-H", "Content-Type: application/x-ndjson", "--data-binary",
        f"@{tmp_path / 'orders.ndjson'}", f"{gateway.url}/topics/{topic}",
    ]  # fmt: skip
    answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert answer["written"] == 2
    one = ["curl", "-s", "--json", '{"n":3}', f"{gateway.url}/topics/{topic}?key=c"]
    assert json.loads(subprocess.run(one, capture_output=True, check=True).stdout)["offset"] == 2
    assert [value for _, value, _ in written()] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


def test_a_refusal_reaches_a_client_that_still_sends(gateway, topic, tmp_path):
    """The answer comes while curl has megabytes left to send."""
    (tmp_path / "lines").write_bytes(b"{\n" + b"1\n" * 2_000_000)
    command = [
        "curl", "-sS", "-X", "POST", "-H", "Content-Type: application/x-ndjson", "-H", "Expect:",
        "-H", "Transfer-Encoding: chunked", "-T", str(tmp_path / "lines"),
        f"{gateway.url}/topics/{topic}",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(ended.stdout)["line"] == 1


def test_a_stream_reports_its_progress_while_it_is_sent(gateway, topic):
    """Both ways at once: a line of the answer comes before the body has ended."""
    connection = HTTPConnection(*gateway.address.split(":"), timeout=TIMEOUT_S)
    connection.putrequest("POST", f"/topics/{topic}?progress_s=0")
    connection.putheader("Content-Type", "application/x-ndjson")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    sock = connection.sock

    def send(lines):
        sock.sendall(b"%x\r\n%b\r\n" % (len(lines), lines))

    send(b"1\n2\n")
    answer = connection.getresponse()
    assert answer.status == 200
    reports = [json.loads(answer.readline())]
    while reports[-1]["written"] < 2:
        send(b"3\n")
        reports.append(json.loads(answer.readline()))
    send(b"no JSON\n")
    sock.sendall(b"0\r\n\r\n")
    *more, last = [json.loads(line) for line in answer.read().splitlines()]
    sent = 2 + len(reports) - 1
    written = [report["written"] for report in reports + more]
    assert written == sorted(written)
    assert (last["line"], last["written"]) == (sent + 1, sent)
    assert last["error"] == f"line {sent + 1} cannot be taken"
    connection.close()


def test_the_last_line_of_a_progress_is_the_answer(client, topic):
    def lines():
        for number in range(5000):
            yield b"%d\n" % number

    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.post(f"/topics/{topic}?progress_s=0.001", content=lines(), headers=headers)
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert found[-1]["written"] == 5000
    assert found[-1]["partitions"] == [{"partition": 0, "records": 5000, "first": 0, "last": 4999}]
    assert client.post(f"/topics/{topic}?progress_s=x", json=1).status_code == 400
