"""Drivers that write to Redis are killed, and so is Redis."""

import pytest
from sink_killing import KillContract
from test_redis_contract import RedisPlace


class TestRedisKills(KillContract):
    drivers = ("redis",)

    @pytest.fixture
    def place(self, redis_server):
        place = RedisPlace(redis_server)
        yield place
        place.client.close()
