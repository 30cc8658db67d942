"""Specific to Redis: how rows are stored, what it may lose, and which settings are refused."""

import json
from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest
from support.sinks.redis_server import RedisServer
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_redis_contract import RedisBackend

from bench.peers.ports import free_port
from headwater.errors import ConfigError, StoreDiverged, StoreRefused, StoreUnreachable
from headwater.sinks.contract import Target

FIELDS = pa.schema(
    [("shop", pa.string()), ("id", pa.int64()), ("price", pa.decimal128(10, 2)),
     ("at", pa.timestamp("us", "UTC"))]
)  # fmt: skip
ID = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def backend(redis_server):
    backend = RedisBackend(redis_server)
    yield backend
    backend.client.close()


def test_a_row_is_json_under_its_key(backend):
    row = {"shop": "eu", "id": 7, "price": Decimal("1.50"), "at": 1}
    expected = {"shop": "eu", "id": 7, "price": "1.50", "at": "1970-01-01T00:00:00.000001Z"}
    for name, key, field in (("by_id", ("id",), "7"), ("by_both", ("shop", "id"), '["eu",7]')):
        with closing(backend.store(Target("shop", name, key))) as store:
            with store.writer(1, FIELDS) as writer:
                writer.apply(batch(0, table(FIELDS, [row])))
            assert json.loads(backend.client.hget(name, field)) == expected


def test_rows_without_a_key_are_a_stream_of_a_bounded_length(backend):
    target = Target("shop", "events", (), {"maxlen": "100"})
    with closing(backend.store(target)) as store:
        with store.writer(1, ID) as writer:
            for number in range(4):
                rows = [{"id": number * 1500 + n, "v": "x"} for n in range(1500)]
                writer.apply(batch(number, table(ID, rows)))
        length = backend.client.xlen("events")
        assert 100 <= length < 1500  # by whole nodes of the stream
        [(_, last)] = backend.client.xrevrange("events", count=1)
        assert json.loads(last[b"row"])["id"] == 5999
    with pytest.raises(ConfigError, match="maxlen"):
        backend.store(Target("shop", "orders", ("id",), {"maxlen": "100"}))


def test_a_redis_that_lost_its_last_seconds_is_detected(tmp_path):
    """Rows and position go back together, and the checkpoint is ahead of them."""
    server = RedisServer(tmp_path / "forgetful", appendonly="no")
    server.start()
    backend = RedisBackend(server)
    try:
        with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
            with store.writer(1, ID) as writer:
                writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
                backend.client.save()
                writer.apply(batch(1, table(ID, [{"id": 1, "v": "b"}])))
            server.kill()
            server.start()
            assert contents(store)[0] == position(0)
            assert rows_of(store) == [{"id": 1, "v": "a"}]
            with store.writer(1, ID) as writer, pytest.raises(StoreDiverged) as caught:
                writer.apply(batch(2, table(ID, [{"id": 2, "v": "c"}])))
            assert "rebuild" in caught.value.hint
            backend.client.flushall()  # all of it
            with store.writer(1, ID) as writer, pytest.raises(StoreDiverged, match="empty"):
                writer.apply(batch(2, table(ID, [{"id": 2, "v": "c"}])))
    finally:
        backend.client.close()
        server.kill()


def test_a_redis_that_throws_rows_away_or_is_a_cluster_is_refused(backend, tmp_path):
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        backend.client.config_set("maxmemory", "100mb")
        backend.client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(StoreRefused, match="evicts rows"):
                store.check()
            backend.client.config_set("maxmemory-policy", "volatile-lru")
            store.check()
        finally:
            backend.client.config_set("maxmemory", "0")
            backend.client.config_set("maxmemory-policy", "noeviction")
    cluster = RedisServer(
        tmp_path / "cluster", cluster_enabled="yes", cluster_port=str(free_port())
    )
    cluster.start()
    try:
        node = RedisBackend(cluster)
        node.client.close()
        with (
            closing(node.store(Target("shop", "orders", ("id",)))) as store,
            pytest.raises(StoreRefused, match="Cluster"),
        ):
            store.check()
    finally:
        cluster.kill()


def test_a_redis_without_memory_takes_nothing_of_a_batch(backend):
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        with store.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
            backend.client.config_set("maxmemory", "1mb")
            try:
                with pytest.raises(StoreUnreachable, match="no writes"):
                    writer.apply(batch(1, table(ID, [{"id": n, "v": "b"} for n in range(5000)])))
            finally:
                backend.client.config_set("maxmemory", "0")
        assert rows_of(store) == [{"id": 1, "v": "a"}]
        with store.writer(1, ID) as writer:
            writer.apply(batch(1, table(ID, [{"id": 1, "v": "b"}])))
        assert rows_of(store) == [{"id": 1, "v": "b"}]


def test_a_key_that_another_client_made_of_another_type_stops_the_batch(backend):
    """Inside of a transaction Redis would go on, and store the position without the rows."""
    with (
        closing(backend.store(Target("shop", "orders", ("id",)))) as store,
        store.writer(1, ID) as writer,
    ):
        backend.client.set("orders", "mine")
        with pytest.raises(StoreRefused, match="string"):
            writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
        assert store.versions()[0].position is None
        assert backend.client.get("orders") == b"mine"


def test_a_read_leaves_nothing_behind(backend):
    with closing(backend.store(Target("shop", "orders", ("id",)))) as store:
        with store.writer(1, ID) as writer:
            writer.apply(batch(0, table(ID, [{"id": n, "v": "a"} for n in range(12_000)])))
        with store.read(1) as read:
            assert next(read.rows).num_rows >= 5000
        assert sorted(backend.client.keys()) == [
            b"headwater:{orders}",
            b"headwater:{orders}:v1",
            b"orders",
        ]
