"""A standalone Spark cluster from the pyspark package: a master and two workers on 127.0.0.1."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headwater.pipelines.session import JAVA_DIR, find_java

START_TIMEOUT_S = 60
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def spark_cluster(directory: Path, workers: int = 2, cores: int = 1) -> Iterator[str]:
    """The address of its master. Its processes end with the block, by their ids."""
    processes: list[subprocess.Popen] = []
    try:
        log = _start(processes, directory, "master", MASTER, "--port", "0", "--webui-port", "0")
        address = _wait_for(processes[-1], log, r"(spark://127\.0\.0\.1:\d+)")
        for number in range(workers):
            name = f"worker-{number}"
            options = ["--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(directory / name), address]
            log = _start(processes, directory, name, WORKER, *options)
            _wait_for(processes[-1], log, "Successfully registered with master")
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(60)


def _start(processes: list, directory: Path, name: str, main_class: str, *options: str) -> Path:
    home = Path(pyspark.__file__).parent
    local = directory / name / "local"
    local.mkdir(parents=True)
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(JAVA_DIR),
        "HEADWATER_JAVA": find_java(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(local),  # each has its own, as on machines of their own
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        processes.append(
            subprocess.Popen(
                [str(home / "bin" / "spark-class"), main_class, "--host", "127.0.0.1", *options],
                env=environment,
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        )
    return log


def _wait_for(process: subprocess.Popen, log: Path, pattern: str) -> str:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        text = log.read_text(errors="replace")
        if found := re.search(pattern, text):
            return found[found.lastindex or 0]
        assert process.poll() is None, text
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)
