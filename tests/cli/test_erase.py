"""`headwater erase`, `headwater verify --erased` and `headwater subject`."""

import json
import time
from pathlib import Path

import pytest
from tiers import kills, long

from .conftest import unique

TOML = """
[broker]
data_dir = "data"
[subject.customer]
topics = {{ "{topic}" = {{ id = "id", personal = ["name", "email"] }} }}
"""


@pytest.fixture
def topic(setup, tmp_path):
    name = setup.topic("customers")
    (tmp_path / "headwater.toml").write_text(TOML.format(topic=name))
    return name


def produce(cli, topic, *values):
    cli("produce", topic, stdin="".join(json.dumps(value) + "\n" for value in values))


def consumed(cli, topic, *options):
    lines = cli("consume", topic, "-o", "start", "-e", *options).splitlines()
    return [json.loads(line or "null") for line in lines]  # an erased record has no value


def plain(cli, topic, *values):
    """Records from before the fields were marked."""
    other = cli.cwd / "plain.toml"
    other.write_text("")
    lines = "".join(json.dumps(value) + "\n" for value in values)
    cli("produce", topic, "--config", other, stdin=lines)


ANN = {"id": 42, "name": "Ann Zyx", "email": "ann@zyx.example", "since": 2020}
BOB = {"id": 43, "name": "Bob Qrs", "email": None, "since": 2021}


def test_produced_records_are_encrypted_and_read_back(cli, topic):
    produce(cli, topic, ANN, BOB)
    ann, bob = consumed(cli, topic)
    assert ann["id"] == 42
    assert ann["since"] == 2020
    assert ann["name"].startswith("hw1:")
    assert ann["email"].startswith("hw1:")
    assert bob["email"] is None
    assert consumed(cli, topic, "--decrypt") == [ANN, BOB]


def test_an_erased_subject_cannot_be_read_and_the_others_can(cli, topic, tmp_path):
    produce(cli, topic, ANN, BOB, {**ANN, "name": "Ann Other"})
    seen = cli.json("erase", "--subject", "customer:42", "--dry-run")
    assert seen["encrypted_records"] == {topic: 2}
    assert seen["plain_records"] == {}
    assert consumed(cli, topic, "--decrypt")[0] == ANN  # a preview changes nothing

    receipt = cli.json("erase", "--subject", "customer:42", "--yes")
    assert receipt["keys_dropped"] == seen["keys"]
    assert receipt["made_unreadable"] == {topic: 2}
    assert receipt["incomplete"] == []
    assert receipt["subject"].keys() == {"kind", "hash"}
    first, bob, last = consumed(cli, topic, "--decrypt")
    assert first == {**ANN, "name": "(erased)", "email": "(erased)"}
    assert last == first
    assert bob == BOB

    verdict = cli.json("verify", "--erased", "customer:42", "--text", "Zyx")
    assert verdict["is_erased"]
    assert verdict["searched"]["records"] == 3
    assert cli.json("verify", "--erased", "customer:43", code=3)["left"][-1].endswith(
        "never erased"
    )
    produce(cli, topic, ANN)  # whatever still comes of it is not stored
    assert consumed(cli, topic)[3]["name"] == "hw1:erased"
    assert cli.json("verify", "--erased", "customer:42")["is_erased"]


def test_a_second_erasure_changes_nothing_and_gives_the_same_receipt(cli, topic, tmp_path):
    produce(cli, topic, ANN)
    first = cli.json("erase", "--subject", "customer:42", "--yes")
    assert cli.json("erase", "--subject", "customer:42", "--yes") == first
    said = cli("erase", "--subject", "customer:42", "--receipt", "again.json")
    assert "was erased at" in said
    assert json.loads((tmp_path / "again.json").read_text()) == first


def test_a_receipt_is_checked_and_one_that_was_changed_refused(cli, topic, tmp_path):
    produce(cli, topic, ANN, BOB)
    said = cli("erase", "--subject", "customer:42", "--yes", "--receipt", "r.json")
    assert "erased" in said
    assert "genuine" in cli("verify", "--receipt", "r.json")
    assert "genuine" in cli("verify", "--receipt", "r.json", "--erased", "customer:42")
    error = cli.error("verify", "--receipt", "r.json", "--erased", "customer:43", code=3)
    assert "another subject" in error
    receipt = json.loads((tmp_path / "r.json").read_text())
    for name, value in (("keys_dropped", []), ("ended", "2020-01-01"), ("extra", 1)):
        (tmp_path / "forged.json").write_text(json.dumps({**receipt, name: value}))
        assert "was changed" in cli.error("verify", "--receipt", "forged.json", code=3)
    receipt["signature"]["public_key"] = "A" * 43 + "="
    (tmp_path / "forged.json").write_text(json.dumps(receipt))
    assert "not of this key store" in cli.error("verify", "--receipt", "forged.json", code=3)
    (tmp_path / "forged.json").write_text("no JSON")
    assert "no receipt" in cli.error("verify", "--receipt", "forged.json", code=3)


