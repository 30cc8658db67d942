"""Rates and percentiles from the counters of a broker."""

import math

import pytest

from headwater.console.history.broker_requests import BrokerMeter, address_of, percentile
from headwater.settings import BrokerSettings
from headwater.testing import InProcessBroker


def test_figures_of_a_broker_that_answers_requests(tmp_path):
    from confluent_kafka import Producer

    settings = BrokerSettings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        meter = BrokerMeter()
        first = meter.read(broker.metrics_address)
        assert set(first) == {"connections", "disk.free"}
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(5):
            producer.produce("measured", b"x")
            assert producer.flush(60) == 0
        found = meter.read(broker.metrics_address)
        assert found["requests.rate/Produce"] > 0
        assert 0 < found["requests.p50/Produce"] <= found["requests.p99/Produce"] < 10_000
        assert found["connections"] >= 1
        assert meter.read("127.0.0.1:1") == {}
        assert "requests.rate/Produce" not in meter.read(broker.metrics_address)  # after a gap


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 0.002), (0.25, 0.001), (0.99, 0.004), (1.0, 0.004)]
)
def test_percentiles_lie_between_the_bounds(share, value):
    counts = {0.001: 1, 0.002: 2, 0.004: 4, math.inf: 4}
    assert percentile(counts, share) == pytest.approx(value, rel=0.02)


def test_percentiles_without_values_and_above_the_bounds():
    assert percentile({}, 0.5) is None
    assert percentile({1.0: 0, math.inf: 0}, 0.5) is None
    assert percentile({1.0: 0, math.inf: 5}, 0.5) == 1.0


def test_where_the_metrics_are():
    children = [{"kind": "capture"}, {"kind": "broker", "metrics": "127.0.0.1:7"}]
    assert address_of(children, None) == "127.0.0.1:7"
    assert address_of(children, "127.0.0.1:9") == "127.0.0.1:9"
    assert address_of(children, "127.0.0.1:0") == "127.0.0.1:7"
    assert address_of([{"kind": "broker", "metrics": None}], None) is None
