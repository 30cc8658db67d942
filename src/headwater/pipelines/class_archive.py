"""Spark's classes as the JVM has them in memory (class data sharing, JEP 350): with such an archive
a session starts with half the work. `python -m headwater.pipelines.class_archive` makes it, once
for each Java and PySpark; without it everything works the same.
"""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pyspark

from headwater.errors import ConfigError

_TIMEOUT_S: Final = 600
# What a pipeline needs in its first seconds: SQL, state, a stream, Python workers.
_WARM_UP: Final = """
import sys, tempfile
import headwater as hw

spark = hw.spark("classes", "local[2]", **{"spark.driver.extraJavaOptions": sys.argv[1]})
print(spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
counts = rows.groupBy("value").count().writeStream.outputMode("update")
with tempfile.TemporaryDirectory() as checkpoint:
    query = counts.foreachBatch(lambda frame, _: frame.toArrow()).option(
        "checkpointLocation", checkpoint
    ).start()
    while query.lastProgress is None:
        query.awaitTermination(0.1)
    query.stop()
spark.stop()
"""


def archive_of(java: str) -> Path:
    """Where the archive for this Java is, or would be."""
    binary = Path(java).resolve()
    what = (str(binary), binary.stat().st_mtime_ns, pyspark.__version__, pyspark.__file__)
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "headwater" / f"spark-{digest}.jsa"


def sharing_options(java: str) -> str:
    """Of the JVM, if there is an archive. It passes over one that does not fit, in silence."""
    archive = archive_of(java)
    if not archive.exists() or " " in str(archive):
        return ""
    return f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def make_archive() -> Path:
    """Runs a small pipeline, whose JVM writes down the classes it has loaded when it ends."""
    from headwater.pipelines.session import LOGGING, find_java

    archive = archive_of(find_java())
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(f".{os.getpid()}")
    options = f"{LOGGING} -XX:ArchiveClassesAtExit={new} -Xlog:disable -Xlog:all=error:stderr"
    command = [sys.executable, "-c", _WARM_UP, options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        _wait_for_end(int(done.stdout.split()[0]))
    if not new.exists():
        raise ConfigError("no archive of Spark's classes was made", hint="Spark's words are above")
    new.replace(archive)
    return archive


def _wait_for_end(pid: int) -> None:
    """The JVM outlives the process that started it by the time that writing takes."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline_s:
            raise ConfigError("Spark does not end", detail=f"process {pid}")
        time.sleep(0.1)


if __name__ == "__main__":
    print(make_archive())  # noqa: T201
