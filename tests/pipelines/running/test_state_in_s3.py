"""Pipelines whose operators have their state in S3: restarts, switching, failures, removal."""

import orjson
import pytest
from support.pipelines.clocked import ONE_WRITE, Clocked, run_to_end
from support.pipelines.project import wait_for
from tiers import long, some

import headwater as hw
from bench.peers.ports import free_port
from bench.peers.s3proxy import BUCKET, s3_server
from headwater.pipelines.engine.local_plan import NotLocal
from headwater.pipelines.operators.runtime.task import STATE_CONF
from headwater.pipelines.running import rebuilding, write_run
from headwater.pipelines.verification.stores import verify

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

COLUMNS = "id bigint, name string, n bigint, at timestamp"
PLAN_LOCALLY = write_run.plan_locally


def as_query(monkeypatch, *, is_query):
    def not_local(_):
        raise NotLocal("as a query")

    monkeypatch.setattr(write_run, "plan_locally", not_local if is_query else PLAN_LOCALLY)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def credentials(s3, spark, monkeypatch):
    """In the driver, and in Python workers, whose environment is older than the test."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)


def objects_below(s3, prefix):
    return sorted(path for path in (s3.bucket_path / prefix).rglob("*") if path.is_file())


def local_state(project):
    return list(project.state_dir.rglob("operators/**/*"))


@pytest.mark.usefixtures("credentials")
def test_restarts_in_the_driver_and_as_a_query(spark, s3, tmp_path, broker_address, monkeypatch):
    project = Clocked(tmp_path, broker_address, "remote", ONE_WRITE)
    project.section(f'[spark]\nstate_url = "s3://{BUCKET}/one?endpoint={s3.endpoint}"')
    at_s = 0
    for is_query in some(False, True, False, False, True, True, quick=3):
        as_query(monkeypatch, is_query=is_query)
        project.at(0, at_s, at_s + 1, at_s + 75, at_s + 3)
        project.at(1, at_s + 2, at_s + 80)
        at_s += 70
        run_to_end(spark, project)
        assert project.sums_in("sums") == project.expected_sums()
    (pipeline,) = project.pipelines(spark, "remote")
    assert verify(pipeline, "cache/sums").is_equal
    assert len(project.published()) == len(project.expected_late())
    assert local_state(project) == []
    (write,) = pipeline.flow().writes
    assert [version.number for version in rebuilding.versions_of(pipeline, write)] == [1]
    (versions,) = (s3.bucket_path / "one" / "remote").iterdir()
    (version,) = versions.iterdir()
    assert version.name.startswith("v1-")
    assert (version / "tumbling-1" / "begun").exists()
    assert len(objects_below(s3, "one")) < 60, "old ones are removed"

    # A version of its own has state of its own, which is removed with it.
    chosen = rebuilding.rebuild(pipeline)
    assert chosen == {"cache/sums": 2}
    names = {path.name.partition("-")[0] for path in versions.iterdir()}
    assert names == {"v1", "v2"}
    rebuilding.drop(pipeline, write, 2)
    left = {path.relative_to(versions).parts[0] for path in versions.rglob("*") if path.is_file()}
    assert left == {version.name}


@pytest.mark.usefixtures("credentials")
def test_lost_objects_are_lost_state(spark, s3, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "lossy", ONE_WRITE)
    project.section(f'[spark]\nstate_url = "s3://{BUCKET}/two?endpoint={s3.endpoint}"')
    project.at(0, 1, 2, 61, 140)
    project.at(1, 5, 80, 190)
    run_to_end(spark, project)
    for path in objects_below(s3, "two"):
        path.unlink()
    project.at(0, 200, 210)
    project.at(1, 220)
    run_to_end(spark, project)
    (pipeline,) = project.pipelines(spark, "lossy")
    (write,) = pipeline.flow().writes

    def has_replaced():
        versions = rebuilding.versions_of(pipeline, write)
        return [version.number for version in versions if version.is_live] == [2]

    with project.running(spark, "lossy"):
        wait_for(has_replaced, "the new version")
    assert project.sums_in("sums") == project.expected_sums()
    assert verify(pipeline, "cache/sums").is_equal


@pytest.mark.usefixtures("credentials")
def test_while_the_store_does_not_answer_the_pipeline_waits(
    spark, tmp_path, broker_address, monkeypatch
):
    monkeypatch.setattr("headwater.pipelines.running.managed_write._LONGEST_PAUSE_S", 0.5)
    port = free_port()
    (tmp_path / "s3").mkdir()
    project = Clocked(tmp_path, broker_address, "waiting", ONE_WRITE)
    project.section(f'[spark]\nstate_url = "s3://{BUCKET}/three?endpoint=http://127.0.0.1:{port}"')
    with project.running(spark, "waiting"):
        with s3_server(tmp_path / "s3", port):
            project.at(0, 1, 2, 61, 140)
            project.at(1, 5, 80, 190)
            project.wait_until_at_end(spark, project.events, "waiting")
        project.at(0, 200, 210)
        project.at(1, 220)
        wait_for(lambda: "object store" in str(status_of(project)), "the error")
        with s3_server(tmp_path / "s3", port):
            project.wait_until_at_end(spark, project.events, "waiting")
    assert project.sums_in("sums") == project.expected_sums()
    (pipeline,) = project.pipelines(spark, "waiting")
    (write,) = pipeline.flow().writes
    assert [version.number for version in rebuilding.versions_of(pipeline, write)] == [1]


def status_of(project):
    return orjson.loads((project.state_dir / project.name / "status.json").read_bytes())


@pytest.mark.usefixtures("credentials")
def test_state_stays_where_it_has_begun(spark, s3, tmp_path, broker_address):
    """The setting counts for checkpoints that begin after it was set."""
    project = Clocked(tmp_path, broker_address, "moving", ONE_WRITE)
    project.at(0, 1, 61)
    project.at(1, 5, 80)
    run_to_end(spark, project)
    project.section(f'[spark]\nstate_url = "s3://{BUCKET}/four?endpoint={s3.endpoint}"')
    project.at(0, 140)
    project.at(1, 190)
    run_to_end(spark, project)
    assert local_state(project)
    assert objects_below(s3, "four") == []
    assert project.sums_in("sums") == project.expected_sums()


@long
@pytest.mark.usefixtures("credentials")
def test_a_stream_that_is_no_pipeline(spark, s3, tmp_path, broker_address):
    project = Clocked(tmp_path, broker_address, "plain", ONE_WRITE)
    address = f"s3://{BUCKET}/five?endpoint={s3.endpoint}"
    spark.conf.set(STATE_CONF, address)
    try:
        found = {}
        for at_s in (0, 70, 140):  # each is a restart
            project.at(0, at_s, at_s + 1, at_s + 75)
            project.at(1, at_s + 2, at_s + 80)
            _sums(spark, project, tmp_path / "checkpoint", found)
    finally:
        spark.conf.unset(STATE_CONF)
    assert found == project.expected_sums()
    assert objects_below(s3, "five")


def _sums(spark, project, checkpoint, found):
    rows = (
        spark.readStream.format("headwater")
        .options(bootstrap=project.bootstrap, topic=project.events)
        .load()
        .selectExpr(
            f"from_json(cast(value as string), '{COLUMNS}') row",
            "struct(topic, partition, offset) _position",
            "timestamp _at",
            "'c' _op",
        )
        .select("row.*", "_position", "_at", "_op")
    )
    at = hw.event_time("at", delay="10 seconds", future=None)
    sums = hw.tumbling(rows, at, "1 minute", by="name").agg(
        total=hw.agg.sum("n"), rows=hw.agg.count()
    )

    def store(frame, _):
        for row in frame.toArrow().to_pylist():
            found[row["name"], row["window_start"].minute] = row["total"], row["rows"]

    query = sums.writeStream.foreachBatch(store).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
