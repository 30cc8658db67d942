"""Drivers that write to Redis are killed, and so is Redis."""

import pytest
from support.sinks.sink_killing import KillContract
from test_redis_contract import RedisBackend


class TestRedisKills(KillContract):
    drivers = ("redis",)

    @pytest.fixture
    def backend(self, redis_server):
        backend = RedisBackend(redis_server)
        yield backend
        backend.client.close()
