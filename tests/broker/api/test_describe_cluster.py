import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_cluster import DescribeClusterRequest

NOT_ASKED_FOR = -(2**31)


@pytest.mark.parametrize("version", range(3))
def test_one_broker_which_is_the_controller(asked, version):
    response = asked.ask(DescribeClusterRequest(), version)
    assert (response.error_code, response.error_message) == (0, None)
    assert response.cluster_id == asked.store.catalog.cluster_id != ""
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.port) == (1, "broker.example", 9092)
    assert response.controller_id == 1
    assert not broker.is_fenced
    assert response.cluster_authorized_operations == NOT_ASKED_FOR


def test_authorized_operations_when_asked_for(asked):
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert asked.ask(request, 2).cluster_authorized_operations > 0


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_this_is_no_controller(asked, endpoint_type, code):
    response = asked.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert response.error_code == code
    assert response.error_message
    assert response.brokers == []
