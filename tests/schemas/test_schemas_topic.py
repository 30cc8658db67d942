"""The registry in its topic: several processes at once, restarts, other registries' records."""

import subprocess
import sys
import threading
import time
import uuid

import orjson
import pytest
from confluent_kafka import Consumer, Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shared_broker import shared_broker
from tiers import count

from headwater.errors import SchemaRefused
from headwater.schema_records import TOPIC
from headwater.schemas.registry.records import Key, key_bytes
from headwater.schemas.registry.registry import Registry, read_version
from headwater.schemas.registry.tables import Tables
from headwater.schemas.schema import Schema
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("schemas-broker")) as address:
        yield address


@pytest.fixture
def open_registry(broker):
    """Opens registries of one topic, closed after the test."""
    topic = f"_schemas-{uuid.uuid4().hex}"
    opened = []

    def make(**options):
        registry = Registry(broker, ClientSettings(), topic=topic, **options)
        opened.append(registry)
        registry.open()
        return registry

    make.topic = topic
    yield make
    for registry in opened:
        registry.close()


def record(name, *fields):
    inside = ",".join(f'{{"name":"{item}","type":"int"}}' for item in fields)
    return Schema(f'{{"type":"record","name":"{name}","fields":[{inside}]}}')


def test_several_registries_never_give_an_id_twice(open_registry):
    """Four of them register the same schemas and their own at the same time."""
    registries = [open_registry() for _ in range(4)]
    rounds = count(8, 40)
    found, failures = {}, []

    def work(number, registry):
        try:
            for turn in range(rounds):
                same = registry.register(f"same-{turn}", record(f"Same{turn}"))
                found[number, "same", turn] = (same.id, same.version)
                own = registry.register(f"own-{number}-{turn}", record(f"Own{number}_{turn}"))
                found[number, "own", turn] = (own.id, own.version)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(number, registry))
        for number, registry in enumerate(registries)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S * 2)
    assert not failures
    for turn in range(rounds):
        assert len({found[number, "same", turn] for number in range(4)}) == 1
    assert all(version == 1 for _, version in found.values())
    assert len({schema_id for schema_id, _ in found.values()}) == rounds * 5
    _wait_until(lambda: len({tuple(item.subjects()) for item in registries}) == 1)
    assert len(open_registry().subjects()) == rounds * 5


def _wait_until(is_reached):
    ends_s = time.monotonic() + TIMEOUT_S
    while not is_reached():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_another_registry_sees_a_change_when_it_looks(open_registry):
    first, second = open_registry(), open_registry()
    entry = first.register("s", record("A"))
    assert second.of_id(entry.id).schema == entry.schema
    assert second.version("s", -1) == entry
    first.set_config(None, {"compatibility": "NONE"})
    _wait_until(lambda: second.config(None)["compatibilityLevel"] == "NONE")


def test_all_is_there_after_a_restart(tmp_path):
    """Also the ids that were given and deleted for good: they are not given again."""
    broker = InProcessBroker(str(tmp_path))
    broker.start()
    registry = Registry(broker.bootstrap, ClientSettings())
    registry.open()
    registry.register("a", record("A"))
    gone = registry.register("gone", record("Gone"))
    registry.delete_subject("gone")
    registry.delete_subject("gone", is_permanent=True)
    registry.set_config("a", {"compatibility": "FULL"})
    registry.set_mode("b", "READONLY")
    before = registry.entries(deleted=True)
    registry.close()
    broker.stop()
    broker.start()
    try:
        registry = Registry(broker.bootstrap, ClientSettings())
        registry.open()
        assert registry.entries(deleted=True) == before
        assert registry.config("a") == {"compatibilityLevel": "FULL"}
        assert registry.mode("b") == "READONLY"
        assert registry.register("c", record("C")).id > gone.id
        registry.close()
    finally:
        broker.stop()


def test_the_highest_id_is_known_without_the_records_that_had_it():
    tables = Tables()
    tables.apply(key_bytes(Key("NOOP")), b'{"maxId":41}')
    assert tables.max_id == 41
    tables.apply(key_bytes(Key("NOOP")), None)
    assert tables.max_id == 41


