"""The databases that captures are tested on."""

from mongo_server import mongo, old_mongo
from postgres_server import postgres, postgres_server

__all__ = ["mongo", "old_mongo", "postgres", "postgres_server"]
