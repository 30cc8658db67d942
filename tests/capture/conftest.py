"""The databases that captures are tested on."""

import pytest
from support.capture.mongo_server import mongo, old_mongo
from support.capture.postgres_server import postgres, postgres_server

pytest.register_assert_rewrite("support.capture.source_contract")

__all__ = ["mongo", "old_mongo", "postgres", "postgres_server"]
