"""A pipeline that reads by Spark's own connector, whose jars are given to a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import uuid

import pytest
from support.pipelines.project import Project
from tiers import long

from bench.peers.provision import PeerUnavailableError, spark_connector_jars

READS = """
import json, sys
import headwater as hw
from headwater import config
from headwater.pipelines.running.rebuilding import rebuild
from headwater.inspect.pipelines import load_pipelines
from headwater.pipelines.verification.stores import verify

loaded = config.load(path=sys.argv[1], environ={})
spark = hw.spark("connector", "local[2]", jars=loaded.spark.jars)
(pipeline,) = load_pipelines(loaded, lambda: spark, ["theirs"])
rebuild(pipeline)
verdict = verify(pipeline, "theirs")
print(json.dumps([verdict.is_equal, verdict.rows, verdict.position.offsets]))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.java
@long  # a minute, for Spark's own connector
@pytest.mark.skipif(not shutil.which("mvn"), reason="the jars come by Maven")
def test_the_same_through_sparks_connector(tmp_path, broker_address):
    try:
        jars = spark_connector_jars()
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    project = Project(tmp_path, broker_address)
    topic = project.topic(f"theirs-{uuid.uuid4().hex[:8]}", 2)
    project.section(f"[spark]\njars = {json.dumps(jars)}")
    project.pipeline(
        "theirs",
        f"""
        rows = flow.changes("{topic}", "id bigint, n int", options={{"connector": "kafka"}})
        flow.write(rows, to="cache", table="theirs", key="id")
        """,
    )
    project.produce(topic, *({"id": n % 50, "n": n} for n in range(100)))
    project.produce(topic, {"id": 7, "_deleted": True})
    project.produce_bytes(topic, b"not JSON")
    said = subprocess.run(
        [sys.executable, "-c", READS, str(project.file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    is_equal, rows, offsets = json.loads(said.stdout.splitlines()[-1])
    assert (is_equal, rows) == (True, 49)
    assert sum(offsets[topic].values()) == 102
