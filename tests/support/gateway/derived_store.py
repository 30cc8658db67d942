"""A pipeline's table in SQLite as its process has left it, without Spark."""

import pyarrow as pa

from headwater.pipelines.running import status
from headwater.settings import Secret
from headwater.sinks.contract import Batch, Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

FIELDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("total", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)


class DerivedStore:
    """The table `orders` of the sink `cache`, derived from one topic; and `pairs` with two columns
    as its key.
    """

    def __init__(self, directory, topic):
        self.topic = topic
        self.directory = directory
        (directory / "headwater.toml").write_text(
            f"""
            [sink.cache]
            kind = "sqlite"
            url = "sqlite:///{directory}/cache.db"
            [pipeline.orders]
            file = "orders.py"
            """
        )
        about = {"sink": "cache", "options": {}, "topics": [topic], "state": "running"}
        state_dir = directory / ".headwater" / "pipelines"
        status.starting(state_dir, "orders")
        status._written.clear()  # it is written once a second at most
        status.write(
            state_dir,
            "orders",
            {
                "cache/orders": {**about, "table": "orders", "key": ["id"]},
                "cache/pairs": {**about, "table": "pairs", "key": ["id", "city"]},
            },
        )
        status.ended(state_dir, "orders")

    def apply(self, rows, end, table="orders", key=("id",)):
        """The store is at this offset of partition 0."""
        settings = SinkSettings(
            "cache", kind="sqlite", url=Secret(f"sqlite:///{self.directory}/cache.db")
        )
        target = Target(f"orders/cache/{table}", table, key)
        store = store_of(settings, target, Log("127.0.0.1:1"))
        try:
            with store.writer(1, FIELDS) as writer:
                at = writer.position
                starts = at.offsets if at else {}
                number = at.batch + 1 if at else 0
                ends = {self.topic: {0: end}}
                writer.apply(Batch("q", number, starts, ends, pa.Table.from_pylist(rows, FIELDS)))
        finally:
            store.close()
