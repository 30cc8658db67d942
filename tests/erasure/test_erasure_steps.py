"""The steps of an erasure: what they leave on the disk, and that each can be repeated."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.gateway.derived_store import FIELDS, DerivedStore
from tiers import REAL_KAFKA, long

from headwater import config
from headwater.cli.main import run
from headwater.client.erasing import erase_records
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.erasure import searching
from headwater.erasure.erasing import erase, old_versions, preview
from headwater.erasure.subject import Subject
from headwater.erasure.verifying import verify_erased
from headwater.errors import ErasureUnsupported, EventStoreRefused, EventStoreUnreachable
from headwater.events import Event, open_store
from headwater.events.databases.sqlite import SqliteDatabase
from headwater.inspect.pipelines import reported_writes
from headwater.inspect.store_lookup import store_of_write
from headwater.inspect.subjects import personal_topics
from headwater.pipelines.running import status
from headwater.schemas.wire_format import framed
from headwater.subjects.access import PersonalTopics
from headwater.subjects.key_store import KeyStore
from headwater.subjects.receipts import check, public_text
from headwater.testing import InProcessBroker

TOPIC = "customers"
ANN = Subject("customer", "42")
TOML = """
[broker]
bootstrap = "{bootstrap}"
data_dir = "{data_dir}"
[subjects]
key_store = "keys"
[subject.customer]
topics = {{ customers = {{ id = "id", personal = ["name"] }} }}
"""


class Interrupted(BaseException):
    """As a kill: no handler of errors sees it."""


class Project:
    """A broker with records of two customers: encrypted ones, plain ones and dead letters."""

    def __init__(self, bootstrap: str, data_dir: Path, directory: Path) -> None:
        self.data_dir = data_dir
        (directory / "headwater.toml").write_text(
            TOML.format(bootstrap=bootstrap, data_dir=data_dir)
        )
        self.config = config.load(path=str(directory / "headwater.toml"), environ={})
        self._producer = Producer({"bootstrap.servers": bootstrap})
        personal = PersonalTopics(self.config.subject_kinds, self.config.key_places())
        for number in (42, 43):
            row = {"id": number, "name": f"Plain Person {number}"}
            event = {"op": "u", "before": None, "after": row}
            self.write(TOPIC, json.dumps(row).encode(), json.dumps(event).encode(), None)
            self.write(TOPIC + ".dlq", json.dumps(row).encode())
            sealed = personal.value(TOPIC, json.dumps(row).encode())
            personal.flush()
            self.write(TOPIC, sealed)
        self.store = self.reopened()

    def write(self, topic: str, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce(topic, value)
        assert self._producer.flush(60) == 0

    def reopened(self) -> KeyStore:
        """As another process has it."""
        return KeyStore(self.config.key_places(), create=False)

    def files_with(self, text: bytes) -> list[Path]:
        return [
            file
            for file in self.data_dir.rglob("*")
            if file.is_file() and text in file.read_bytes()
        ]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with InProcessBroker.serving(str(data_dir)) as broker:
        yield Project(broker.bootstrap, data_dir, tmp_path)


def test_records_of_aborted_transactions_are_erased_too(project):
    """No consumer sees them, and yet they are on the disk."""
    producer = Producer(
        {"bootstrap.servers": project.config.bootstrap(), "transactional.id": "aborted"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, json.dumps({"id": 42, "name": "Aborted Person"}))
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    assert project.files_with(b"Aborted Person")
    planned = preview(project.config, project.store, ANN)
    erase(project.config, project.store, planned, erase_records)
    assert not project.files_with(b"Aborted Person")


@pytest.mark.parametrize("reading", ["many by Arrow", "few one by one"])
def test_nothing_of_the_person_is_left_in_any_file(project, reading, monkeypatch):
    if reading == "many by Arrow":
        monkeypatch.setattr(searching, "_READ_BY_ARROW", 0)
    planned = preview(project.config, project.store, ANN)
    assert {f"{t}-{p}": o for (t, p), o in planned.found.plain.items()} == {
        "customers-0": [0, 1],
        "customers.dlq-0": [0],
    }
    assert planned.found.encrypted == {"customers": 1}
    assert project.files_with(b"Plain Person 42")

    receipt = erase(project.config, project.store, planned, erase_records)
    assert receipt["records_erased"] == {"customers-0": 2, "customers.dlq-0": 1}
    assert receipt["incomplete"] == []
    assert not project.files_with(b"Plain Person 42")
    assert project.files_with(b"Plain Person 43")
    verdict = verify_erased(project.config, project.store, ANN, ["Plain Person 42"])
    assert verdict.is_erased, verdict.left
    assert verdict.searched["files"] > 0
    bob = verify_erased(project.config, project.store, Subject("customer", "43"), ["Person 43"])
    assert len([line for line in bob.left if "contains one of the texts" in line]) > 0


@pytest.mark.parametrize(
    "step",
    ["begin_erasure", pytest.param("erase_records", marks=long),
     pytest.param("end_erasure", marks=long)],
)  # fmt: skip
def test_an_erasure_that_ends_at_any_step_is_continued_by_the_next(project, monkeypatch, step):
    """Behind the named step the process is killed."""
    steps = {"erase_records": erase_records}

    def killed_after(function):
        def run(*args, **options):
            function(*args, **options)
            raise Interrupted

        return run

    if step == "erase_records":
        steps["erase_records"] = killed_after(erase_records)
    else:
        monkeypatch.setattr(KeyStore, step, killed_after(getattr(KeyStore, step)))
    planned = preview(project.config, project.store, ANN)
    with pytest.raises(Interrupted):
        erase(project.config, project.store, planned, steps["erase_records"])
    monkeypatch.undo()

    store = project.reopened()
    again = preview(project.config, store, ANN)
    assert not again.live_keys  # dropped in the first step
    if step == "end_erasure":
        assert again.is_done
        receipt = store.last_erasure("customer", store.subject_hash("customer", "42")).receipt
    else:
        assert not again.is_done
        assert not verify_erased(project.config, store, ANN).is_erased
        receipt = erase(project.config, store, again, erase_records)
    assert receipt["keys_dropped"] == planned.live_keys
    assert receipt["records_erased"] == {"customers-0": 2, "customers.dlq-0": 1}
    assert verify_erased(project.config, store, ANN, ["Plain Person 42"]).is_erased


def unsupported(*_, **__):
    """As Apache Kafka."""
    raise ErasureUnsupported("this broker cannot erase single records")


def test_tombstones_for_plain_records_of_compacted_topics(project):
    """Only for keys whose last record is a plain one of the person."""
    bootstrap = project.config.bootstrap()
    topic = NewTopic("compacted", configs={"cleanup.policy": "compact"})
    ensure_topics(bootstrap, project.config.client, [topic])
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in (
        ("a", {"id": 42, "name": "Plain A"}),
        ("b", {"id": 42, "name": "Plain B"}),
        ("b", {"id": 42, "name": None}),
        ("c", {"id": 43, "name": "Plain C"}),
    ):
        producer.produce("compacted", key=key, value=json.dumps(value))
    assert producer.flush(60) == 0
    toml = project.config.base / "headwater.toml"
    toml.write_text(toml.read_text().replace("customers = {", "compacted = {"))
    loaded = config.load(path=str(toml), environ={})

    def erased(**options):
        planned = preview(loaded, project.store, ANN)
        receipt = erase(loaded, project.store, planned, unsupported, **options)
        return next(line for line in receipt["incomplete"] if line.startswith("compacted-0: ")
                    and "records in" not in line)  # fmt: skip

    def records():
        with Fetcher(bootstrap, project.config.client) as fetcher:
            end = fetcher.offsets([("compacted", 0)], LATEST)["compacted", 0]
            found = fetcher.records("compacted", 0, 0, end)
            return [(one.key, one.value is None) for one in found]

    assert "a tombstone is missing for 1 of its keys" in erased()
    assert len(records()) == 4
    for _ in range(2):  # the second time there is nothing to write
        assert "compaction removes the records" in erased(tombstones=True)
        assert records()[4:] == [(b"a", True)]


def test_where_records_cannot_be_erased_the_receipt_says_so(project):
    planned = preview(project.config, project.store, ANN)
    receipt = erase(project.config, project.store, planned, unsupported)
    assert receipt["keys_dropped"] == planned.live_keys
    assert receipt["records_erased"] == {"customers-0": 0, "customers.dlq-0": 0}
    assert receipt["incomplete"] == [
        "customers-0: 2 records in plain text",
        "customers.dlq-0: 1 records in plain text",
        "records were not erased: this broker cannot erase single records",
    ] + [line for line in receipt["incomplete"] if "DeleteRecords before offset" in line]
    assert len(receipt["incomplete"]) == 5
    assert "retention removes them some time after" in receipt["incomplete"][3]
    verdict = verify_erased(project.config, project.store, ANN)
    assert not verdict.is_erased
    # The next attempt, on a broker that can, completes it.
    receipt = erase(
        project.config, project.store, preview(project.config, project.store, ANN), erase_records
    )
    assert receipt["incomplete"] == []


@pytest.fixture
def with_events(project, tmp_path):
    """The configuration of a project with an event store, which has an event in plain text, an
    encrypted one, and a snapshot.
    """
    url = f"sqlite:///{tmp_path}/events.db"
    text = (tmp_path / "headwater.toml").read_text()
    topics = '"outbox.event.account" = { id = "owner", personal = ["name"] }, customers ='
    text = text.replace("topics = { customers =", "topics = { " + topics)
    (tmp_path / "headwater.toml").write_text(f'{text}[events]\nstore = "{url}"\n')
    loaded = config.load(path=str(tmp_path / "headwater.toml"), environ={})
    with open_store(url) as events:
        for owner, name in (("42", "Eva Plain"), ("43", "Bob Plain")):
            events.append(f"account-{owner}", [Event("Opened", {"owner": owner, "name": name})])
    with open_store(url, personal=personal_topics(loaded)) as events:
        events.append("account-2", [Event("Opened", {"owner": "42", "name": "Eva Sealed"})])
        with events.transaction() as transaction:
            transaction.run(
                "INSERT INTO headwater_snapshots"
                " SELECT 'account-2', 'account', 1, 1, '\"Eva Snapshot\"'"
            )
    return loaded


def names_of_events(loaded):
    with open_store(loaded.events.store.reveal(), personal=personal_topics(loaded)) as events:
        return [event.data["name"] for event in events.read()]


def test_events_in_plain_text_are_erased_and_snapshots_deleted(project, with_events, tmp_path):
    loaded = with_events
    planned = preview(loaded, project.store, ANN)
    assert planned.plain_events.counts() == {"account-42": 1}
    receipt = erase(loaded, project.store, planned, erase_records)
    assert receipt["incomplete"] == []
    assert receipt["events_erased"] == {"account-42": 1}
    assert receipt["snapshots_deleted"] == 1
    assert names_of_events(loaded) == [None, "Bob Plain", None]
    for file in tmp_path.glob("events.db*"):
        assert b"Eva" not in file.read_bytes(), file
    assert verify_erased(loaded, project.store, ANN).is_erased
    # Events are refused to change as before.
    with open_store(loaded.events.store.reveal()) as events, pytest.raises(EventStoreRefused):
        events.run("UPDATE headwater_events SET payload = '{}' WHERE position = 2")


def test_files_of_the_event_store_are_rewritten_by_the_next_erasure(
    project, with_events, tmp_path, monkeypatch
):
    """The first one ended between the transaction and the rewriting."""
    loaded = with_events

    def fails(_):
        raise EventStoreUnreachable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteDatabase, "rewrite", fails)
        planned = preview(loaded, project.store, ANN)
        receipt = erase(loaded, project.store, planned, erase_records)
    assert receipt["incomplete"] == ["events were not erased: the disk is full"]
    assert not verify_erased(loaded, project.store, ANN).is_erased
    again = preview(loaded, project.store, ANN)
    assert not again.is_done
    receipt = erase(loaded, project.store, again, erase_records)
    assert receipt["incomplete"] == []
    assert receipt["events_erased"] == {"account-42": 1}
    assert verify_erased(loaded, project.store, ANN).is_erased
    for file in tmp_path.glob("events.db*"):
        assert b"Eva" not in file.read_bytes(), file


@pytest.fixture
def with_store(project, tmp_path):
    """The configuration of a project with a pipeline that decrypts, whose table is in SQLite."""
    toml = tmp_path / "headwater.toml"
    before = toml.read_text()
    derived = DerivedStore(tmp_path, TOPIC)
    derived.apply([{"id": 42, "city": "Plain Person 42", "total": None, "at": None}], 3)
    toml.write_text(f"{before}{toml.read_text()}\ndecrypt = ['customer']\n")
    loaded = config.load(path=str(toml), environ={})
    shutil.copytree(tmp_path / ".headwater" / "pipelines", loaded.state_dir(), dirs_exist_ok=True)
    return loaded


def derived_again(loaded, held):
    """As a rebuild: version 2 from a log without the person, and version 1 dropped."""
    for one in held:
        about = reported_writes(status.read(loaded.state_dir(), one.pipeline))[one.write]
        store = store_of_write(loaded, one.pipeline, about)
        with store.writer(2, FIELDS):
            pass
        store.promote(2)
        store.drop(1)
        store.close()


def test_stores_that_hold_plain_text_are_rebuilt(project, with_store):
    loaded = with_store
    planned = preview(loaded, project.store, ANN)
    receipt = erase(
        loaded,
        project.store,
        planned,
        erase_records,
        rebuild=lambda held: derived_again(loaded, held[:1]),
    )
    assert [one["versions"] for one in receipt["derived"]] == [[1], []]
    assert receipt["incomplete"] == []
    assert verify_erased(loaded, project.store, ANN, ["Plain Person 42"]).is_erased


def test_late_and_refused_rows_of_pipelines_are_erased(project, with_store):
    """Also those of no topic that the settings name."""
    for topic in ("orders.late", "orders.dlq"):
        row = json.dumps({"id": 42, "name": f"Plain in {topic}", "total": 5}).encode()
        project.write(topic, row, json.dumps({"id": 43, "name": "Bob"}).encode())
    planned = preview(with_store, project.store, ANN)
    assert planned.found.missing == []
    assert planned.found.unused == {}
    receipt = erase(with_store, project.store, planned, erase_records)
    assert receipt["records_erased"]["orders.late-0"] == 1
    assert receipt["records_erased"]["orders.dlq-0"] == 1
    assert not project.files_with(b"Plain in orders")


def test_stores_that_hold_plain_text_are_named_until_they_are_rebuilt(project, with_store, capsys):
    loaded = with_store
    receipt = erase(loaded, project.store, preview(loaded, project.store, ANN), erase_records)
    (line,) = receipt["incomplete"]
    assert line.startswith("orders/cache/orders holds plain text until `headwater pipeline rebuild")
    left = verify_erased(loaded, project.store, ANN, ["Plain Person 42"]).left
    assert any("version 1 was derived before the erasure" in line for line in left)
    assert any("orders/cache/orders, version 1: a row has one of the texts" in one for one in left)
    seen = preview(loaded, project.store, ANN)
    hashed = project.store.subject_hash(ANN.kind, ANN.id)
    old = old_versions(seen, project.store.last_erasure(ANN.kind, hashed))
    assert [(one.write, versions) for one, versions in old.items()] == [("cache/orders", [1])]
    derived_again(loaded, old)
    assert verify_erased(loaded, project.store, ANN, ["Plain Person 42"]).is_erased
    again = [
        "erase", "--subject", "customer:42", "--json",
        "--config", str(loaded.base / "headwater.toml"),
    ]  # fmt: skip
    for _ in range(2):  # the second time it is the same one
        assert run(again) == 0
        later = json.loads(capsys.readouterr().out)
        assert later["incomplete"] == []
        assert later["id"] == receipt["id"]
        check(later, public_text(project.store.signing_key().public_key()))


def test_ids_that_json_may_write_in_several_ways_are_found(project):
    producer = Producer({"bootstrap.servers": project.config.bootstrap()})
    values = [
        json.dumps({"id": "J\u00fcrg/1", "name": "Plain One"}),  # as an escape
        json.dumps({"id": "J\u00fcrg/1", "name": "Plain Two"}, ensure_ascii=False),
        '{"id": "J\u00fcrg\\/1", "name": "Plain Three"}',
    ]
    for value in values:
        producer.produce(TOPIC, value.encode())
    assert producer.flush(60) == 0
    planned = preview(project.config, project.store, Subject("customer", "J\u00fcrg/1"))
    assert planned.found.plain_records == 3


@pytest.mark.parametrize("reading", ["many by Arrow", "few one by one"])
def test_values_with_the_id_of_a_schema_are_searched_if_they_are_json(
    project, reading, monkeypatch
):
    if reading == "many by Arrow":
        monkeypatch.setattr(searching, "_READ_BY_ARROW", 0)
    row = json.dumps({"id": 42, "name": "Framed Person"}).encode()
    avro = b"\x54\x0cBinary"
    project.write(TOPIC, framed(7, row), framed(8, avro), framed(8, avro))
    planned = preview(project.config, project.store, ANN)
    assert planned.found.not_searched == {TOPIC: 2}
    receipt = erase(project.config, project.store, planned, erase_records)
    assert not project.files_with(b"Framed Person")
    unsearched = f"{TOPIC}: 2 values of Avro or Protobuf were not searched"
    assert unsearched in receipt["incomplete"]
    assert verify_erased(project.config, project.reopened(), ANN).left == [unsearched]


@pytest.mark.parametrize("kind", [REAL_KAFKA])
def test_on_apache_kafka_keys_are_dropped_and_plain_records_reported(kind, request, tmp_path):
    kafka = Project(request.getfixturevalue("kafka_address"), tmp_path / "data", tmp_path)
    planned = preview(kafka.config, kafka.store, ANN)
    assert planned.found.encrypted == {"customers": 1}
    receipt = erase(kafka.config, kafka.store, planned, erase_records)
    assert receipt["keys_dropped"] == planned.live_keys
    assert receipt["incomplete"][:2] == [
        "customers-0: 2 records in plain text",
        "customers.dlq-0: 1 records in plain text",
    ]
    assert "cannot erase single records" in receipt["incomplete"][2]
    assert "no retention removes them; DeleteRecords before offset 2" in receipt["incomplete"][3]
    assert not verify_erased(kafka.config, kafka.store, ANN).is_erased
