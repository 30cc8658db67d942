import pytest
from support.broker.txn_harness import Producer, TransactionCluster


@pytest.fixture
def cluster(tmp_path):
    cluster = TransactionCluster(tmp_path / "log")
    cluster.topic("t", 3)
    cluster.topic("u", 2)
    yield cluster
    cluster.files.repair()
    cluster.stop()
    cluster.runner.close()


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def producer(cluster, request):
    producer = Producer(cluster, "payments", has_kip_890=request.param)
    assert producer.init() == 0
    return producer
