"""Pipelines on personal fields: encrypted by default, plain where allowed, erased as null."""

import sqlite3
from contextlib import closing

import pytest
from support.capture.capture_harness import running
from support.pipelines.project import Project
from tiers import long

from headwater.client.erasing import erase_records
from headwater.erasure.erasing import erase, preview
from headwater.erasure.subject import Subject
from headwater.erasure.verifying import verify_erased
from headwater.errors import ConfigError
from headwater.inspect.pipelines import verify_captured_topic
from headwater.inspect.subjects import personal_topics
from headwater.pipelines.running.once import run_once
from headwater.pipelines.running.rebuilding import drop, promote, rebuild
from headwater.pipelines.running.runner import Runner
from headwater.pipelines.verification.stores import verify
from headwater.subjects.key_store import KeyStore

TOPIC = "decrypting.main.customers"
SUBJECT = f"""
[subject.customer]
topics = {{ "{TOPIC}" = {{ id = "id", personal = ["name", "age"] }} }}
"""
BODY = """
rows = flow.changes("decrypting.main.customers")
flow.write(rows, to="cache", table="{table}", key="id")
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@long
def test_stores_hold_what_their_pipelines_may_read(spark, project, tmp_path):
    database = tmp_path / "shop.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as source:
        source.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, age INTEGER)")
        source.execute("INSERT INTO customers VALUES (42, 'Ann', 33), (43, 'Bob', 44)")
    project.section(SUBJECT)
    project.pipeline("sealed", BODY.format(table="sealed"))
    project.pipeline("opened", BODY.format(table="opened"), decrypt="customer")
    (tmp_path / "names.sql").write_text("SELECT id, upper(name) AS name FROM " + TOPIC)
    project.section(
        f"""
        [view.names]
        file = "names.sql"
        into = "cache"
        decrypt = ["customer"]
        [capture.decrypting]
        source = "sqlite:///{database}"
        """
    )
    loaded = project.config()
    address = f"sqlite:///{database}"
    with running(project.bootstrap, address, "decrypting", personal_topics(loaded)) as capture:
        capture.wait_for_copies("main.customers")
        # Equal values are equal texts, so the encrypted topic can be compared with its table.
        assert verify_captured_topic(loaded, spark, TOPIC).is_equal
    run_once(Runner(project.pipelines(spark, "sealed", "opened", "names")))
    sealed = project.rows("SELECT id, name, age FROM sealed ORDER BY id")
    assert [row[0] for row in sealed] == [42, 43]
    assert all(text.startswith("hw1:") for row in sealed for text in row[1:])
    opened = "SELECT id, name, age FROM opened ORDER BY id"
    assert project.rows(opened) == [(42, "Ann", 33), (43, "Bob", 44)]
    assert project.rows("SELECT name FROM names ORDER BY id") == [("ANN",), ("BOB",)]
    (pipeline,) = project.pipelines(spark, "opened")
    assert verify(pipeline, "cache/opened").is_equal  # by tasks of Spark's

    store = KeyStore(loaded.key_places())
    ann = Subject("customer", "42")
    planned = preview(loaded, store, ann)
    assert {one.write: one.is_decrypted for one in planned.derived} == {
        "cache/sealed": False,
        "cache/opened": True,
        "cache/names": True,
    }
    receipt = erase(loaded, store, planned, erase_records)
    assert [line.partition(" until")[0] for line in receipt["incomplete"]] == [
        "cache/names holds plain text",
        "cache/opened holds plain text",
    ]
    left = verify_erased(loaded, store, ann).left
    assert "opened/cache/opened: version 1 was derived before the erasure" in left[1]
    assert len(left) == 2

    for derived in project.pipelines(spark, "opened", "names"):
        rebuild(derived)
        promote(derived)
        (write,) = derived.flow().writes
        drop(derived, write, 1)
    assert project.rows("SELECT name FROM names ORDER BY id") == [(None,), ("BOB",)]
    assert project.rows(opened) == [(42, None, None), (43, "Bob", 44)]
    assert verify_erased(loaded, store, ann).is_erased
    assert verify(pipeline, "cache/opened").is_equal


def test_a_pipeline_that_decrypts_an_unknown_kind_is_a_mistake(project):
    project.pipeline("wrong", BODY.format(table="wrong"), decrypt="custmer")
    with pytest.raises(ConfigError, match="decrypt names custmer"):
        project.config()
