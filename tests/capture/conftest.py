"""The databases that captures are tested on."""

import pytest
from mongo_server import mongo, old_mongo
from postgres_server import postgres, postgres_server

pytest.register_assert_rewrite("source_contract")

__all__ = ["mongo", "old_mongo", "postgres", "postgres_server"]
