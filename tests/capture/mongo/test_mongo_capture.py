"""A whole capture of MongoDB: from its collections to the topics of a broker, over restarts."""

import json
import random
import threading
import time

import pytest
from bson import Decimal128, Int64, ObjectId
from confluent_kafka import Consumer, TopicPartition
from support.capture.capture_harness import read, replayed, running

from headwater.capture.mongo import shape
from headwater.capture.mongo.documents import CODEC, extended
from headwater.testing import InProcessBroker

pytestmark = pytest.mark.java

ACCOUNTS = 20
TOTAL = ACCOUNTS * 100


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


def table_of(collection):
    """As `replayed` gives it."""
    documents = collection.with_options(codec_options=CODEC).find()
    rows = [extended(document) for document in documents]
    return {json.dumps(shape.key(row)): row for row in rows}


def replayed_documents(records):
    return {key: json.loads(text) for key, text in replayed(records).items()}


def create(db, name):
    db.command({"create": name, "changeStreamPreAndPostImages": {"enabled": True}})
    return db[name]


def test_documents_of_a_snapshot_and_of_changes_are_in_the_topic(bootstrap, mongo, db):
    items = create(db, "items")
    items.insert_many(
        [{"_id": item, "n": Int64(5)} for item in (1, "one", ObjectId(), Decimal128("1.5"))]
    )
    topic = f"{db.name}.{db.name}.items"
    with running(bootstrap, mongo.url + db.name, name=db.name) as capture:
        capture.wait_for_copies(f"{db.name}.items")
        items.insert_one({"_id": 2, "n": 1})
        items.update_one({"_id": 2}, {"$set": {"n": 2}})
        items.delete_one({"_id": "one"})
        capture.wait_until(lambda: len(read(bootstrap, topic)) == 8)
    records = read(bootstrap, topic)
    assert [record.op for record in records] == ["r"] * 4 + ["c", "u", "d", None]
    assert replayed_documents(records) == table_of(items)
    updated = records[5].value
    assert updated["before"] == '{"_id":2,"n":1}'
    assert updated["updateDescription"]["updatedFields"] == '{"n":2}'
    assert updated["source"]["collection"] == "items"
    assert records[6].key == {"id": '"one"'}


def test_a_renamed_collection_is_copied_under_its_new_name(bootstrap, mongo, db):
    old = create(db, "old")
    old.insert_many([{"_id": n} for n in range(3)])
    with running(bootstrap, mongo.url + db.name, name=db.name) as capture:
        capture.wait_for_copies(f"{db.name}.old")
        old.rename("new")
        capture.wait_for_copies(f"{db.name}.new")
        db.new.insert_one({"_id": 3})
        topic = f"{db.name}.{db.name}.new"
        capture.wait_until(lambda: len(read(bootstrap, topic)) == 4)
        assert f"{db.name}.old" not in capture.stored().tables
    assert replayed_documents(read(bootstrap, topic)) == table_of(db.new)
    changes = [record.value for record in read(bootstrap, f"{db.name}.schema")]
    assert any("rename" in (change["ddl"] or "") for change in changes)


def test_an_outbox_is_a_collection_whose_documents_are_events(bootstrap, mongo, db):
    create(db, "orders")
    create(db, "outbox")
    settings = {"name": db.name, "outbox": f"{db.name}.outbox"}
    order, event = ObjectId(), ObjectId()
    kind = f"order{db.name}"
    topic = f"outbox.event.{kind}"
    with running(bootstrap, mongo.url + db.name, **settings) as capture:
        capture.wait_for_copies(f"{db.name}.outbox")
        with mongo.client.start_session() as session, session.start_transaction():
            db.orders.insert_one({"_id": order}, session=session)
            document = {
                "_id": event,
                "aggregatetype": kind,
                "aggregateid": order,
                "type": "OrderPlaced",
                "payload": {"order": order, "total": Int64(5)},
                "tenant": "a",
            }
            db.outbox.insert_one(document, session=session)
        db.outbox.delete_one({"_id": event})
        capture.wait_until(lambda: len(raw(bootstrap, topic)) == 1)
    (message,) = raw(bootstrap, topic)
    assert message.key() == str(order).encode()
    assert json.loads(message.value()) == {"order": {"$oid": str(order)}, "total": 5}
    assert message.headers() == [
        ("id", str(event).encode()),
        ("eventType", b"OrderPlaced"),
        ("tenant", b"a"),
    ]


def raw(bootstrap, topic):
    """The records of a topic of one partition; [] if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "log_level": 0,
                         "isolation.level": "read_committed", "enable.partition.eof": True,
                         "allow.auto.create.topics": False})  # fmt: skip
    try:
        if consumer.list_topics(topic, timeout=60).topics[topic].error is not None:
            return []
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(30)).error() is None:
            found.append(message)
        return found
    finally:
        consumer.close()


def test_a_bank_adds_up_over_restarts_and_lost_connections(bootstrap, mongo, db):
    """Transfers between accounts, each one transaction, while the capture ends and begins and its
    connections are cut: the topic gives the collection, every transfer is there once and whole.
    """
    accounts = create(db, "accounts")
    accounts.insert_many([{"_id": n, "balance": 100, "n": 0} for n in range(ACCOUNTS)])
    is_over = threading.Event()
    transfers = [0]
    writer = threading.Thread(target=_transfer, args=(mongo, db, is_over, transfers))
    writer.start()
    rng = random.Random(7)
    settings = {"name": db.name, "chunk_rows": 3, "transactions": True}
    try:
        for _ in range(10):
            with running(bootstrap, mongo.url + db.name, **settings):
                time.sleep(rng.uniform(0, 0.4))
                mongo.fail("getMore", times=rng.randrange(2))
    finally:
        is_over.set()
        writer.join()
    topic = f"{db.name}.{db.name}.accounts"
    with running(bootstrap, mongo.url + db.name, **settings) as capture:
        wanted = table_of(accounts)
        capture.wait_until(lambda: replayed_documents(read(bootstrap, topic)) == wanted)
    records = read(bootstrap, topic)
    updates = [record.value for record in records if record.op == "u"]
    steps = [json.loads(update["updateDescription"]["updatedFields"])["n"] for update in updates]
    assert len(steps) > 100
    assert steps == [number for number in range(steps[0], transfers[0] + 1) for _ in range(2)]
    numbers = [update["transaction"]["id"] for update in updates]
    assert all(numbers.count(number) == 2 for number in set(numbers))
    assert len(set(numbers)) * 2 == len(steps)
    assert sum(row["balance"] for row in replayed_documents(records).values()) == TOTAL
    ended = [record.value for record in read(bootstrap, f"{db.name}.transaction")]
    # The stream begins at a time, that of the last insert if no transfer was quicker: it is a
    # transaction of its own.
    transfers_ended = [
        end["event_count"] for end in ended if end["status"] == "END" and end["id"] in numbers
    ]
    assert transfers_ended == [2] * len(set(numbers))


def _transfer(mongo, db, is_over, transfers):
    rng = random.Random(3)
    while not is_over.is_set():
        source, target = rng.sample(range(ACCOUNTS), 2)
        number = transfers[0] = transfers[0] + 1
        with mongo.client.start_session() as session, session.start_transaction():
            for account, amount in ((source, -1), (target, 1)):
                change = {"$inc": {"balance": amount}, "$set": {"n": number}}
                db.accounts.update_one({"_id": account}, change, session=session)
        time.sleep(0.001)
