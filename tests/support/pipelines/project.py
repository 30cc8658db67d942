"""A project in a directory: headwater.toml, pipelines, SQLite as the store; and who runs it."""

import faulthandler
import json
import sqlite3
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater import config
from headwater.inspect.pipelines import load_pipelines
from headwater.pipelines.offsets import ends_of, has_reached
from headwater.pipelines.running.loaded_pipeline import Pipeline
from headwater.pipelines.running.rebuilding import versions_of
from headwater.pipelines.running.runner import Runner
from support.polling import polled


class Project:
    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self.store = directory / "store.db"
        self._sections = [
            f'[broker]\nbootstrap = "{bootstrap}"\ndata_dir = "data"',
            f'[sink.cache]\nkind = "sqlite"\nurl = "sqlite:///{self.store}"',
        ]
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.write_config()

    @property
    def file(self) -> Path:
        return self.directory / "headwater.toml"

    @property
    def state_dir(self) -> Path:
        return self.directory / "data" / "pipelines"

    def section(self, text: str) -> None:
        self._sections.append(textwrap.dedent(text))
        self.write_config()

    def pipeline(self, name: str, body: str, **settings: str) -> None:
        """`body` are the lines of its function."""
        source = "import headwater as hw\nfrom pyspark.sql import functions as F\n\n"
        source += f"@hw.pipeline\ndef {name}(flow: hw.Flow) -> None:\n"
        source += textwrap.indent(textwrap.dedent(body), "    ")
        (self.directory / f"{name}.py").write_text(source)
        lines = [f'[pipeline.{name}]\nfile = "{name}.py"']
        lines += [f'{key} = "{value}"' for key, value in settings.items()]
        if "\n".join(lines) not in self._sections:
            self.section("\n".join(lines))

    def write_config(self) -> None:
        self.file.write_text("\n".join(self._sections) + "\n")

    def topic(self, name: str, partitions: int = 1) -> str:
        self._admin.create_topics([NewTopic(name, partitions)])[name].result()
        return name

    def produce(self, topic: str, *rows: dict | None, key: str = "id") -> None:
        """Rows as JSON; {"id": 1, "_deleted": True} is a tombstone."""
        for row in rows:
            is_deleted = row.pop("_deleted", False)
            self._producer.produce(
                topic,
                key=json.dumps({key: row[key]}).encode(),
                value=None if is_deleted else json.dumps(row).encode(),
            )
        self._producer.flush()

    def produce_bytes(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        self._producer.produce(topic, key=key, value=value)
        self._producer.flush()

    def config(self) -> config.Config:
        return config.load(path=str(self.file), environ={})

    def pipelines(self, spark, *names: str) -> list[Pipeline]:
        return load_pipelines(self.config(), lambda: spark, list(names))

    @contextmanager
    def running(self, spark, *names: str) -> Iterator[Runner]:
        runner = Runner(self.pipelines(spark, *names))
        thread = threading.Thread(target=runner.run, name="runner")
        thread.start()
        try:
            yield runner
        finally:
            runner.stop.set()
            thread.join()

    def wait_until_at_end(self, spark, topic: str, *names: str) -> None:
        """All writes of the pipelines have what the topic has now."""
        pipelines = self.pipelines(spark, *names)
        ends = ends_of(pipelines[0].environment.log, [topic])
        for pipeline in pipelines:
            for write in pipeline.flow().writes:
                what = f"the end of {write.name}"
                wait_for(lambda p=pipeline, w=write: is_at(p, w, ends), what, 240)

    def rows(self, query: str) -> list[tuple]:
        """[] as long as the table is not there."""
        connection = sqlite3.connect(self.store, timeout=60)
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()

    def execute(self, statement: str) -> None:
        connection = sqlite3.connect(self.store, timeout=60)
        with connection:
            connection.execute(statement)
        connection.close()


def is_at(pipeline, write, ends) -> bool:
    live = [version for version in versions_of(pipeline, write) if version.is_live]
    return bool(live) and has_reached(live[0].position, ends)


def wait_for(condition, what: str, timeout_s: float = 120.0):
    """What `condition` returned, once that is true."""
    found = polled(condition, timeout_s, pause_s=0.05)
    if not found:
        faulthandler.dump_traceback()  # what the threads of the pipelines wait for
    assert found, f"{what} has not happened for {timeout_s:g} s"
    return found
