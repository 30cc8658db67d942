"""Windows, a join and an enrichment whose driver, JVM and workers are killed: results are as the
log has them, every late row is published once, counts are exact.

The full tier kills more often than once, HEADWATER_LONG=N N times, and has more operators.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter

import orjson
import pytest
from support.pipelines.project import Project, is_at, wait_for
from support.pipelines.spark_killing import Victim
from support.sinks.topic_places import read_messages
from tiers import IS_FULL, kills

from headwater.inspect.pipelines import pipeline_states
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.verification.stores import verify

KILLS = kills(quick=1, full=20)
START_S = 1_767_225_600
PIPELINE = """
    rows = flow.changes("{events}", "id bigint, name_id bigint, n bigint, at timestamp")
    others = flow.changes("{others}", "other bigint, name_id bigint, then timestamp")
    at = hw.event_time("at", delay="5 seconds", future=None)
    def sums(**late):
        name = "tumbling-2" if "allowed_lateness" in late else "tumbling-1"
        windows = hw.tumbling(rows, at, "1 minute", by="name_id", name=name, **late)
        return windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    key = ["name_id", "window_start"]
    flow.write(sums(late="side"), to="cache", table="sums", key=key)
    pairs = hw.join(
        rows, others, on="name_id", within="3 seconds", late="side", name="join-1",
        left_time=at, right_time=hw.event_time("then", delay="5 seconds", future=None),
    )
    flow.write(pairs, to="cache", table="pairs", key=["id", "other"])
"""
MORE = """
    corrected = sums(late="correct", allowed_lateness="1 minute")
    flow.write(corrected, to="cache", table="corrected", key=key)
    names = flow.table("{names}", "id bigint, name string", key="id")
    rich = hw.enrich(rows, names, on=[("name_id", "id")])
    flow.write(rich, to="cache", table="rich", key="id")