def test_plain_records_are_erased_though_nothing_was_ever_encrypted(cli, topic):
    assert "no key store yet" in cli.error("subject", "list")
    plain(cli, topic, ANN, BOB)
    receipt = cli.json("erase", "--subject", "customer:42", "--yes")
    assert receipt["records_erased"] == {f"{topic}-0": 1}
    assert receipt["keys_dropped"] == []
    assert receipt["incomplete"] == []
    assert [value["id"] for value in consumed(cli, topic) if value] == [43]
    assert cli.json("verify", "--erased", "customer:42")["is_erased"]


@long
def test_plain_records_are_found_and_named(cli, topic):
    plain(cli, topic, ANN, BOB)
    produce(cli, topic, ANN)
    seen = cli.json("erase", "--subject", "customer:42", "--dry-run")
    assert seen["plain_records"] == {f"{topic}-0": 1}
    assert seen["plain_fields"] == {topic: ["email", "name"]}
    verdict = cli.json("verify", "--erased", "customer:42", code=3)
    assert any("1 records in plain text, the first at offset 0" in line for line in verdict["left"])


def test_what_is_unknown_or_misspelt(cli, topic):
    produce(cli, topic, BOB)
    error = cli.error("erase", "--subject", "custmer:42", "--yes", code=2)
    assert "there is no kind of subject custmer" in error
    assert "did you mean customer:42?" in error
    assert "KIND:ID" in cli.error("erase", "--subject", "42", "--yes", code=2)
    said = cli("erase", "--subject", "customer:42", "--yes")
    assert "nothing is stored of customer:42: 1 records were searched" in said
    assert not list(cli.cwd.glob("erasure-*"))
    produce(cli, topic, ANN)  # a mistyped id does not shut out who has it later
    assert consumed(cli, topic, "--decrypt")[1] == ANN


def test_it_asks_before_it_erases(cli, topic):
    produce(cli, topic, ANN)
    assert "--yes" in cli.error("erase", "--subject", "customer:42", code=2)
    assert consumed(cli, topic, "--decrypt") == [ANN]


@long
def test_a_field_that_no_record_has_is_reported(cli, topic):
    text = (cli.cwd / "headwater.toml").read_text()
    produce(cli, topic, {"id": 42, "name": "Ann"})
    (cli.cwd / "headwater.toml").write_text(text.replace('"email"', '"e_mail"'))
    seen = cli.json("erase", "--subject", "customer:42", "--dry-run")
    assert seen["unused_fields"] == {topic: ["e_mail"]}


def test_records_that_cannot_be_encrypted_are_not_written(cli, topic):
    for line in ("no JSON", "[1]", '{"name": "Ann"}', '{"id": null, "name": "Ann"}'):
        error = cli.error("produce", topic, stdin=line + "\n")
        assert "line 1 could not be written" in error
    (cli.cwd / "lines").write_text('{"name": "Ann"}\n')
    follow = ("produce", topic, "-f", "lines", "--follow")
    assert "in plain text" in cli.error(*follow, "--dead-letters", code=2)
    assert "id does not say whose it is" in cli.error(*follow)
    assert consumed(cli, topic) == []


def test_without_its_key_store_nothing_is_written(cli, topic):
    assert _key_store_check(cli)["level"] == "info"
    produce(cli, topic, ANN)
    assert _key_store_check(cli)["level"] == "warning"  # the root key lies beside it
    for file in (cli.cwd / "data" / "subjects").glob("keys.sqlite*"):
        file.unlink()
    error = cli.error("produce", topic, stdin=json.dumps(BOB) + "\n")
    assert "the key store is not there" in error
    assert len(consumed(cli, topic)) == 1
    assert "not there" in cli.error("erase", "--subject", "customer:42", "--yes")
    assert _key_store_check(cli)["level"] == "broken"


