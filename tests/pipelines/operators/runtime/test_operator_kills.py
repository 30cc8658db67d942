"""Windows, a join and an enrichment whose driver, JVM and workers are killed: results are as the
log has them, every late row is published once, counts are exact.

The full tier kills more often, HEADWATER_LONG=N N times, and has more operators.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter

import orjson
import pytest
from support.pipelines.project import Project, is_at, wait_for
from support.pipelines.spark_killing import Victim
from support.sinks.topic_places import read_messages
from tiers import IS_FULL, kills, long

from headwater.inspect.pipelines import pipeline_states
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.verification.stores import verify

KILLS = kills(quick=1, full=20)
DRIVER_KILLS = kills(quick=1000, full=1000)
MOST_BACKLOG = 200  # of the drivers that are killed under load: bursts are left to a query
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
    rises = hw.match(
        rows, "name_id", "A B+", time=at, define={{"B": "n > PREV(n)"}}, within="1 minute",
        measures={{"first": "FIRST(id)", "last": "LAST(id)", "number": "MATCH_NUMBER()"}},
    )
    flow.write(rises, to="cache", table="rises", key=["name_id", "number"])
    falls = hw.match(
        rows, "name_id", "A B+", time=at, define={{"B": "id < PREV(id)"}}, within="1 minute",
        measures={{"first": "FIRST(id)", "last": "LAST(id)", "number": "MATCH_NUMBER()"}},
        late="correct", allowed_lateness="1 minute", name="match-2",
    )
    flow.write(falls, to="cache", table="falls", key="match_id")
"""
COPIES = """
    flow.write(rows.select("id", "_position.partition", "_position.offset"), to="topic",
        table="{copies}")
"""
WRITES = ["cache/sums", "cache/pairs"]
if IS_FULL:
    WRITES += ["cache/corrected", "cache/rich", "cache/rises", "cache/falls"]


class Killed(Project):
    """Two topics of events, whose time goes on unevenly and sometimes back."""

    def __init__(self, directory, bootstrap, name, more=""):
        super().__init__(directory, bootstrap)
        self.name = name
        self.events = self.topic(f"{name}-events", 2)
        self.others = self.topic(f"{name}-others", 2)
        self.names = self.topic(f"{name}-names")
        self.copies = self.topic(f"{name}-copies")
        self.made = {topic: ([], []) for topic in (self.events, self.others)}
        self.rng = random.Random(KILLS)
        self.now = 0
        for number in range(5):
            self.produce(self.names, {"id": number, "name": f"name {number}"})
        body = (PIPELINE + (MORE if IS_FULL else "") + more).format(
            events=self.events, others=self.others, names=self.names, copies=self.copies
        )
        self.pipeline(name, body, batch_rows="2000")

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
            found["match-2"] = sorted(self.late(self.events, lambda at: just_after(at) + 60))
        return found

    def published(self):
        found = {}
        for partition in (0, 1):
            for message in read_messages(self.bootstrap, f"{self.name}.late", partition):
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
    project = Killed(tmp_path, broker_address, "killed")
    project.some(500)
    rng, deaths, victims = random.Random(KILLS), Counter(), []
    try:
        for _, death in zip(range(KILLS), chosen(rng), strict=False):
            victim = Victim(
                project,
                "killed",
                death=death if "write" in death else None,
                most_backlog=MOST_BACKLOG,
            )
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


@contextlib.contextmanager
def load(project):
    """Records a few at a time, and in bursts that are too many for the driver."""
    ending = threading.Event()
    rng = random.Random(DRIVER_KILLS)

    def produce():
        while not ending.wait(0.1):
            project.some(MOST_BACKLOG if rng.random() < 0.02 else rng.choice([1, 1, 3]))

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        yield
    finally:
        ending.set()
        producing.join()


@pytest.mark.slow
@long  # the test above stands for it, and engine/test_switching.py has a death at each step
@pytest.mark.timeout(400 + 120 * DRIVER_KILLS)
def test_a_driver_killed_at_any_moment_under_load(spark, tmp_path, broker_address):
    """Its writes switch between the driver and queries all the time."""
    project = Killed(tmp_path, broker_address, "loaded", COPIES)
    rng, victims, queries = random.Random(DRIVER_KILLS), [], 0
    began_s = time.monotonic()
    try:
        with load(project):
            for number in range(DRIVER_KILLS):
                victim = Victim(project, project.name, most_backlog=MOST_BACKLOG)
                victims.append(victim)
                began = commits(project)
                if rng.random() < 0.9:
                    victim.wait_until(lambda before=began: commits(project) > before, "a batch")
                    time.sleep(rng.uniform(0, 1.5))
                else:  # perhaps while it starts
                    time.sleep(rng.uniform(0, 10))
                victim.kill(with_jvm=rng.random() < 0.3)
                queries += victim.said().count("catching up as a query")
                took_s = time.monotonic() - began_s
                print(f"{took_s:.0f} s: {number + 1} killed, {queries} queries", flush=True)
        for victim in victims:
            victim.wait_until_gone()
    finally:
        for victim in victims:
            victim.end()
    assert queries
    proven(project, spark, f"topic/{project.copies}")
    copied = Counter(
        (row["partition"], row["offset"])
        for message in read_messages(project.bootstrap, project.copies)
        for row in [orjson.loads(message.value())]
    )
    made = enumerate(project.made[project.events])
    assert copied == Counter((partition, at) for partition, all_ in made for at in range(len(all_)))


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
        max((int(name) + 1 for name in os.listdir(directory) if name.isdigit()), default=0)
        for directory in written
    )


def proven(project, spark, *more):
    (pipeline,) = project.pipelines(spark, project.name)
    writes = pipeline.flow().writes
    ends = ends_of(pipeline.environment.log, [project.events, project.others, project.names])
    expected = project.expected_late()
    assert all(expected.values())
    counts = {name: len(positions) for name, positions in expected.items()}
    with project.running(spark, project.name):
        for write in writes:
            its = {topic: ends[topic] for topic in write.topics}
            wait_for(lambda w=write, e=its: is_at(pipeline, w, e), f"the end of {write.name}", 240)
        wait_for(lambda: reported_late(project, counts) == counts, f"{counts} in status", 30)
    for name in (*WRITES, *more):
        verdict = verify(pipeline, name)
        assert verdict.is_equal, verdict
        assert verdict.rows
        assert verdict.version == 1, "nothing was derived again"
    published = project.published()
    assert {name: Counter(found) for name, found in published.items()} == {
        name: Counter(positions) for name, positions in expected.items()
    }, {name: differing(expected[name], published[name]) for name in expected}


def differing(expected, published):
    """Positions that were not published, and those that were published too often."""
    wanted, found = Counter(expected), Counter(published)
    return sorted((wanted - found).elements()), sorted((found - wanted).elements())


def reported_late(project, names):
    (status,) = pipeline_states(project.config(), [project.name])
    metrics = {
        name: operator for write in status.writes for name, operator in write.operators.items()
    }
    return {name: metrics.get(name, {}).get("late") for name in names}