"""
WRITES = ["cache/sums", "cache/pairs", *(["cache/corrected", "cache/rich"] if IS_FULL else [])]


class Killed(Project):
    """Two topics of events, whose time goes on unevenly and sometimes back."""

    def __init__(self, directory, bootstrap):
        super().__init__(directory, bootstrap)
        self.events = self.topic("killed-events", 2)
        self.others = self.topic("killed-others", 2)
        self.names = self.topic("killed-names")
        self.made = {topic: ([], []) for topic in (self.events, self.others)}
        self.rng = random.Random(KILLS)
        self.now = 0
        for each in range(5):
            self.produce(self.names, {"id": each, "name": f"name {each}"})
        body = (PIPELINE + (MORE if IS_FULL else "")).format(
            events=self.events, others=self.others, names=self.names
        )
        self.pipeline("killed", body, batch_rows="2000")

    def some(self, count):
        for _ in range(count):
            self.now += self.rng.choice([0, 0, 1, 1, 2])
            for topic in (self.events, self.others):
                back = self.rng.choice([0, 0, 1, 3, 3, 8, 70, 200])
                at, partition = max(self.now - back, 0), self.rng.randrange(2)
                self.made[topic][partition].append(at)
                number = sum(map(len, self.made[topic]))
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(START_S + at))
                row = {"name_id": self.rng.randrange(5)}
                if topic == self.events:
                    row |= {"id": number, "n": at, "at": when}
                else:
                    row |= {"other": number, "then": when}
                self._producer.produce(topic, orjson.dumps(row), partition=partition)
        self._producer.flush()

    def late(self, topic, due_of):
        """Places of rows whose `due_of` is at or before the watermark of their partition there."""
        found = []
        for partition, times in enumerate(self.made[topic]):
            latest = 0
            for offset, at in enumerate(times):
                latest = max(latest, at)
                if due_of(at) <= latest - 5:
                    found.append((topic, partition, offset))
        return found

    def expected_late(self):
        def end(at):
            return (at // 60 + 1) * 60

        def just_after(at):  # a join's row is late before the watermark, not at it
            return at + 0.5

        of_join = [self.late(topic, just_after) for topic in (self.events, self.others)]
        found = {
            "tumbling-1": sorted(self.late(self.events, end)),
            "join-1": sorted(of_join[0] + of_join[1]),
        }
        if IS_FULL:
            found["tumbling-2"] = sorted(self.late(self.events, lambda at: end(at) + 60))
        return found

    def published(self):
        found = {}
        for partition in (0, 1):
            for message in read_messages(self.bootstrap, "killed.late", partition):
                about = {name.split(".")[-1]: value.decode() for name, value in message.headers()}
                position = about["topic"], int(about["partition"]), int(about["offset"])
                found.setdefault(about["operator"], []).append(position)
        return {operator: sorted(positions) for operator, positions in found.items()}


def chosen(rng):
    """How the next one dies. A `step` may be one of those that publish late rows."""
    yield {"at": "step", "step": 3, "write": "cache/sums", "batch": 2}
    yield {"at": "worker"}
    yield {"at": "arrow", "write": "cache/pairs", "batch": 1}
    while True:
        at = rng.choice(["begun", "arrow", "step", "step", "applied"])
        step = rng.randrange(20) if at == "step" else None
        write, batch = rng.choice(WRITES), rng.choice([1, 2, 3])
        yield {"at": at, "write": write, "step": step, "batch": batch, "all": rng.random() < 0.3}
        yield {"at": rng.choice(["worker", "driver", "driver and JVM"])}


@pytest.mark.slow
@pytest.mark.timeout(400 + 240 * KILLS)
def test_operators_killed_again_and_again(spark, tmp_path, broker_address):
    project = Killed(tmp_path, broker_address)
    project.some(500)
    rng, deaths, victims = random.Random(KILLS), Counter(), []
    try:
        for _, death in zip(range(KILLS), chosen(rng), strict=False):
            victim = Victim(project, "killed", death=death if "write" in death else None)
            victims.append(victim)
            kill(project, victim, death, rng)
            deaths[death["at"]] += 1
            print(f"{time.strftime('%X')} killed: {dict(deaths)}")
        for victim in victims:
            victim.wait_until_gone()
    finally:
        for victim in victims:
            victim.end()
    proven(project, spark)


def kill(project, victim, death, rng):
    if "write" in death:
        end_s = time.monotonic() + 240
        while victim.process.poll() is None and time.monotonic() < end_s:
            project.some(4)
            time.sleep(0.2)
        assert victim.wait(1) == -signal.SIGKILL, victim.said()
        return
    began = commits(project)
    victim.wait_until(lambda: project.some(1) or commits(project) > began + 3, "batches")
    if death["at"] == "worker":
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(victim.workers()), signal.SIGKILL)
        began = commits(project)
        victim.wait_until(lambda: project.some(1) or commits(project) > began + 3, "batches")
    victim.kill(with_jvm=death["at"] == "driver and JVM")


def commits(project):
    written = project.state_dir.rglob("commits")
    return sum(
        max((int(name) + 1 for name in os.listdir(each) if name.isdigit()), default=0)
        for each in written
    )


def proven(project, spark):
    (pipeline,) = project.pipelines(spark, "killed")
    writes = pipeline.flow().writes
    ends = ends_of(pipeline.environment.log, [project.events, project.others, project.names])
    expected = project.expected_late()
    assert all(expected.values())
    counts = {name: len(positions) for name, positions in expected.items()}
    with project.running(spark, "killed"):
        for write in writes:
            its = {topic: ends[topic] for topic in write.topics}
            wait_for(lambda w=write, e=its: is_at(pipeline, w, e), f"the end of {write.name}", 240)
        wait_for(lambda: told_late(project, counts) == counts, f"{counts} in status", 30)
    for name in WRITES:
        verdict = verify(pipeline, name)
        assert verdict.is_equal, verdict
        assert verdict.rows
        assert verdict.version == 1, "nothing was derived again"
    assert project.published() == expected


def told_late(project, names):
    (known,) = pipeline_states(project.config(), ["killed"])
    metrics = {
        name: operator for write in known.writes for name, operator in write.operators.items()
    }
    return {name: metrics.get(name, {}).get("late") for name in names}