def _key_store_check(cli):
    found = json.loads(cli("doctor", "--json", code=None))["checks"]
    return next(check for check in found if check["check"] == "key store")


@long
def test_a_text_that_was_changed_is_shown_as_it_is(cli, topic):
    produce(cli, topic, ANN)
    (ann,) = consumed(cli, topic)
    plain(cli, topic, {**ann, "name": ann["email"]})
    result = cli.result("consume", topic, "-o", "start", "-e", "--decrypt")
    assert json.loads(result.stdout.splitlines()[1])["name"] == ann["email"]
    assert b"not decrypted: field name: the encrypted value was changed" in result.stderr


@long
def test_an_erasure_that_is_killed_again_and_again_ends_with_everything_erased(cli, topic):
    plain(cli, topic, *[ANN] * 300)
    produce(cli, topic, *[ANN, BOB] * 10)
    for number in range(kills(quick=3, full=12)):
        process = cli.start("erase", "--subject", "customer:42", "--yes", "--receipt", "r.json")
        time.sleep(0.3 + number * 0.1)  # somewhere in the middle; at the end it is done
        process.kill()
        process.wait()
    receipt = cli.json("erase", "--subject", "customer:42", "--yes", "--receipt", "r.json")
    assert len(receipt["keys_dropped"]) == 1
    assert sum(receipt["records_erased"].values()) == 300
    assert receipt["incomplete"] == []
    assert cli.json("verify", "--erased", "customer:42", "--text", "Zyx")["is_erased"]
    assert "genuine" in cli("verify", "--receipt", "r.json")
    assert [value for value in consumed(cli, topic, "--decrypt") if value][1::2] == [BOB] * 10


@long
def test_keys_are_listed_rotated_and_allowed_again(cli, topic):
    produce(cli, topic, ANN, BOB)
    before = consumed(cli, topic)
    assert cli.json("subject", "rotate") == {"wrapped": 2}
    assert consumed(cli, topic, "--decrypt") == [ANN, BOB]
    produce(cli, topic, ANN)
    assert consumed(cli, topic)[2] == before[0]  # the same value is the same text
    cli("erase", "--subject", "customer:42", "--yes")
    assert cli.json("subject", "list") == [{"kind": "customer", "subjects": 1, "erased": 1}]
    assert cli.error("subject", "allow", "customer:43", code=2)
    cli("subject", "allow", "customer:42")
    produce(cli, topic, ANN)
    assert consumed(cli, topic, "--decrypt")[3] == ANN
    assert consumed(cli, topic, "--decrypt")[0]["name"] == "(erased)"
    assert len(cli("subject", "public-key").strip()) == 44


def test_groups_that_have_read_the_topic_are_named(cli, topic):
    produce(cli, topic, ANN)
    group = unique("mailing")
    cli("consume", topic, "-g", group, "-o", "start", "-e")
    receipt = cli.json("erase", "--subject", "customer:42", "--yes")
    assert receipt["not_reached"]["consumer_groups"] == [group]


def test_a_key_store_is_left_out_of_backups(offline, tmp_path):
    from .conftest import running_broker

    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (tmp_path / "headwater.toml").write_text(TOML.format(topic="customers"))
    with running_broker(data_dir) as (_, ready):
        offline("produce", "customers", "-b", ready["listen"], stdin=json.dumps(ANN) + "\n")
        result = offline.result("backup", "running")
        assert b"back it up apart" in result.stderr
    offline("backup", "stopped")
    for backup in ("running", "stopped"):
        names = {file.name for file in Path(tmp_path, backup).rglob("*")}
        assert {"catalog.jsonl", "subjects.json"} <= names
        assert not names & {"keys.sqlite", "keys.sqlite-wal", "root.key"}
    # A restored log without its key store is an error, not a new store.
    (tmp_path / "restored.toml").write_text(
        TOML.format(topic="customers").replace('"data"', '"restored"')
    )
    offline("restore", "running", "--config", "restored.toml")
    assert "key store is not there" in offline.error("subject", "list", "--config", "restored.toml")
    with running_broker(data_dir) as (_, ready):
        receipt = offline.json("erase", "--subject", "customer:42", "--yes", "-b", ready["listen"])
    assert receipt["not_reached"]["backups"] == [
        str(tmp_path / "running"),
        str(tmp_path / "stopped"),
    ]
