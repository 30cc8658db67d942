"""Segments: parts of a plan that Spark evaluates in the driver's JVM, over the rows of one batch.

Rows go there and back as Arrow over a Unix socket (java/SegmentServer.java). A segment that only
chooses columns does not leave Python.
"""

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.pipelines.operators.runtime.packing import NOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REQUEST: Final = struct.Struct(">iqi")
_SIZE: Final = struct.Struct(">i")
_RESPONSE: Final = struct.Struct(">bi")
_TIME: Final = pa.timestamp("us", "UTC")
_SERVER: Final = "_headwater_segments"  # attribute of a Spark session
_starting = threading.Lock()


class SegmentFailed(Exception):
    """Spark could not evaluate the rows; its text is Java's stack trace."""


class Segments:
    """The segments of one Spark session. Each thread has a connection of its own."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        self._directory = Path(tempfile.mkdtemp(prefix="headwater-segments-"))  # private: 0700
        path = str(self._directory / "socket")
        self._server: Any = spark._jvm.headwater.pipelines.SegmentServer(path)  # type: ignore[union-attr]  # noqa: SLF001
        self._path = path
        self._connections = threading.local()
        # With the JVM, which also ends if this process is killed. The last one is deleted first.
        for name in (str(self._directory), path):
            spark._jvm.java.io.File(name).deleteOnExit()  # type: ignore[union-attr]  # noqa: SLF001

    def add(self, plan: Any, inputs: Sequence[Any], schema: StructType) -> "Segment":
        """`plan` is a plan of Spark's, `inputs` those of its nodes that rows are given for."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        nodes = jvm.java.util.ArrayList()
        for node in inputs:
            nodes.add(node)
        made = jvm.headwater.pipelines.LocalSegment(
            self._spark._jsparkSession,  # noqa: SLF001
            plan,
            nodes,
            NOW,
        )
        columns = made.columns()
        return Segment(
            self,
            self._server.add(made),
            to_arrow_schema(schema, timezone="UTC"),
            list(columns) if columns is not None else None,
            made.explain(),
        )

    def remove(self, segment: int) -> None:
        self._server.remove(segment)

    def run(self, segment: int, given: Sequence[pa.Table], now_ms: int) -> pa.Table:
        """Raises SegmentFailed, or OSError if the JVM has ended."""
        connection, answers = self._connection()
        message = [_REQUEST.pack(segment, now_ms, len(given))]
        for rows in given:
            stream = _to_bytes(rows)
            message += [_SIZE.pack(len(stream)), stream]
        try:
            connection.sendall(b"".join(message))
            status, size_bytes = _RESPONSE.unpack(_exactly(answers, _RESPONSE.size))
            answer = _exactly(answers, size_bytes)
        except OSError:
            self.disconnect()
            raise
        if status:
            raise SegmentFailed(answer.decode())
        return pa.ipc.open_stream(answer).read_all()

    def _connection(self) -> tuple[socket.socket, BinaryIO]:
        opened: tuple[socket.socket, BinaryIO] | None = getattr(self._connections, "opened", None)
        if opened is None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            opened = connection, connection.makefile("rb")
            self._connections.opened = opened
        return opened

    def disconnect(self) -> None:
        """The connection of this thread."""
        opened: tuple[socket.socket, BinaryIO] | None = getattr(self._connections, "opened", None)
        if opened is not None:
            opened[1].close()
            opened[0].close()
            del self._connections.opened


class Segment:
    """One of them: rows of its inputs to rows of its output."""

    def __init__(
        self,
        segments: Segments,
        number: int,
        fields: pa.Schema,
        columns: list[int] | None,
        plan: str,
    ) -> None:
        self._segments = segments
        self._number = number
        self._fields = fields
        self._columns = columns  # of its only input, if it only chooses; -1 is the batch's time
        self.plan = plan

    def run(self, given: Sequence[pa.Table], now_ms: int) -> pa.Table:
        """The rows come in the order of the inputs and of their rows."""
        if not any(map(len, given)):
            return self._fields.empty_table()
        if self._columns is None:
            rows = self._segments.run(self._number, given, now_ms)
            arrays = rows.columns
        else:
            (only,) = given
            arrays = [only.column(max(at, 0)) for at in self._columns]
        if NOW in self._fields.names:
            times = pa.repeat(pa.scalar(now_ms * 1000, _TIME), len(arrays[0]))
            arrays[self._fields.get_field_index(NOW)] = times
        return pa.table(
            [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, self._fields, strict=True)
            ],
            schema=self._fields,
        )

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the JVM may have ended
            self._segments.remove(self._number)


def segments_of(spark: "SparkSession") -> Segments:
    """Those of the session; started with the first call."""
    with _starting:
        context = spark.sparkContext
        found: Segments | None = getattr(context, _SERVER, None)
        if found is None:
            found = Segments(spark)
            setattr(context, _SERVER, found)
        return found


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _exactly(stream: BinaryIO, size_bytes: int) -> bytes:
    found = stream.read(size_bytes)
    if len(found) < size_bytes:
        raise ConnectionError("Spark's JVM has ended")
    return found
