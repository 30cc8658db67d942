"""Drivers that write to a full-text index are killed."""

import pytest
from support.sinks.sink_killing import KillContract
from test_tantivy_contract import TantivyBackend, memory_directory

__all__ = ["memory_directory"]


class TestTantivyKills(KillContract):
    drivers = ("tantivy", "builtins", "posix", "shutil", "pathlib")

    @pytest.fixture
    def backend(self, memory_directory):
        return TantivyBackend(memory_directory)
