"""Redis, by the contract of derived stores; test_redis_hash.py has what is specific to it."""

import json

import pyarrow as pa
import pytest
from support.sinks.sink_contract import Backend, SinkContract, Unfit

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings


class RedisBackend(Backend):
    can_restart = True

    def __init__(self, server):
        self.server = server
        self.client = server.client()
        self.client.flushall()

    @property
    def settings(self):
        return SinkSettings("cache", kind="redis", url=Secret(self.server.url))

    @property
    def address(self):
        return "127.0.0.1", self.server.port

    def live_rows(self, name):
        return [json.loads(text) for text in self.client.hvals(name)]

    def put_foreign(self, name):
        self.client.set(name, "mine")

    def foreign(self, name):
        return self.client.get(name)

    def unfit(self):
        fields = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
        return [Unfit(fields, {"at": 2**62}, {"at": 0}, "at")]

    def stranger(self):
        url = self.server.url.replace("secret", "wrong-secret")
        return SinkSettings("cache", kind="redis", url=Secret(url))

    def nowhere(self):
        return SinkSettings("cache", kind="redis", url=Secret("redis://:secret@127.0.0.1:1/0"))

    def restart(self):
        self.server.kill()
        self.server.start()


class TestRedisContract(SinkContract):
    @pytest.fixture
    def backend(self, redis_server):
        backend = RedisBackend(redis_server)
        yield backend
        backend.client.close()
