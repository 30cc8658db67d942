"""Stores that do not answer: the other writes of the application go on, and nothing is lost."""

import logging
import time
import uuid
from urllib.parse import urlsplit

import pytest
from support.pipelines.project import Project, wait_for
from support.sinks.freezing_proxy import FreezingProxy
from tiers import long

from headwater.pipelines.engine import local_run
from headwater.pipelines.running import write_run
from headwater.pipelines.verification.stores import verify

SCHEMA = "id bigint, label string"


@pytest.fixture
def proxy(postgres):
    server = urlsplit(postgres.url)
    with FreezingProxy(server.hostname, server.port) as proxy:
        yield proxy


@pytest.fixture
def project(tmp_path, broker_address, postgres, proxy):
    """The stores that hang come first. A connection is waited for longer than any test lasts."""
    project = Project(tmp_path, broker_address)
    server = urlsplit(postgres.url)
    url = server._replace(netloc=server.netloc.replace(str(server.port), str(proxy.port)))
    separator = "&" if server.query else "?"
    url = f"{url.geturl()}{separator}connect_timeout=900"
    project.section(f'[sink.warehouse]\nkind = "postgres"\nurl = "{url}"')
    project.orders = project.topic(f"orders-{uuid.uuid4().hex[:8]}", 2)
    project.made = 0
    labelled(project, "first")
    return project


def labelled(project, label):
    project.pipeline(
        "other",
        f"""
        rows = flow.changes("{project.orders}", "{SCHEMA}").withColumn("label", F.lit("{label}"))
        flow.write(rows, to="cache", table="other", key="id")
        """,
    )


def copies(project, *tables):
    writes = "\n".join(
        f"flow.write(rows, to='warehouse', table='{table}', key='id')" for table in tables
    )
    body = f'rows = flow.changes("{project.orders}", "{SCHEMA}")\n{writes}\n'
    project.pipeline("copy", body + "flow.write(rows, to='cache', table='orders', key='id')\n")


def produce(project, count):
    rows = [{"id": project.made + n, "label": "x"} for n in range(count)]
    project.produce(project.orders, *rows)
    project.made += count


def arrived(project, table):
    """When the other store has all of it."""
    query = f"SELECT count(*) FROM {table}"
    wait_for(lambda: project.rows(query) == [(project.made,)], f"all rows of {table}")


def stored(postgres, table):
    if postgres.run(f"SELECT to_regclass('{table}')") == [(None,)]:
        return 0
    ((found,),) = postgres.run(f"SELECT count(*) FROM {table}")
    return found


@pytest.mark.timeout(600)
def test_a_store_that_does_not_answer_delays_no_other_write(
    project, spark, postgres, proxy, monkeypatch, caplog
):
    monkeypatch.setattr(local_run, "MOST_BACKLOG", 100)
    caplog.set_level(logging.INFO)
    copies(project, "orders")
    produce(project, 5)
    proxy.freeze()
    with project.running(spark, "copy", "other") as runner:
        for table in ("orders", "other"):  # they start, although the store does not answer
            arrived(project, table)
        assert stored(postgres, "orders") == 0
        proxy.thaw()
        wait_for(lambda: stored(postgres, "orders") == project.made, "the store that answers")

        proxy.freeze()
        took_s = []
        for _ in range(10):
            produce(project, 3)
            began_s = time.monotonic()
            arrived(project, "orders")
            took_s.append(time.monotonic() - began_s)
        assert stored(postgres, "orders") < project.made
        for _ in range(3):  # for the store that hangs it becomes a backlog
            produce(project, 60)
            arrived(project, "orders")
        labelled(project, "second")  # the runner has not stopped looking at files
        wait_for(
            lambda: (
                produce(project, 1)
                or project.rows("SELECT count(*) > 0 FROM other WHERE label = 'second'") == [(1,)]
            ),
            "the edited pipeline",
        )
        proxy.thaw()
        wait_for(lambda: stored(postgres, "orders") == project.made, "what was missed")
        assert runner.errors() == []
        assert "copy: warehouse/orders: catching up as a query" in caplog.text
    print("rows in the other store after", *(f"{took:.2f}" for took in took_s), "s")
    for pipeline in project.pipelines(spark, "copy"):
        for write in pipeline.flow().writes:
            verdict = verify(pipeline, write.name)
            assert (verdict.is_equal, verdict.rows) == (True, project.made)


@pytest.mark.timeout(600)
@long
def test_stopping_while_stores_do_not_answer(project, spark, postgres, proxy, monkeypatch):
    """All of them together get the time that one gets. What was stopped writes nothing later."""
    stopping_s = 4.0
    monkeypatch.setattr(write_run, "_STOPPING_S", stopping_s)
    tables = [f"orders_{number}" for number in range(8)]
    copies(project, *tables)
    produce(project, 5)
    with project.running(spark, "copy") as runner:
        wait_for(lambda: all(stored(postgres, table) == 5 for table in tables), "the first rows")
        proxy.freeze()
        produce(project, 3)
        arrived(project, "orders")
        wait_for(lambda: all(is_applying(write) for write in runner._writes[:8]), "batches")
        began_s = time.monotonic()
    took_s = time.monotonic() - began_s
    proxy.thaw()
    assert took_s < 3 * stopping_s, "not one after the other"
    produce(project, 2)
    with project.running(spark, "copy"):
        wait_for(
            lambda: all(stored(postgres, table) == project.made for table in tables), "the rest"
        )
    (pipeline,) = project.pipelines(spark, "copy")
    assert all(verify(pipeline, f"warehouse/{table}").is_equal for table in tables)


def is_applying(write):
    return write.run._applier._at_work.locked()
