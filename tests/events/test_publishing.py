"""Events reach the log exactly once, through a capture whose outbox is the events' table."""

import threading

import pytest
from support.capture.capture_harness import read, running

from headwater.client.cluster import Cluster
from headwater.client.topics import topic_configs
from headwater.events import Event, StreamWrite, open_store
from headwater.settings import BrokerSettings, ClientSettings
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    """A database of its own: a capture follows all of it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/events.db"
    return request.getfixturevalue("postgres").url


@pytest.fixture
def outbox(url):
    schema = "public" if url.startswith("postgres") else "main"
    return {
        "tables": (f"{schema}.headwater_events",),
        "outbox": f"{schema}.headwater_events",
        "heartbeat_s": 0.2,
    }


def test_events_are_published_once_and_in_order_over_restarts(bootstrap, url, outbox):
    name = "pg" if url.startswith("postgres") else "lite"
    categories = (f"{name}account", f"{name}order")
    total = 120

    with open_store(url) as store:
        store.append(f"{categories[0]}-0", [Event("Opened", {"n": 0}, tags=["eva"], id=f"{name}0")])

        def write():
            for number in range(1, total):
                writes = [
                    StreamWrite(f"{category}-{number % 7}", [Event("Moved", {"n": number})])
                    for category in categories
                ]
                store.append_all(writes)

        writer = threading.Thread(target=write)
        with running(bootstrap, url, name, **outbox) as capture:
            capture.wait_until(
                lambda: read(bootstrap, f"outbox.event.{categories[0]}"), "the first"
            )
            writer.start()
            capture.wait_until(
                lambda: len(read(bootstrap, f"outbox.event.{categories[1]}")) > 10, "some events"
            )
        with running(bootstrap, url, name, **outbox) as capture:
            writer.join(120)
            for category in categories:
                expected = [
                    (event.stream, event.data, event.id, str(event.position))
                    for event in store.read(category=category)
                ]
                topic = f"outbox.event.{category}"
                capture.wait_until(
                    lambda topic=topic, expected=expected: (
                        len(read(bootstrap, topic)) >= len(expected)
                    ),
                    "all events",
                )
                records = read(bootstrap, topic)
                headers = [dict(record.headers) for record in records]
                assert [
                    (record.key, record.value, head["id"].decode(), head["position"].decode())
                    for record, head in zip(records, headers, strict=True)
                ] == expected
        assert headers[0]["eventType"] == b"Moved"
        assert headers[0]["version"] == b"1"


def test_compaction_of_the_topics_of_events_is_refused(bootstrap, tmp_path):
    url = f"sqlite:///{tmp_path}/events.db"
    table = "main.headwater_events"
    with open_store(url) as store:
        store.append("account-1", [Event("Opened")])
    options = {"tables": (table,), "outbox": table, "topic_config": {"cleanup.policy": "compact"}}
    with running(bootstrap, url, "compacting", **options) as capture:
        capture.wait_until(lambda: table in capture.state.failed_tables, "the refusal")
        capture.wait_until(lambda: table in capture.stored().tables, "the stored refusal")
        assert "are not to be compacted" in capture.stored().tables[table].failed.what
    assert read(bootstrap, "outbox.event.account") == []


def test_topics_of_events_are_archived_where_there_is_an_archive(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", archive=f"file://{tmp_path}/archive")
    url, table = f"sqlite:///{tmp_path}/events.db", "main.headwater_events"
    with open_store(url) as store:
        store.append("account-1", [Event("Opened")])
    with InProcessBroker.serving(str(tmp_path / "data"), settings) as broker:
        with running(broker.bootstrap, url, "bank", tables=(table,), outbox=table) as capture:
            capture.wait_until(lambda: read(broker.bootstrap, "outbox.event.account"), "the event")
        cluster = Cluster(broker.bootstrap, ClientSettings())
        configs = topic_configs(cluster, "outbox.event.account")
        cluster.close()
    assert configs["remote.storage.enable"] == "true"
    assert configs["retention.ms"] == "-1"