def test_records_of_confluents_registry_are_read(open_registry, broker):
    """Keys and values as its Java code writes them, in an order that it may write them in."""
    registry = open_registry()
    producer = Producer({"bootstrap.servers": broker})
    schema = '{"type":"record","name":"J","fields":[]}'
    for key, value in (
        ('{"keytype":"NOOP","magic":0}', None),
        ('{"keytype":"CONFIG","subject":null,"magic":0}', '{"compatibilityLevel":"FORWARD"}'),
        ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"FULL"}'),
        ('{"keytype":"SCHEMA","subject":"j-value","version":1,"magic":1}',
         orjson.dumps({"subject": "j-value", "version": 1, "id": 7, "schema": schema,
                       "md5": "x", "ts": 1, "offset": 2, "deleted": False})),
        ('{"keytype":"SCHEMA","subject":"p-value","version":1,"magic":1}',
         orjson.dumps({"subject": "p-value", "version": 1, "id": 8, "schemaType": "PROTOBUF",
                       "schema": 'syntax = "proto3";\n\nmessage A {\n  // why\n}\n',
                       "references": [], "deleted": False})),
        ('{"keytype":"SCHEMA","subject":"d-value","version":1,"magic":1}',
         orjson.dumps({"subject": "d-value", "version": 1, "id": 9, "schema": '"int"',
                       "deleted": False})),
        ('{"keytype":"DELETE_SUBJECT","subject":"d-value","magic":0}',
         '{"subject":"d-value","version":1}'),
        ('{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}', "{}"),
        ('{"keytype":"MODE","subject":"j-value","magic":0}', '{"mode":"READWRITE"}'),
        ("not JSON", "{"),
        ('{"keytype":"SCHEMA","subject":"j-value","version":2,"magic":1}', "[]"),
    ):  # fmt: skip
        producer.produce(open_registry.topic, value, key)
    assert producer.flush(TIMEOUT_S) == 0
    _wait_until(lambda: registry.subjects(deleted=True) == ["d-value", "j-value", "p-value"])
    _wait_until(lambda: registry.mode("j-value", in_scope=True) == "READWRITE")
    assert registry.subjects() == ["j-value", "p-value"]
    assert registry.config(None)["compatibilityLevel"] == "FULL"
    assert registry.look_up("j-value", Schema(schema)).id == 7
    assert registry.register("j-value", Schema(schema)).id == 7
    in_our_words = Schema('syntax = "proto3"; message A {}', "PROTOBUF")
    assert registry.look_up("p-value", in_our_words).id == 8, "although its text is written so"
    assert registry.register("new", record("New")).id == 10


def test_a_version_that_another_registry_took_and_we_do_not_understand(open_registry, broker):
    registry = open_registry()
    producer = Producer({"bootstrap.servers": broker})
    value = {"subject": "odd", "version": 1, "id": 1, "schema": '{"type": "quaternion"}'}
    producer.produce(open_registry.topic, orjson.dumps(value), key_bytes(Key("SCHEMA", "odd", 1)))
    assert producer.flush(TIMEOUT_S) == 0
    _wait_until(lambda: registry.subjects() == ["odd"])
    assert registry.of_id(1).schema.text == '{"type": "quaternion"}'
    with pytest.raises(SchemaRefused, match="nothing can be compared with version 1 of odd"):
        registry.register("odd", record("Odd"))
    registry.set_config("odd", {"compatibility": "NONE"})
    assert registry.register("odd", record("Odd"))[1:3] == (2, 2)


def test_records_are_written_as_confluents_registry_has_them(open_registry, broker):
    registry = open_registry()
    registry.register("a", record("A"))
    registry.set_config("a", {"compatibility": "FULL"})
    registry.set_mode(None, "READWRITE")
    registry.delete_subject("a")
    registry.delete_subject("a", is_permanent=True)
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "x", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([open_registry.topic])
    found = []
    ends_s = time.monotonic() + TIMEOUT_S
    while len(found) < 7:
        assert time.monotonic() < ends_s
        message = consumer.poll(0.1)
        if message is not None and not message.error():
            found.append((message.key(), message.value()))
    consumer.close()
    assert found == [
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
         orjson.dumps({"subject": "a", "version": 1, "id": 1,
                       "schema": '{"type":"record","name":"A","fields":[]}', "deleted": False})),
        (b'{"keytype":"CONFIG","subject":"a","magic":0}',
         b'{"compatibilityLevel":"FULL","subject":"a"}'),
        (b'{"keytype":"MODE","magic":0}', b'{"mode":"READWRITE"}'),
        (b'{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', b'{"subject":"a","version":1}'),
        (b'{"keytype":"CONFIG","subject":"a","magic":0}', None),
        (b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', None),
        (b'{"keytype":"NOOP","magic":0}', b'{"maxId":1}'),
    ]  # fmt: skip


KILLED = """
import sys
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Schema
from headwater.settings import ClientSettings
registry = Registry(sys.argv[1], ClientSettings(), topic=sys.argv[2])
registry.open()
for turn in range(100_000):
    text = '{"type":"record","name":"K%s_%d","fields":[]}' % (sys.argv[3], turn)
    entry = registry.register(f"k-{sys.argv[3]}-{turn}", Schema(text))
    print(entry.subject, entry.id, flush=True)
"""


