"""What a micro-batch costs that has next to nothing to do: with Spark as it is, and with hw.spark.

Each in a process of its own (`python -m bench.micro_batches spark|headwater`), for a process has
one Spark. Ten rows a batch, one batch after the other.
"""

import statistics
import subprocess
import sys
import tempfile
import time

import orjson

from bench.clients.rdkafka import LoadFailedError
from bench.peers import headwater, spark
from bench.peers.provision import WORK
from bench.rounds import Figures, Measured, alternate

_WARM_UP, _BATCHES = 40, 60  # Spark remembers 100
_LONGEST_S = 60
_TIMEOUT_S = 300


def floors(rounds: int, figures: Figures) -> None:
    turns = {headwater.NAME: _in_process("headwater"), spark.NAME: _in_process("spark")}
    alternate(turns, rounds, figures)


def _in_process(session: str):
    def run() -> Measured:
        command = [sys.executable, "-m", "bench.micro_batches", session]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
            )
        except subprocess.CalledProcessError as failed:
            raise LoadFailedError(failed.stderr[-3000:]) from None
        except subprocess.TimeoutExpired:
            raise LoadFailedError(f"not done in {_TIMEOUT_S} s") from None
        return orjson.loads(done.stdout.splitlines()[-1])

    return run


def _session(name: str):
    if name == "headwater":
        import headwater as hw

        return hw.spark("bench", "local[2]")
    from pyspark.sql import SparkSession

    # Its default of 200 for the second query would take seconds.
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def _floor_ms(session, shape, mode: str) -> float:
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    with tempfile.TemporaryDirectory(dir=WORK) as checkpoint:
        query = (
            shape(rows)
            .writeStream.format("noop")
            .outputMode(mode)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        deadline_s = time.monotonic() + _LONGEST_S
        while query.isActive and time.monotonic() < deadline_s:
            if (query.lastProgress or {}).get("batchId", 0) >= _WARM_UP + _BATCHES:
                break
            time.sleep(0.1)
        progress = query.recentProgress[_WARM_UP:]
        query.stop()
    assert len(progress) >= _BATCHES // 2, f"{len(progress)} batches in {_LONGEST_S} s"
    return statistics.median(batch["durationMs"]["triggerExecution"] for batch in progress)


def main() -> None:
    session = _session(sys.argv[1])
    found = {
        "a micro-batch of 10 rows, ms": _floor_ms(session, lambda rows: rows, "append"),
        "a micro-batch of 10 rows with a count per key, ms": _floor_ms(
            session, lambda rows: rows.selectExpr("value % 10 AS k").groupBy("k").count(), "update"
        ),
    }
    session.stop()
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main()
