"""The embedded full-text index by the contract of derived stores."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
import tantivy
from support.sinks.sink_contract import Backend, SinkContract, Unfit

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings


class TantivyBackend(Backend):
    large_rows = 20_000  # the promises are the same, and every row is a document

    def __init__(self, directory):
        self.directory = directory

    @property
    def settings(self):
        return SinkSettings("search", kind="tantivy", url=Secret(str(self.directory)))

    def live_rows(self, name):
        """As any program with tantivy would: the rows are stored in their documents."""
        index = tantivy.Index.open(str((self.directory / name).resolve()))
        searcher = index.searcher()
        hits = searcher.search(tantivy.Query.all_query(), 100_000).hits
        documents = [json.loads(bytes(searcher.doc(at).get_first("_row"))) for _, at in hits]
        return [document for document in documents if "id" in document]

    def put_foreign(self, name):
        (self.directory / name).mkdir(parents=True)
        (self.directory / name / "mine").write_text("mine")

    def foreign(self, name):
        return [path.name for path in (self.directory / name).iterdir()]

    def unfit(self):
        fields = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
        return [Unfit(fields, {"at": 2**62}, {"at": 0}, "at")]


@pytest.fixture
def memory_directory(tmp_path):
    """In memory where that can be had: no disk is tested here, and there are many syncs."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with TemporaryDirectory(dir=in_memory) as directory:
        yield Path(directory) / "indexes"


class TestTantivyContract(SinkContract):
    @pytest.fixture
    def backend(self, memory_directory):
        return TantivyBackend(memory_directory)
