"""The jobs in Flink SQL, on a mini cluster in this process's JVM.

`guarantee` is exactly-once or at-least-once, `checkpoint` the interval. The join is a temporal join
by event time; its table has no news, so its partitions have to count as idle. The view reads and
writes tables by their keys (upsert-kafka).
"""

import json
import os
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

JOB = json.loads(os.environ["LATENCY_JOB"])
SETTINGS = {
    "pipeline.jars": ";".join(f"file://{jar}" for jar in sorted(Path(JOB["jars"]).glob("*.jar"))),
    "parallelism.default": "2",
    "execution.checkpointing.interval": JOB["checkpoint"],
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.storage": "filesystem",
    "execution.checkpointing.dir": f"file://{JOB['state']}",
    "state.backend.type": "hashmap",
    "execution.buffer-timeout.interval": "1 ms",
    "pipeline.auto-watermark-interval": "10 ms",
    "table.exec.source.idle-timeout": JOB["idle"] if JOB["kind"] == "join" else "0 ms",
    "rest.port": "0",
}
CLUSTER = f"'properties.bootstrap.servers'='{JOB['bootstrap']}'"
FORMAT = "'connector'='kafka', 'format'='json'"
UPSERTS = "'connector'='upsert-kafka', 'key.format'='json', 'value.format'='json'"
SINK = f"""{UPSERTS if JOB["kind"] == "view" else FORMAT}, 'topic'='{JOB["results"]}', {CLUSTER},
    'properties.linger.ms'='1', 'sink.delivery-guarantee'='{JOB["guarantee"]}'"""
if JOB["guarantee"] == "exactly-once":
    SINK += f""", 'sink.transactional-id-prefix'='{JOB["results"]}',
    'properties.transaction.timeout.ms'='600000'"""

EVENTS = f"""
CREATE TABLE events (eid BIGINT, k BIGINT, v BIGINT, `at` BIGINT, ts AS TO_TIMESTAMP_LTZ(`at`, 3),
    WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND)
WITH ('connector'='kafka', 'topic'='{JOB["events"]}', {CLUSTER}, 'format'='json',
    'properties.group.id'='{JOB["results"]}', 'properties.isolation.level'='read_committed',
    'scan.startup.mode'='earliest-offset')"""
TABLE = f"""
CREATE TABLE customers (k BIGINT, name STRING, tier BIGINT,
    ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp', WATERMARK FOR ts AS ts,
    PRIMARY KEY (k) NOT ENFORCED)
WITH ('connector'='upsert-kafka', 'topic'='{JOB["table"]}', {CLUSTER},
    'key.format'='json', 'value.format'='json')"""
ORDERS = f"""
CREATE TABLE orders (id BIGINT, customer_id BIGINT, amount BIGINT, PRIMARY KEY (id) NOT ENFORCED)
WITH ({UPSERTS}, 'topic'='{JOB["events"]}', {CLUSTER})"""
CUSTOMERS = f"""
CREATE TABLE customers (id BIGINT, country STRING, PRIMARY KEY (id) NOT ENFORCED)
WITH ({UPSERTS}, 'topic'='{JOB["table"]}', {CLUSTER})"""
TABLES = {
    "map": [EVENTS],
    "window": [EVENTS],
    "match": [EVENTS],
    "join": [EVENTS, TABLE],
    "view": [ORDERS, CUSTOMERS],
}
COLUMNS = {
    "map": "eid BIGINT, k BIGINT, v BIGINT",
    "window": "k BIGINT, w BIGINT, n BIGINT, s BIGINT",
    "match": "k BIGINT, ordered BIGINT, paid BIGINT",
    "join": "eid BIGINT, k BIGINT, v BIGINT, name STRING, tier BIGINT",
    "view": "country STRING, orders BIGINT, total BIGINT, PRIMARY KEY (country) NOT ENFORCED",
}
if JOB["mini_batch"]:
    SETTINGS |= {
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": JOB["mini_batch"],
        "table.exec.mini-batch.size": "5000",
    }
WINDOW_MS = JOB["window_s"] * 1000
TIER = "" if JOB["tier"] is None else f"WHERE c.tier = {JOB['tier']}"
QUERIES = {
    "map": "SELECT eid, k, v * 2 FROM events WHERE MOD(v, 4) <> 0",
    # `at` of any event of the window gives its start, as milliseconds.
    "window": f"""SELECT k, MAX(`at`) / {WINDOW_MS} * {WINDOW_MS}, COUNT(*), SUM(v)
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '{JOB["window_s"]}' SECOND))
        GROUP BY k, window_start, window_end""",
    "match": """SELECT k, ordered, paid FROM events MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts
        MEASURES ORDERED.eid AS ordered, PAID.eid AS paid
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
        PATTERN (ORDERED X*? SHIPPED Y*? PAID) WITHIN INTERVAL '1' HOUR
        DEFINE ORDERED AS ORDERED.v = 0, SHIPPED AS SHIPPED.v = 2, PAID AS PAID.v = 4)""",
    "join": f"""SELECT e.eid, e.k, e.v, c.name, c.tier FROM events e
        LEFT JOIN customers FOR SYSTEM_TIME AS OF e.ts AS c ON e.k = c.k {TIER}""",
    "view": """SELECT c.country, COUNT(*), SUM(o.amount)
        FROM orders o JOIN customers c ON o.customer_id = c.id GROUP BY c.country""",
}


def main() -> None:
    configuration = Configuration()
    for name, value in SETTINGS.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    flink = TableEnvironment.create(settings.with_configuration(configuration).build())
    for table in TABLES[JOB["kind"]]:
        flink.execute_sql(table)
    flink.execute_sql(f"CREATE TABLE results ({COLUMNS[JOB['kind']]}) WITH ({SINK})")
    flink.execute_sql(f"INSERT INTO results {QUERIES[JOB['kind']]}").wait()


if __name__ == "__main__":
    main()
