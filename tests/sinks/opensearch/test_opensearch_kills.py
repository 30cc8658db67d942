"""Drivers that write to OpenSearch are killed, and so is a node of it."""

import pytest
from support.sinks.sink_killing import KillContract
from test_opensearch_contract import OpenSearchBackend
from tiers import long

pytestmark = [long, pytest.mark.java, pytest.mark.slow]


class TestOpenSearchKills(KillContract):
    drivers = ("http.client",)

    @pytest.fixture
    def backend(self, opensearch_server):
        return OpenSearchBackend(opensearch_server)
