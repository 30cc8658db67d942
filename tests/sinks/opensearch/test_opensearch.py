"""Specific to OpenSearch, on a real node: what is found, what a zombie may still send, what a
reader gets while a batch is written in part.
"""

import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from support.sinks.sink_rows import batch, contents, position, rows_of, table
from test_opensearch_contract import OpenSearchBackend
from tiers import long

from headwater.errors import ConfigError, Fenced, RowRefused, StoreRefused, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks.contract import Log, Target
from headwater.sinks.rows.documents import documents_of
from headwater.sinks.settings import SinkSettings
from headwater.sinks.stores import store_of

pytestmark = [pytest.mark.java, pytest.mark.slow]

ID = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def backend(opensearch_server):
    return OpenSearchBackend(opensearch_server)


@pytest.fixture
def store(backend):
    with closing(backend.store(Target("shop", "pages", ("id",)))) as store:
        yield store


def found(backend, query):
    hits = backend.ask("POST", "/pages/_search", {"query": query})["hits"]["hits"]
    return [hit["_source"]["id"] for hit in hits]


def test_texts_numbers_and_times_are_found_under_the_alias(backend, store):
    fields = ID.append(pa.field("price", pa.decimal128(10, 2))).append(
        pa.field("at", pa.timestamp("us", "UTC"))
    )
    rows = [
        {"id": 1, "v": "a lake, a lake, a lake", "price": 1, "at": 0},
        {"id": 2, "v": "a long text in which a lake is named once", "price": 20, "at": 10**15},
        {"id": 3, "v": "River", "price": None, "at": None},
    ]
    with store.writer(1, fields) as writer:
        writer.apply(batch(0, table(fields, rows)))
    assert found(backend, {"match": {"v": "LAKE"}}) == [1, 2]
    assert found(backend, {"term": {"v.keyword": "River"}}) == [3]
    assert found(backend, {"range": {"price": {"gte": 15}}}) == [2]
    assert found(backend, {"range": {"at": {"lt": "1980-01-01"}}}) == [1]


def test_what_a_replaced_writer_still_sends_is_refused_row_by_row(store):
    """It was stopped behind all its checks, with the rows of its batch in hand."""
    zombie = store.writer(1, ID)
    zombie.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
    late = batch(1, table(ID, [{"id": 1, "v": "late"}, {"id": 2, "v": "late"}]))
    with store.writer(1, ID) as writer:
        writer.apply(batch(1, table(ID, [{"id": 1, "v": "late"}, {"id": 2, "v": "late"}])))
        writer.apply(batch(2, table(ID, [{"id": 1, "v": "new"}, {"id": 2, "v": None}], ["u", "d"])))
        with pytest.raises(Fenced):
            zombie._write(documents_of(late.rows, ("id",), ID, None), late, None)
        store.refresh(1, store.api)
    zombie.close()
    assert rows_of(store) == [{"id": 1, "v": "new"}]


def test_a_part_of_a_batch_is_not_seen_and_a_refresh_of_it_is_reported(store):
    writer = store.writer(1, ID)
    writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
    second = batch(1, table(ID, [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]))
    write = writer._write

    def half(documents, made, refuse):
        write(documents, made, refuse)
        raise ZeroDivisionError

    writer._write = half
    with pytest.raises(ZeroDivisionError):
        writer.apply(second)
    writer.close()
    assert contents(store)[0] == position(0)
    assert rows_of(store) == [{"id": 1, "v": "a"}]
    store.refresh(1, store.api)  # of another client
    with pytest.raises(StoreUnreachable, match="refreshed"):
        contents(store)
    with store.writer(1, ID) as successor:
        successor.apply(second)
    assert rows_of(store) == [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]


@long
def test_a_killed_node_has_what_it_acknowledged_and_the_rest_is_written_again(backend, store):
    second = batch(1, table(ID, [{"id": 1, "v": None}, {"id": 2, "v": "b"}], ["d", "c"]))
    writer = store.writer(1, ID)
    writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))
    to = writer._to

    def die(state, **changes):
        if changes["stage"] == "committed":  # all rows are written, and nothing says so
            backend.server.kill()
        return to(state, **changes)

    writer._to = die
    with pytest.raises(StoreUnreachable):
        writer.apply(second)
    writer.close()
    backend.server.start()
    store.close()  # its connection has died with the node
    with store.writer(1, ID) as successor:
        assert successor.position == position(0)
        successor.apply(second)
    assert contents(store)[0] == position(1)
    assert rows_of(store) == [{"id": 2, "v": "b"}]


def test_a_row_that_a_mapping_of_ones_own_refuses_is_named(backend, store):
    with store.writer(1, ID):
        backend.ask("PUT", "/pages/_mapping", {"properties": {"n": {"type": "ip"}}})
    fields = ID.append(pa.field("n", pa.struct([("x", pa.string())])))
    with store.writer(1, ID) as writer, pytest.raises(StoreRefused, match="n"):
        writer.apply(batch(0, table(fields, [{"id": 1, "v": "a", "n": {"x": "y"}}])))
    strict = {"type": "text", "analyzer": "standard", "fields": {"ip": {"type": "ip"}}}
    backend.ask("PUT", "/pages/_mapping", {"properties": {"v": strict}})
    with store.writer(1, ID) as writer:
        rows = table(ID, [{"id": 1, "v": "127.0.0.1"}, {"id": 2, "v": "words"}])
        with pytest.raises(RowRefused) as caught:
            writer.apply(batch(0, rows))
        assert (caught.value.row["id"], caught.value.column) == (2, "v.ip")
        refusals = []
        writer.apply(batch(0, rows), refusals.extend)
        assert [error.row["id"] for error in refusals] == [2]
    assert rows_of(store) == [{"id": 1, "v": "127.0.0.1"}]


class Refusing(BaseHTTPRequestHandler):
    status = 401

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", "12")
        self.end_headers()
        self.wfile.write(b"Unauthorized")

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize(
    ("status", "error"), [(401, StoreRefused), (403, StoreRefused), (429, StoreUnreachable),
                          (503, StoreUnreachable)],
)  # fmt: skip
def test_what_a_server_or_a_proxy_answers(status, error):
    handler = type("Handler", (Refusing,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://me:wrong-secret@127.0.0.1:{server.server_port}"
        settings = SinkSettings("search", kind="opensearch", url=Secret(url))
        with closing(store_of(settings, Target("shop", "pages", ("id",)), Log("x"))) as store:
            with pytest.raises(error, match="OpenSearch") as caught:
                store.check()
            assert "wrong-secret" not in f"{caught.value} {caught.value.detail}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["Upper", "a b", "_a", "a/b", "a*"])
def test_names_that_an_index_cannot_have(name):
    settings = SinkSettings("search", kind="opensearch", url=Secret("http://127.0.0.1:1"))
    with pytest.raises(ConfigError, match="name of an index"):
        store_of(settings, Target("shop", name, ("id",)), Log("x"))
