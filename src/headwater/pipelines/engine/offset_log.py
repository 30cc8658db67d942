"""The offset log of a write that runs in the driver: the same files as Spark writes.

    offsets/<batch>   before the batch runs: its time, and where each source ends
    commits/<batch>   when it is done

So a write can go on in the driver where a streaming query has stopped, and the other way round.
"""

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.errors import PipelineError
from headwater.log.disk.files import Files
from headwater.pipelines.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VERSION: Final = "v1"
_COMMIT: Final = b'v1\n{"nextBatchWatermarkMs":0}'
_RETAINED: Final = 100  # as Spark does


@dataclass(frozen=True)
class PlannedBatch:
    """A batch whose offsets are recorded."""

    number: int
    now_ms: int
    ends: list[dict[str, Any]]  # of each distinct source


class OffsetLog:
    """The offset log of one checkpoint. The caller has locked it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        spark: "SparkSession",
        slots: Sequence[int],
        *,
        files: Files | None = None,
    ) -> None:
        """`slots`: the source of each stream of the plan (local_plan.py)."""
        self._path = checkpoint.path
        self._slots = slots
        self._files = files or Files()
        self._metadata = _metadata(spark)

    def begin(self) -> None:
        """Creates the log, if there is none."""
        for name in ("offsets", "commits"):
            (self._path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self._path / "metadata").exists():
            self._files.write_atomically(
                str(self._path / "metadata"), orjson.dumps({"id": str(uuid.uuid4())})
            )
            self._files.sync_directory(str(self._path.parent))

    def last(self) -> PlannedBatch | None:
        """The newest batch that is recorded."""
        numbers = _numbers(self._path / "offsets")
        return self.read(max(numbers)) if numbers else None

    def read(self, number: int) -> PlannedBatch:
        path = self._path / "offsets" / str(number)
        try:
            _, metadata, *sources = path.read_text().splitlines()
            ends = [{} if source == "-" else json.loads(source) for source in sources]
            by_source = dict(zip(self._slots, ends, strict=True))
            return PlannedBatch(
                number,
                json.loads(metadata)["batchTimestampMs"],
                [by_source[source] for source in sorted(by_source)],
            )
        except (OSError, ValueError, KeyError) as error:
            raise PipelineError(
                "the checkpoint cannot be read", detail=f"{path}: {error}"
            ) from error

    def is_committed(self, number: int) -> bool:
        return (self._path / "commits" / str(number)).exists()

    def plan(self, batch: PlannedBatch) -> None:
        """Durable when it returns."""
        metadata = json.dumps({**self._metadata, "batchTimestampMs": batch.now_ms})
        lines = [_VERSION, metadata, *(json.dumps(batch.ends[slot]) for slot in self._slots)]
        path = self._path / "offsets" / str(batch.number)
        self._files.write_atomically(str(path), "\n".join(lines).encode())

    def commit(self, number: int) -> None:
        """Durable when it returns: state before the batch may be removed from then on, and Spark
        does not start from an empty file.
        """
        path = self._path / "commits" / str(number)
        self._files.write_atomically(str(path), _COMMIT)
        for name in ("offsets", "commits"):
            old = self._path / name / str(number - _RETAINED)
            old.unlink(missing_ok=True)


def _metadata(spark: "SparkSession") -> dict[str, Any]:
    """What Spark records with each batch: the settings that later batches must share."""
    jvm: Any = spark._jvm  # noqa: SLF001
    package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    found = package.OffsetSeqMetadata.apply(0, 0, spark._jsparkSession.conf())  # noqa: SLF001
    metadata: dict[str, Any] = json.loads(found.json())
    # Spark refuses to read settings without a value.
    metadata["conf"] = {key: value for key, value in metadata["conf"].items() if value is not None}
    return metadata


def _numbers(directory: Path) -> list[int]:
    if not directory.exists():
        return []
    return [int(name) for name in os.listdir(directory) if name.isdigit()]