def test_what_a_killed_process_has_acknowledged_is_there_and_nothing_is_given_twice(
    open_registry, broker
):
    survivor = open_registry()
    acknowledged = {}
    for turn in range(count(2, 10)):
        command = [sys.executable, "-c", KILLED, broker, open_registry.topic, str(turn)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(5):
                subject, schema_id = process.stdout.readline().split()
                acknowledged[subject] = int(schema_id)
            process.kill()
            for line in process.stdout:
                if line.endswith("\n"):
                    subject, schema_id = line.split()
                    acknowledged[subject] = int(schema_id)
        entry = survivor.register(f"s-{turn}", record(f"S{turn}"))
        acknowledged[entry.subject] = entry.id
    fresh = open_registry()
    for subject, schema_id in acknowledged.items():
        assert fresh.version(subject, -1).id == schema_id
    ids = [entry.id for entry in fresh.entries()]
    assert len(ids) == len(set(ids))


def test_a_full_registry_takes_no_more(open_registry):
    registry = open_registry(max_texts_bytes=200)
    registry.register("a", record("A"))
    with pytest.raises(SchemaRefused, match="full") as caught:
        for turn in range(10):
            registry.register(f"b{turn}", record(f"B{turn}"))
    assert caught.value.code == 50001
    assert registry.register("a", record("A")).version == 1, "what is there still is"


def test_ids_are_imported_into_empty_subjects_only(open_registry):
    registry = open_registry()
    with pytest.raises(SchemaRefused, match="not in import mode"):
        registry.register("i", record("I"), schema_id=100)
    registry.set_mode("i", "IMPORT")
    assert registry.register("i", record("I"), schema_id=100, version=5)[1:3] == (5, 100)
    with pytest.raises(SchemaRefused, match="not in read-write mode"):
        registry.register("i", record("J"))
    with pytest.raises(SchemaRefused, match="Overwrite"):
        registry.register("i", record("J"), schema_id=100)
    registry.delete_mode("i")
    assert registry.register("o", record("O")).id == 101
    with pytest.raises(SchemaRefused, match="existing subjects"):
        registry.set_mode("o", "IMPORT")


def test_settings_without_an_effect_are_refused(open_registry):
    registry = open_registry()
    with pytest.raises(SchemaRefused, match="alias"):
        registry.set_config("s", {"alias": "t"})
    with pytest.raises(SchemaRefused, match="contexts"):
        registry.register(":.other:s", record("A"))


def test_normalize_of_a_subject_finds_the_same_schema_in_another_order(open_registry):
    registry = open_registry()
    registry.set_config("s", {"normalize": True})
    first = registry.register("s", Schema('{"title": "x", "type": "object"}', "JSON"))
    again = registry.register("s", Schema('{"type": "object", "title": "x"}', "JSON"))
    assert (first.id, first.version) == (again.id, again.version)
    assert first.schema.text == '{"title":"x","type":"object"}'


def test_a_topic_that_was_deleted_is_begun_anew(open_registry, broker):
    from confluent_kafka.admin import AdminClient

    registry = open_registry()
    registry.register("a", record("A"))
    admin = AdminClient({"bootstrap.servers": broker})
    admin.delete_topics([open_registry.topic])[open_registry.topic].result(TIMEOUT_S)
    open_registry()  # creates it again
    _wait_until(lambda: registry.subjects() == [])
    assert registry.register("b", record("B")).id == 1


@pytest.mark.parametrize("text", ["0", "-2", "1.0", "x", "", "99999999999", "٣", "latest "])
def test_versions_that_are_none(text):
    with pytest.raises(SchemaRefused) as caught:
        read_version(text)
    assert caught.value.code == 42202


_bytes = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.sampled_from(["SCHEMA", "MODE"]),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["keytype", "subject", "version", "id", "schema", "references", "name", "mode",
                 "deleted", "maxId", "schemaType", "metadata"]
            ),
            inner,
        ),
        max_leaves=8,
    ).map(lambda value: orjson.dumps(value) if _is_small(value) else b"1"),
)  # fmt: skip


def _is_small(value):
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


@settings(max_examples=count(300, 5000), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(
                _bytes,
                st.builds(
                    lambda kind, subject, version: key_bytes(Key(kind, subject, version)),
                    st.sampled_from(
                        ["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT", "NOOP"]
                    ),
                    st.sampled_from(["a", "b"]),
                    st.integers(1, 3),
                ),
            ),
            st.one_of(
                _bytes,
                st.builds(
                    lambda schema_id, text, subject, version, deleted: orjson.dumps(
                        {"id": schema_id, "schema": text, "subject": subject, "version": version,
                         "deleted": deleted}
                    ),
                    st.integers(1, 4),
                    st.sampled_from(['"int"', '"long"']),
                    st.sampled_from(["a", "b"]),
                    st.integers(1, 3),
                    st.booleans(),
                ),
            ),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_any_records_leave_the_tables_consistent(written):
    tables = Tables()
    for key, value in written:
        tables.apply(key, value)
    entries = [entry for versions in tables.subjects.values() for entry in versions.values()]
    places = {
        (schema_id, place) for schema_id, all_ in tables.places_of_id.items() for place in all_
    }
    assert places == {(entry.id, (entry.subject, entry.version)) for entry in entries}
    assert tables.text_bytes == sum(len(entry.schema.text) for entry in entries)
    assert set(tables.id_of_fingerprint.values()) <= set(tables.places_of_id)
    assert all(list(versions) == sorted(versions) for versions in tables.subjects.values())


def test_the_topic_is_the_one_of_confluents_registry():
    assert TOPIC == "_schemas"
