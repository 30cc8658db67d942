"""From a database behind Debezium into topics: the whole way."""

from collections.abc import Iterator

import pytest
from support.capture.capture_harness import read, replayed, running
from support.capture.debezium_reader import missing, settings_of
from support.capture.postgres_server import Database
from tiers import long

from headwater.capture.debezium import jvm
from headwater.capture.debezium.properties import properties
from headwater.testing import InProcessBroker

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory) -> Iterator[str]:
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


def test_copy_and_changes_over_restarts(bootstrap: str, postgres: Database) -> None:
    options = {
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.server.port),
        "database.user": "postgres",
        "database.password": "secret",
        "database.dbname": postgres.name,
        "slot.name": f"slot_{postgres.name}",
    }
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    postgres.run("INSERT INTO t SELECT g, 0 FROM generate_series(1, 1000) g")
    topic = "shop.public.t"

    def is_there() -> bool:
        rows = {f'{{"id": {key}}}': {"id": key, "a": a} for key, a in postgres.run("TABLE t")}
        return replayed(read(bootstrap, topic)) == rows

    for number in range(1, 4):
        with running(
            bootstrap, "debezium:postgresql", tables=("public.*",), options=options
        ) as capture:
            capture.wait_until(is_there, "the table")
            postgres.run("UPDATE t SET a = %s WHERE id <= 300", number)
            postgres.transaction(
                f"DELETE FROM t WHERE id = {900 + number}",
                f"UPDATE t SET id = {2000 + number} WHERE id = {910 + number}",
            )
            capture.wait_until(is_there, "the changes")
        postgres.run(
            "UPDATE t SET a = a + 10 WHERE id BETWEEN 991 AND 1000"
        )  # while no capture follows
    seen = read(bootstrap, topic)
    ops = [record.op for record in seen]
    assert ops.count("r") == 1000  # copied once
    assert ops.count("u") == 3 * 300 + 2 * 10  # and no change twice


@long
def test_a_schema_history_is_stored_on_our_broker(bootstrap: str) -> None:
    """As the connectors of MySQL, SQL Server and Oracle keep it, with the properties they get."""
    given = properties(settings_of({}), {"schema.history.internal"}, bootstrap)
    jvm.start({})
    for is_first in (True, False):
        history = jvm.java("io.debezium.storage.kafka.history.KafkaSchemaHistory")()
        configuration = jvm.java("io.debezium.config.Configuration").from_(jvm.java_map(given))
        comparator = jvm.java("io.debezium.relational.history.HistoryRecordComparator").INSTANCE
        listener = jvm.java("io.debezium.relational.history.SchemaHistoryListener").NOOP
        subset = configuration.subset("schema.history.internal.", False)
        history.configure(subset, comparator, listener, True)
        history.start()
        assert history.storageExists() != is_first
        assert history.exists() != is_first
        if is_first:
            history.initializeStorage()
            position = jvm.java_map({"file": "binlog.1", "pos": 4})
            history.record(jvm.java_map({"server": "legacy"}), position, "shop", "CREATE TABLE t")
        history.stop()
    (record,) = read(bootstrap, "__headwater_schema_history.legacy")
    assert record.value["ddl"] == "CREATE TABLE t"
    assert record.value["position"] == {"file": "binlog.1", "pos": 4}
