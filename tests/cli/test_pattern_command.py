"""`headwater pattern add | list | show | test | drop`, against a real broker."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from support.shared_broker import shared_broker

from headwater.cli import main
from headwater.client.topics import NewTopic, ensure_topics
from headwater.settings import ClientSettings

UNPAID = (
    "unpaid", "ordered other*? paid", "--define", "ordered=what = 'ordered'",
    "--define", "paid = what = 'paid'", "--measure", "ordered_at=ordered.at",
    "--measure", "rows=count(*)", "--within", "1 hour", "--timed-out",
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("pattern-command")) as address:
        yield address


@pytest.fixture
def run(broker, capsys):
    def run_here(*arguments):
        code = main.run(["pattern", *arguments, "-b", broker])
        said = capsys.readouterr()
        return code, said.out.strip(), said.err.strip()

    return run_here


def test_patterns_are_added_listed_replaced_and_dropped(run):
    of = ("--patterns", "mine")
    assert run("list", *of)[2].startswith("no patterns in mine")
    code, _, said = run("add", *UNPAID, "--owner", "ann", "--target", "topic:x", *of)
    assert (code, said) == (0, "pattern unpaid is stored")
    assert run("add", "rise", "A B", "--define", "B=price > A.price", *of)[0] == 0
    added = run("add", "rise", "A U", "--subset", "V=A, U", "--from", "start", *of)[2]
    assert "is replaced; open attempts of the former one end" in added
    assert "headwater pipeline rebuild" in added
    found = {one["id"]: one for one in json.loads(run("list", "--json", *of)[1])}
    assert found["rise"]["subset"] == {"V": ["A", "U"]}
    assert (found["rise"]["from"], found["rise"]["error"]) == ("start", "")
    unpaid = found["unpaid"]
    assert unpaid["define"] == {"ordered": "what = 'ordered'", "paid": "what = 'paid'"}
    assert (unpaid["within"], unpaid["timed_out"], unpaid["owner"]) == ("1 hour", True, "ann")
    shown = run("show", "unpaid", *of)[1]
    assert "topic:x" in shown
    assert "  ordered   what = 'ordered'" in shown
    assert "ordered other*? paid" in run("list", *of)[1]
    assert run("drop", "rise", *of)[0] == 0
    assert [one["id"] for one in json.loads(run("list", "--json", *of)[1])] == ["unpaid"]
    code, _, said = run("drop", "unpayd", *of)
    assert code == 1
    assert "did you mean unpaid?" in said


def test_what_others_have_written_is_listed_with_its_error(broker, run):
    ensure_topics(broker, ClientSettings(), [NewTopic("written", 1, {})])
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    for id_, fields in (("good", {"pattern": "A"}), ("bad", {"pattern": "A ("}), ("none", {})):
        value = json.dumps({"id": id_, **fields})
        producer.produce("written", value, key=json.dumps({"id": id_}))
    producer.produce("written", b"no JSON", key=b"x")
    producer.flush()
    found = json.loads(run("list", "--json", "--patterns", "written")[1])
    assert {one["id"]: one["error"] for one in found} == {
        "good": "",
        "bad": "pattern: a variable is missing",
        "none": "the pattern is empty",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "A (B | C"), "')' is missing line 1, column 9"),
        (("a", "A B+"), "can grow for ever"),
        (("a", "A", "--define", "B=true"), "define names B, which is no variable"),
        (("a", "A", "--define", "A=price >"), "is no expression of Spark's SQL"),
        (("a", "A B", "--define", "B=lower(A.x) = 'y'"), "between rows line 1, column 1"),
        (("a", "A", "--define", "A=price > 1 AND md5(x) = 'y'"), "have MD5(x) line 1, column 15"),
        (("a", "A", "--define", "A=price + 1"), "is neither true nor false"),
        (("a", "A", "--measure", "x=sha1(A.x)"), "does not have SHA(…) sha1(A.x)"),
        (("a", "A", "--within", "soon"), "is no duration"),
        (("a", "A", "--timed-out"), "without within"),
        (("a", "A", "--after-match", "SKIP"), "after_match='SKIP'"),
        (("a", "A", "--from", "yesterday"), "is no time"),
        (("a", "A", "--define", "A"), "--define 'A'"),
        (("a", "A", "--define", "A=true", "--define", "A=false"), "has A twice"),
        (("a b", "A"), "the id of a pattern"),
    ],
)
def test_mistakes_are_refused_with_their_place_and_nothing_is_stored(run, arguments, message):
    code, _, said = run("add", *arguments, "--patterns", "none")
    assert code == 2
    assert message in " ".join(said.split())
    assert run("list", "--patterns", "none")[2].startswith("no patterns")


def test_what_would_have_matched(broker, run):
    ensure_topics(broker, ClientSettings(), [NewTopic("shop", 2, {})])
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    now = datetime.now(UTC)
    rows = [
        ("A", "ordered", 120), ("B", "ordered", 50), ("B", "packed", 40), ("B", "paid", 30),
        ("C", "ordered", 20),
    ]  # fmt: skip
    for order, what, minutes in rows:
        at = now - timedelta(minutes=minutes)
        value = {"order_id": order, "what": what, "at": at.isoformat()}
        producer.produce("shop", json.dumps(value), partition=ord(order) % 2)
    after = {"order_id": "D", "what": "paid", "at": int(time.time() * 1000)}
    producer.produce("shop", json.dumps({"op": "c", "before": None, "after": after}))
    producer.produce("shop", json.dumps({"order_id": "E", "what": "ordered", "at": "soon"}))
    producer.produce("shop", b"\xff no JSON")
    producer.flush()
    assert run("add", *UNPAID)[0] == 0
    of = ("-t", "shop", "--key", "order_id", "--time", "at")
    found = json.loads(run("test", "unpaid", *of, "--json")[1])
    counts = [found[name] for name in ("rows", "unreadable", "without_time", "open")]
    assert counts == [6, 1, 1, 1]
    matches = [
        (match["key"]["order_id"], match["measures"]["rows"], match["timed_out"])
        for match in found["matches"]
    ]
    assert matches == [("A", 1, True), ("B", 3, False)]
    code, said, note = run("test", "unpaid", *of)
    assert code == 0
    assert "timed out" in said
    assert note == "2 matches in 6 rows; 1 key with an open attempt; 2 records left out"
    pattern = ("--pattern", "p", "--define", "p=what = 'paid' AND hour(at) >= 0")
    found = json.loads(run("test", *pattern, *of, "--json")[1])
    assert [match["key"] for match in found["matches"]] == [{"order_id": "B"}, {"order_id": "D"}]
    assert run("test", *of)[0] == 2
    assert "there is no topic nowhere" in run("test", "unpaid", *of, "-t", "nowhere")[2]
