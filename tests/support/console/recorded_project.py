"""A project as its processes have left it, without Spark and without a database: records and
positions in the log, status files beside the checkpoints, a SQLite store at some position.
"""

import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.capture import positions
from headwater.capture.contract import Column, Lag, SchemaChange, SourcePosition, Table
from headwater.capture.positions import CapturePosition, Failure, SnapshotState, TableState
from headwater.capture.records import schema_topic
from headwater.events import Event, open_store
from headwater.pipelines.running import status
from headwater.settings import Secret
from headwater.sinks.contract import Batch, Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of
from headwater.supervisor import status_file as supervisor
from headwater.supervisor.lock import Lock
from headwater.supervisor.status_file import SupervisorStatus

ORDERS, ITEMS = "shop.main.orders", "shop.main.items"
RECORDS = 100
_BANK = Path(__file__).parents[3] / "examples" / "bank" / "bank.py"
COLUMNS = (Column("id", "INTEGER", False), Column("product", "TEXT", True))
FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("product", pa.string())])


class RecordedProject:
    def __init__(self, directory, bootstrap):
        self.directory = directory
        self.bootstrap = bootstrap
        self.state_dir = directory / "data" / "pipelines"
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._write_config()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = {"cleanup.policy": "compact"}
        new = [
            NewTopic(ORDERS, 1),
            NewTopic(ITEMS, 1),
            NewTopic("shop.schema", 1),
            NewTopic(positions.TOPIC, 1, config=config),
        ]
        for made in admin.create_topics(new).values():
            made.result(60)
        for number in range(RECORDS):
            self._producer.produce(ORDERS, key=b"%d" % number, value=b'{"id": %d}' % number)
        assert self._producer.flush(60) == 0

    def _write_config(self):
        (self.directory / "headwater.toml").write_text(
            f"""
            [broker]
            bootstrap = "{self.bootstrap}"
            data_dir = "data"
            [capture.shop]
            source = "sqlite:///{self.directory}/shop.db"
            tables = ["main.*"]
            [sink.cache]
            kind = "sqlite"
            url = "sqlite:///{self.directory}/cache.db"
            [pipeline.orders]
            file = "orders.py"
            [pipeline.idle]
            file = "idle.py"
            [events]
            store = "sqlite:///{self.directory}/events.db"
            [events.deciders]
            account = "{_BANK}:Account"
            """
        )

    def events(self):
        """Appends to an event store, as an application does."""
        with open_store(f"sqlite:///{self.directory}/events.db") as store:
            account = {"account": "eva"}
            opened = Event("Opened", account, ["branch:7", "owner:eva"], {"by": "otto"})
            store.append("account-eva", [opened])
            for amount in (100, 20, 3):
                store.append("account-eva", [Event("Deposited", {**account, "amount": amount})])

    def capture(self, *, lag_bytes=0, failed=True, has_ended=False):
        """Stores where the capture is, as its process does."""
        stored = CapturePosition(
            SourcePosition({"id": 7}, None),
            ts_ms=1_763_222_400_000,
            # Ahead: however long the tests take, this capture does not become silent.
            written_ms=int((time.time() + 3600) * 1000),
            has_ended=has_ended,
            lag=Lag(lag_bytes, 4096),
        )
        orders = Table("main", "orders", COLUMNS, ("id",))
        items = Table("main", "items", COLUMNS, ())
        failure = Failure("items has no key", "it was dropped", "give it a primary key")
        self.produce(
            positions.TOPIC,
            (positions.key_of("shop"), positions.encode_capture(stored)),
            (
                positions.key_of("shop", "main.orders"),
                positions.encode_table(
                    TableState(orders, SnapshotState("true", None, 40, 160, is_done=False))
                ),
            ),
            (
                positions.key_of("shop", "main.items"),
                positions.encode_table(TableState(items, None, failure if failed else None)),
            ),
        )
        key, value = schema_topic.record(
            SchemaChange("main.orders", orders, "ALTER TABLE orders ADD product TEXT"),
            orders,
            orders,
            {"db": "shop", "schema": "main"},
            1_763_222_400_000,
            is_new=False,
        )
        self.produce("shop.schema", (key, value))

    def produce(self, topic, *records):
        for key, value in records:
            self._producer.produce(topic, key=key, value=value)
        assert self._producer.flush(60) == 0

    def pipeline(self, *, read=60, **reported):
        """Its process is this one: it holds the lock until `ended`."""
        about = {
            "sink": "cache",
            "table": "orders",
            "key": ["id"],
            "options": {},
            "topics": [ORDERS],
            "state": "running",
            "error": None,
            "hint": "",
            "batch": 7,
            "rows": 20,
            "rows_per_s": 80.0,
            "batch_ms": 250,
            "store_ms": 200,
            "at": "2026-11-16T02:51:22.842Z",
            "operators": {
                "tumbling-1": {
                    "state_rows": 27,
                    "state_bytes": 17_664,
                    "watermark_us": int((time.time() - 90) * 1e6),
                    "slowest": {"name": "partition 3 of clicks", "behind_s": 75.0},
                    "events": 500,
                    "late": 3,
                    "late_share": 0.006,
                    "late_alert": False,
                }
            },
            **reported,
        }
        status.starting(self.state_dir, "orders")
        status._written.clear()  # it is written once a second at most
        status.write(self.state_dir, "orders", {"cache/orders": about})
        status.write_plan(self.state_dir, "orders", "cache/orders", "== Physical Plan ==\nScan")
        self.apply(read)

    def apply(self, read):
        """The store is at this offset."""
        url = f"sqlite:///{self.directory}/cache.db"
        store = store_of(
            SinkSettings("cache", kind="sqlite", url=Secret(url)),
            Target("orders/cache/orders", "orders", ("id",)),
            Log(self.bootstrap),
        )
        try:
            with store.writer(1, FIELDS) as writer:
                at = writer.position
                starts = at.offsets if at else {}
                rows = pa.table({"id": [read], "product": ["lamp"]}, schema=FIELDS)
                ends = {ORDERS: {0: read}}
                writer.apply(Batch("q", at.batch + 1 if at else 0, starts, ends, rows))
        finally:
            store.close()

    def ended(self):
        status.ended(self.state_dir, "orders")

    @contextmanager
    def supervised(self, *children):
        """The status that `headwater up` writes while it runs."""
        data_dir = self.directory / "data"
        lock = Lock.take(data_dir, wait_s=0)
        try:
            supervisor.write(
                data_dir, SupervisorStatus(1, 0.0, stopping=False, children=list(children))
            )
            yield
        finally:
            lock.release()
            (data_dir / supervisor.FILE_NAME).unlink()
