"""An archive of Spark's classes for the JVM (class data sharing, JEP 350).

With it a session starts with half the work. `python -m headwater.pipelines.class_archive` creates
it, once for each Java and PySpark; without it everything works the same.
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
# Loads what a pipeline needs in its first seconds: SQL, state, a stream, Python workers.
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
    ).trigger(availableNow=True).start()  # one batch: to stop within one prints Java's errors
    query.awaitTermination()
spark.stop()
"""


def archive_of(java: str) -> Path:
    """The path of the archive for this Java, whether it exists or not."""
    binary = Path(java).resolve()
    what = (str(binary), binary.stat().st_mtime_ns, pyspark.__version__, pyspark.__file__)
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "headwater" / f"spark-{digest}.jsa"


def sharing_options(java: str) -> str:
    """JVM options, if there is an archive. The JVM silently ignores one that does not match."""
    archive = archive_of(java)
    if not archive.exists() or " " in str(archive):
        return ""
    return f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"


def make_archive() -> Path:
    """Runs a small pipeline, whose JVM dumps the classes that it has loaded at its exit."""
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
        raise ConfigError(
            "no archive of Spark's classes was made", hint="see the output of Spark above"
        )
    new.replace(archive)
    return archive


def _wait_for_end(pid: int) -> None:
    """The JVM outlives the process that started it while it writes."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline_s:
            raise ConfigError("Spark does not end", detail=f"process {pid}")
        time.sleep(0.1)


if __name__ == "__main__":
    print(make_archive())  # noqa: T201
