"""Delta tables, by the contract of sinks."""

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import RecordBatchReader
from support.sinks.sink_contract import Backend, SinkContract
from tiers import long

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings
from headwater.sinks.version_directories import directory_name


class Delta(Backend):
    widens = False  # delta-rs has no type widening
    odd_columns = tuple(name for name in Backend.odd_columns if name != "ID")  # the same as id

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def settings(self) -> SinkSettings:
        return SinkSettings("lake", kind="delta", url=Secret(self._root))

    def live_rows(self, name):
        table = DeltaTable(os.path.join(self._root, directory_name(name)))
        return RecordBatchReader.from_stream(table.scan()).read_all().to_pylist()

    def put_foreign(self, name):
        os.makedirs(os.path.join(self._root, name))
        with open(os.path.join(self._root, name, "file"), "w") as file:
            file.write("theirs")

    def foreign(self, name):
        return [path.read_text() for path in Path(self._root, name).iterdir()]


class StagedDelta(Delta):
    is_staged = True


class StagedAppends(StagedDelta):
    """Rows without a key: files of tasks in every batch."""

    has_keys = False


class TestDeltaContract(SinkContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return Delta(str(tmp_path / "lake"))


@long  # the quick tier has the representative ones
class TestStagedDeltaContract(SinkContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return StagedDelta(str(tmp_path / "lake"))


@long
class TestStagedAppendsContract(SinkContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return StagedAppends(str(tmp_path / "lake"))

    def test_a_store_without_keys_says_so(self, backend):
        """Delta has keys."""
