"""OpenSearch, by the contract of derived stores except the gaps that its store.py states."""

import json
import urllib.error
import urllib.request
from urllib.parse import quote

import pyarrow as pa
import pytest
from support.sinks.sink_contract import Backend, SinkContract, Unfit
from tiers import long

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings

pytestmark = [long, pytest.mark.java, pytest.mark.slow]


class OpenSearchBackend(Backend):
    large_rows = 20_000
    odd_names = ("select", "größe", "it's", "表", "100%s", "a`b", "user;--")
    odd_columns = (
        "select", "Mixed Case", 'Größe "x"', "it's", "表", "100%s", "a`b", "back\\slash",
        "user;--", "{}", "$1", ":a", "?", "ID", "order", "_at",
    )  # fmt: skip

    def __init__(self, server):
        self.server = server
        self.ask("DELETE", "/*?expand_wildcards=all")

    def ask(self, method, path, body=None):
        request = urllib.request.Request(
            self.server.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            refused.close()  # it is an open answer, too
            raise

    @property
    def settings(self):
        return SinkSettings("search", kind="opensearch", url=Secret(self.server.url))

    @property
    def address(self):
        return "127.0.0.1", self.server.port

    def live_rows(self, name):
        found = self.ask("POST", f"/{quote(name)}/_search", {"size": 10_000})
        return [hit["_source"] for hit in found["hits"]["hits"]]

    def put_foreign(self, name):
        try:
            self.ask("PUT", f"/{quote(name)}")
        except urllib.error.HTTPError as error:
            raise FileExistsError(name) from error
        self.ask("PUT", f"/{quote(name)}/_doc/mine?refresh=true", {"a": "mine"})

    def foreign(self, name):
        return self.live_rows(name)

    def unfit(self):
        times = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
        return [Unfit(times, {"at": 2**62}, {"at": 0}, "at")]

    def nowhere(self):
        return SinkSettings(
            "search", kind="opensearch", url=Secret("http://someone:secret@127.0.0.1:1")
        )


class TestOpenSearchContract(SinkContract):
    @pytest.fixture
    def backend(self, opensearch_server):
        return OpenSearchBackend(opensearch_server)
