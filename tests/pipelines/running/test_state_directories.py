"""Where checkpoints, operators' state and what `verify` compares can be."""

from types import SimpleNamespace

import pytest

from headwater import config
from headwater.errors import ConfigError, PipelineError
from headwater.pipelines.checkpoint import Checkpoint, RunsElsewhere
from headwater.pipelines.operators.runtime.planning import _check_state
from headwater.pipelines.verification.stores import seen_by_tasks


def loaded(directory, state_dir):
    path = directory / "headwater.toml"
    path.write_text(f'[spark]\nstate_dir = "{state_dir}"\n')
    return config.load(path=str(path), environ={})


@pytest.mark.parametrize("address", ["hdfs:///headwater", "s3a://bucket/state", "file:///tmp/x"])
def test_an_address_is_no_directory(tmp_path, address):
    """It was taken for a directory of that name beside the configuration."""
    with pytest.raises(ConfigError, match="state_dir has to be a directory"):
        loaded(tmp_path, address).state_dir()


def test_a_directory(tmp_path):
    assert loaded(tmp_path, "shared/state").state_dir() == tmp_path / "shared" / "state"


def test_the_address_of_an_object_store(tmp_path):
    path = tmp_path / "headwater.toml"
    address = "s3://bucket/state?endpoint=http://minio:9000"
    path.write_text(f'[spark]\nstate_url = "{address}"\n')
    found = config.load(path=str(path), environ={}).spark.state_url
    assert found == "s3://bucket/state?endpoint=http%3A%2F%2Fminio%3A9000"
    _check_state("hw.tumbling", found)


@pytest.mark.parametrize("address", ["hdfs:///x", "s3a://bucket/x", "s3://key:hunter2@bucket/x"])
def test_an_address_that_is_not_understood(tmp_path, address):
    path = tmp_path / "headwater.toml"
    path.write_text(f'[spark]\nstate_url = "{address}"\n')
    with pytest.raises(ConfigError, match="s3://bucket/prefix") as caught:
        config.load(path=str(path), environ={})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(PipelineError, match="s3://bucket/prefix") as refused:
        _check_state("hw.tumbling", address)
    assert "hunter2" not in str(refused.value)


URL = "s3://bucket/state?endpoint=http://127.0.0.1:1"


def checkpoint(directory, state_url=URL):
    return Checkpoint(directory, "sums", "cache/sums", 1, state_url=state_url)


def begun(found):
    """As `begin_operators`, without an object store."""
    found.operators.remove_all = lambda: None
    found.begin_operators()
    return found


def test_each_checkpoint_has_a_prefix_of_its_own(tmp_path):
    one, other = begun(checkpoint(tmp_path / "one")), checkpoint(tmp_path / "other")
    assert str(one.operators).startswith("s3://bucket/state/sums/cache.sums/v1-")
    assert str(one.operators) != str(other.operators)
    assert str(checkpoint(tmp_path / "one").operators) == str(one.operators)


def test_a_checkpoint_that_has_begun_stays_where_its_state_is(tmp_path):
    """The server of a bucket may move; the bucket may not."""
    one = begun(checkpoint(tmp_path))
    without = checkpoint(tmp_path, None).operators
    assert without.address == one.operators.address
    moved = checkpoint(tmp_path, "s3://bucket/other?endpoint=http://127.0.0.1:2").operators
    assert str(moved) == str(one.operators)
    assert moved.address.endswith("?endpoint=http%3A%2F%2F127.0.0.1%3A2")
    elsewhere = checkpoint(tmp_path, "s3://third/other").operators
    assert elsewhere.address == one.operators.address
    local = tmp_path / "local" / "sums" / "cache.sums" / "v1" / "checkpoint"
    (local / "offsets").mkdir(parents=True)
    (local / "offsets" / "0").touch()
    assert str(checkpoint(tmp_path / "local").operators) == str(local / "operators")


def test_a_process_that_waited_for_the_lock_does_not_use_a_prefix_of_its_own(tmp_path):
    late = checkpoint(tmp_path)
    assert str(late.operators)  # before the other one has begun
    first = checkpoint(tmp_path).lock()
    begun(first)
    first.unlock()
    with pytest.raises(RunsElsewhere):
        late.lock()
    again = checkpoint(tmp_path).lock()
    assert str(again.operators) == str(first.operators)
    again.unlock()


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://host"])
def test_what_verify_compares_is_where_all_machines_see_it(tmp_path, master):
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    with seen_by_tasks(spark, tmp_path / "state") as directory:
        assert directory.parent == tmp_path / "state"
        assert directory.is_dir()
    assert list((tmp_path / "state").iterdir()) == []


def test_what_verify_compares_on_one_machine(tmp_path):
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    with seen_by_tasks(spark, tmp_path / "state"):
        assert not (tmp_path / "state").exists()
