"""Parquet files, by the contract of sinks."""

import os
from pathlib import Path

import pyarrow.dataset
import pytest
from support.sinks.sink_contract import Backend, SinkContract

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings
from headwater.sinks.version_directories import directory_name


class Parquet(Backend):
    has_keys = False
    widens = False

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def settings(self) -> SinkSettings:
        return SinkSettings("files", kind="parquet", url=Secret(self._root))

    def live_rows(self, name):
        path = os.path.realpath(os.path.join(self._root, directory_name(name)))
        return pyarrow.dataset.dataset(path).to_table().to_pylist()

    def put_foreign(self, name):
        os.makedirs(os.path.join(self._root, name))
        with open(os.path.join(self._root, name, "file"), "w") as file:
            file.write("theirs")

    def foreign(self, name):
        return [path.read_text() for path in Path(self._root, name).iterdir()]


class TestParquetContract(SinkContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return Parquet(str(tmp_path / "files"))
