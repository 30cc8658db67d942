"""`headwater search add | list | show | test | drop`, against a real broker."""

import json
import time

import pytest
from confluent_kafka import Producer
from support.shared_broker import shared_broker

from headwater.cli import main
from headwater.client.topics import NewTopic, ensure_topics
from headwater.settings import ClientSettings


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("search-command")) as address:
        yield address


@pytest.fixture
def run(broker, capsys):
    def run_here(*arguments):
        code = main.run(["search", *arguments, "-b", broker])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run_here


def test_searches_are_added_listed_replaced_and_dropped(run):
    of = ("--searches", "mine")
    assert run("list", *of)[2].startswith("no searches in mine")
    options = ("--owner", "ann", "--language", "en", "--limit", "5", "--target", "topic:x")
    code, _, said = run("add", "storms", "storm AND NOT sports", *options, *of)
    assert code == 0
    assert "is stored" in said
    assert run("add", "rain", "rain", *of)[0] == 0
    assert "is replaced" in run("add", "rain", "rain OR snow", *of)[2]
    found = json.loads(run("list", "--json", *of)[1])
    assert [(one["id"], one["query"], one["limit"]) for one in found] == [
        ("rain", "rain OR snow", None),
        ("storms", "storm AND NOT sports", 5),
    ]
    assert "topic:x" in run("show", "storms", *of)[1]
    assert "5/h" in run("list", *of)[1]
    assert run("drop", "rain", *of)[0] == 0
    assert [one["id"] for one in json.loads(run("list", "--json", *of)[1])] == ["storms"]
    code, _, said = run("drop", "stroms", *of)
    assert code == 1
    assert "did you mean storms?" in said


def test_searches_of_other_producers_are_replaced_and_dropped_under_their_own_keys(broker, run):
    ensure_topics(broker, ClientSettings(), [NewTopic("others", 3, {})])
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    for key in (b'{"id": "rain"}', b'{ "id":"rain" }'):
        producer.produce("others", b'{"id": "rain", "query": "rain"}', key)
    producer.produce("others", b'{"query": "no id"}', b'{"id": "none"}')
    producer.flush()
    of = ("--searches", "others")
    assert "is replaced" in run("add", "rain", "rain OR snow", *of)[2]
    found = json.loads(run("list", "--json", *of)[1])
    assert [(one["id"], one["query"]) for one in found] == [("rain", "rain OR snow")]
    assert run("drop", "rain", *of)[0] == 0
    assert run("list", *of)[2].startswith("no searches")


def test_mistakes_are_refused_with_their_place_and_nothing_is_stored(run):
    of = ("--searches", "none")
    for arguments, message in (
        (("add", "a", "storm AND (rain OR"), "line 1, column 19: the query ends"),
        (("add", "a", "NOT storm"), "would match every document"),
        (("add", "a", "storm", "--language", "germann"), "did you mean german?"),
        (("add", "a b", "storm"), "the id of a search"),
        (("test", "-t", "x", "--text", "title"), "by its ID, or a text by --query"),
    ):
        code, _, said = run(*arguments, *of)
        assert code == 2, arguments
        assert message in said
    assert run("list", *of)[2].startswith("no searches")


def test_what_would_have_matched(broker, run):
    ensure_topics(broker, ClientSettings(), [NewTopic("articles", 2, {})])
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    hour_ms = 3_600_000
    now_ms = int(time.time() * 1000)
    values = [
        (-2 * hour_ms, {"title": "An old storm"}),
        (-3000, {"title": "Storms ahead", "n": 5}),
        (-2000, {"op": "u", "before": None, "after": {"title": "A storm, captured"}}),
        (-1000, {"title": "Quiet"}),
    ]
    for number, (ago_ms, value) in enumerate(values):
        producer.produce(
            "articles", json.dumps(value), partition=number % 2, timestamp=now_ms + ago_ms
        )
    producer.produce("articles", b"\xff no JSON", timestamp=now_ms)
    producer.produce("articles", b"[1]", timestamp=now_ms)
    producer.flush()
    assert run("add", "storms", "storm", "--language", "english")[0] == 0
    of = ("-t", "articles", "--text", "title")
    found = json.loads(run("test", "storms", *of, "--json")[1])
    assert (found["documents"], found["unreadable"]) == (3, 2)
    assert [match["highlights"] for match in found["matches"]] == [
        ["<em>Storms</em> ahead"],
        ["A <em>storm</em>, captured"],
    ]
    assert run("add", "plain", "storm")[0] == 0
    for language, count in ((), 1), (("--language", "en"), 2):
        found = json.loads(run("test", "plain", *of, *language, "--json")[1])
        assert len(found["matches"]) == count
    found = json.loads(run("test", "--query", "storm", *of, "--since", "1d", "--json")[1])
    assert [match["document"]["title"] for match in found["matches"]] == [
        "An old storm",
        "A storm, captured",
    ]
    found = json.loads(run("test", "storms", *of, "-n", "4", "--since", "1d", "--json")[1])
    assert len(found["matches"]) == 1  # of the last four records
    code, said, note = run("test", "storms", *of)
    assert code == 0
    assert "[Storms] ahead" in said
    assert "2 of 3 documents would match; 2 records left out" in note
    code, _, said = run("test", "storms", "-t", "nowhere", "--text", "title")
    assert code == 1
    assert "there is no topic nowhere" in said
