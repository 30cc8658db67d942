"""Rebuilds of a store from a topic: through the driver, and staged by tasks.

    python -m bench.rebuilds --rows 5000000 --sink postgres --batch-rows 1000000

A topic of two partitions with rows as JSON, `headwater pipeline rebuild` as a user runs it, on
local[2]. Rows a second are from the start of the first batch to the end of the command; memory is
the peak of the Python driver, and that of the JVM (driver and executors in one, if local).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer

from bench.clients.rdkafka import create_topics
from bench.peers.headwater import headwater
from bench.peers.postgres import postgres
from bench.rounds import data_directory
from headwater.cli import main as headwater_main
from headwater.pipelines.running import staging_tasks
from headwater.pipelines.running.batch_applier import BatchApplier

NEVER = 1 << 60
SCHEMA = "id bigint, customer bigint, name string, email string, total double, price decimal(12,2)"
PIPELINE = """
import headwater as hw

@hw.pipeline
def copies(flow: hw.Flow) -> None:
    flow.write(flow.changes("orders", "{schema}"), to="{sink}", table="copied"{key})
"""
TOML = """
[broker]
bootstrap = "{bootstrap}"
data_dir = "{directory}/project"
[spark]
master = "local[2]"
driver_memory = "{memory}"
[sink.store]
kind = "{kind}"
url = "{url}"
[pipeline.copies]
file = "copies.py"
batch_rows = "{batch_rows}"
batch_bytes = "4GiB"
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--batch-rows", type=int, default=1_000_000)
    parser.add_argument("--sink", choices=("postgres", "delta", "topic"), default="postgres")
    parser.add_argument("--no-key", action="store_true")
    parser.add_argument("--again", action="store_true", help="each key twice: half are updates")
    parser.add_argument("--memory", default="2g", help="of the JVM")
    parser.add_argument("--ways", default="driver,staged")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "CONFIG"))
    options = parser.parse_args()
    if options.child:
        _rebuild(*options.child)
        return
    with data_directory() as directory, headwater(directory / "broker") as broker:
        create_topics(broker.address, "orders", partitions=2)
        _produce(broker.address, options.rows, options.rows // 2 if options.again else options.rows)
        with postgres(directory) as server:
            for way in options.ways.split(","):
                config = _project(directory / way, options, broker.address, server.url)
                command = [sys.executable, "-m", "bench.rebuilds", "--child", way, str(config)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{way:8} failed: {done.stderr[-2000:]}", flush=True)
                    continue
                found = json.loads(done.stdout.splitlines()[-1])
                rate = options.rows / found["took_s"]
                print(
                    f"{way:8} {rate:12,.0f} rows/s  {found['took_s']:6.1f} s  driver"
                    f" {found['driver_mib']:6,.0f} MiB  JVM {found['jvm_mib']:6,.0f} MiB"
                    f"  staged {found['staged']} of {found['batches']} batches",
                    flush=True,
                )


def _produce(address: str, rows: int, keys: int) -> None:
    settings = {"bootstrap.servers": address, "linger.ms": 50, "compression.type": "lz4"}
    producer = Producer(settings)
    for number in range(rows):
        id_ = number * 7_919 % keys  # in no order
        row = (
            f'{{"id":{id_},"customer":{id_ // 7},"name":"customer {id_}",'
            f'"email":"{id_}@example.org","total":{number / 4},"price":"{id_ % 10_000}.25"}}'
        )
        while True:
            try:
                producer.produce("orders", row, str(id_), partition=id_ % 2)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(60)


def _project(
    directory: Path, options: argparse.Namespace, bootstrap: str, postgres_url: str
) -> Path:
    directory.mkdir()
    urls = {"postgres": postgres_url, "delta": str(directory / "lake"), "topic": ""}
    sink = "topic" if options.sink == "topic" else "store"
    kind = "postgres" if options.sink == "topic" else options.sink
    key = "" if options.no_key else ', key="id"'
    source = PIPELINE.format(schema=SCHEMA, sink=sink, key=key)
    name = f"copied_{directory.name}"
    (directory / "copies.py").write_text(source.replace('"copied"', f'"{name}"'))
    config = directory / "headwater.toml"
    config.write_text(
        TOML.format(
            bootstrap=bootstrap,
            directory=directory,
            memory=options.memory,
            kind=kind,
            url=urls[options.sink] or postgres_url,
            batch_rows=options.batch_rows,
        )
    )
    return config


def _rebuild(way: str, config: str) -> None:
    staging_tasks._FEWEST_RECORDS = 0 if way == "staged" else NEVER  # type: ignore[misc]  # noqa: SLF001
    began_s: list[float] = []
    staged: list[bool] = []
    jvm_mib = 0.0
    run, is_staged = BatchApplier.run, BatchApplier._is_staged  # noqa: SLF001

    def timed(applier: BatchApplier, *given: object) -> None:
        nonlocal jvm_mib
        began_s.append(time.monotonic())
        run(applier, *given)  # type: ignore[arg-type]
        jvm_mib = max(jvm_mib, _jvm_mib())

    def counted(applier: BatchApplier, *given: object) -> bool:
        staged.append(is_staged(applier, *given))  # type: ignore[arg-type]
        return staged[-1]

    BatchApplier.run, BatchApplier._is_staged = timed, counted  # type: ignore[method-assign] # noqa: SLF001
    code = headwater_main.run(["pipeline", "rebuild", "copies", "--config", config])
    took_s = time.monotonic() - began_s[0]
    if code:
        sys.exit(code)
    measured = {
        "took_s": took_s,
        "driver_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "jvm_mib": jvm_mib,
        "staged": sum(staged),
        "batches": len(began_s),
    }
    print(json.dumps(measured))


def _jvm_mib() -> float:
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    with closing(Path(f"/proc/{gateway.proc.pid}/status").open()) as status:
        [peak] = [line for line in status if line.startswith("VmHWM")]
    return int(peak.split()[1]) / 1024


if __name__ == "__main__":
    main()
