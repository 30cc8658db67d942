"""Where checkpoints and what `verify` compares can be: in directories, which all machines see."""

from types import SimpleNamespace

import pytest

from headwater import config
from headwater.errors import ConfigError
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
