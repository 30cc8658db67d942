"""Spark and a store that can be killed, lost and set back in microseconds: what they note and when
is as in the real ones, all else is left out.

The pipeline counts the records of each key, so a batch needs the state that the one before it left.
"""

import shutil
import uuid
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.errors import Fenced, StoreRefused
from headwater.pipelines.flow import Write
from headwater.sinks.contract import Contents, Store, Version, Writer, is_applied

TOPIC = "events"


class Killed(BaseException):
    """The process was killed."""


class MemoryStore(Store):
    """A store by its contract; `trouble` is called where a real one would use the network."""

    def __init__(self):
        self.stored = {}  # version to {"epoch", "position", "rows", "fields"}
        self.live = 1
        self.trouble = lambda step: None

    def check(self):
        return

    def versions(self):
        return [
            Version(number, number == self.live, stored["position"], stored["fields"])
            for number, stored in sorted(self.stored.items())
        ]

    def writer(self, version, fields):
        self.trouble("open")
        new = {"epoch": 0, "position": None, "rows": {}, "fields": fields}
        stored = self.stored.setdefault(version, new)
        stored["epoch"] += 1
        return _MemoryWriter(self, version, stored["epoch"])

    def promote(self, version):
        self.trouble("promote")
        self.live = version

    def drop(self, version):
        if version == self.live:
            raise StoreRefused("it is live")
        del self.stored[version]

    @contextmanager
    def read(self, version):
        yield Contents(self.stored[version]["position"], iter(()))


class _MemoryWriter(Writer):
    def __init__(self, store, version, epoch):
        self._store, self._version, self._epoch = store, version, epoch
        self.position = store.stored[version]["position"]

    def apply(self, batch, refuse=None):
        self._store.trouble("apply")
        stored = self._store.stored.get(self._version)
        if stored is None or stored["epoch"] != self._epoch:
            raise Fenced("another writer has taken over")
        if not is_applied(stored["position"], batch):
            rows = {row["key"]: row["count"] for row in batch.rows.to_pylist()}
            stored["rows"] = stored["rows"] | rows
            stored["position"] = batch.position()
        self.position = stored["position"]
        self._store.trouble("applied")

    def close(self):
        return


class Frame:
    """Both the frame that is written and what makes a query of it."""

    schema = StructType([StructField("key", StringType()), StructField("count", LongType())])

    def __init__(self, log, trouble=lambda step: None, most=3):
        self.log, self.trouble, self.most = log, trouble, most

    @property
    def writeStream(self):  # noqa: N802
        return self

    def queryName(self, name):  # noqa: N802
        return self

    def outputMode(self, mode):  # noqa: N802
        return self

    def option(self, name, value):
        self.path = Path(value)
        return self

    def foreachBatch(self, function):  # noqa: N802
        self.function = function
        return self

    def start(self):
        return Query(self)


class Query:
    """One run over a checkpoint. `step` is one batch, if there is something to read."""

    lastProgress = None  # noqa: N815

    def __init__(self, frame):
        self._frame, self._path, self._function = frame, frame.path, frame.function
        self.isActive = True
        self.error = None
        for name in ("offsets", "commits", "state"):
            (self._path / name).mkdir(parents=True, exist_ok=True)
        if not (self._path / "metadata").exists():
            (self._path / "metadata").write_bytes(orjson.dumps({"id": str(uuid.uuid4())}))

    def step(self):
        """Whether there was anything to do."""
        frame = self._frame
        begun, done = self._last("offsets"), self._last("commits")
        batch = done + 1
        start = self._end(done)
        if begun == done:
            end = 0 if batch == 0 else min(start + frame.most, len(frame.log))
            if batch and end == start:
                return False
            offsets_text = orjson.dumps({TOPIC: {"0": end}}).decode()
            (self._path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offsets_text}")
        try:
            frame.trouble("begun")
            state = Counter()
            if batch:
                state.update(orjson.loads((self._path / "state" / str(done)).read_bytes()))
            read = frame.log[start : self._end(batch)]
            state.update(read)
            rows = [{"key": key, "count": state[key]} for key in dict.fromkeys(read)]
            self._function(_Rows(rows), batch)
            (self._path / "state" / str(batch)).write_bytes(orjson.dumps(state))
            frame.trouble("computed")
            (self._path / "commits" / str(batch)).write_text("v1\n{}")
        except Exception as error:
            self.error, self.isActive = error, False
            raise
        return True

    def stop(self):
        self.isActive = False

    def exception(self):
        return self.error

    def _last(self, name):
        return max((int(path.name) for path in (self._path / name).iterdir()), default=-1)

    def _end(self, batch):
        if batch < 0:
            return 0
        text = (self._path / "offsets" / str(batch)).read_text()
        return orjson.loads(text.splitlines()[2])[TOPIC]["0"]


class _Rows:
    def __init__(self, rows):
        self._rows = rows

    def toArrow(self):  # noqa: N802
        schema = pa.schema([("key", pa.string()), ("count", pa.int64())])
        return pa.Table.from_pylist(self._rows, schema)


def write_of(frame, topics=(TOPIC,)):
    return Write(frame, "topic", "counts", ("key",), "update", {}, topics)


def right_rows(log, position):
    return dict(Counter(log[: position.offsets[TOPIC][0]])) if position else {}


def copied(directory, to):
    shutil.rmtree(to, ignore_errors=True)
    if directory.exists():
        shutil.copytree(directory, to)
