"""One write, through everything that can happen to its process, its checkpoint and its store."""

import copy
import dataclasses
import random
import shutil
import sys
import time
from types import SimpleNamespace

import pytest
from support.pipelines.pretended_spark import (
    TOPIC,
    Frame,
    Killed,
    MemoryStore,
    copied,
    right_rows,
    write_of,
)
from tiers import seeds

from headwater.errors import Fenced, PipelineError, StateLost, StoreUnreachable
from headwater.pipelines.engine.local_plan import NotLocal
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import begun_buckets
from headwater.pipelines.running import batch_applier, environment, write_run
from headwater.pipelines.running.environment import Environment
from headwater.pipelines.running.version_choice import choose
from headwater.pipelines.running.write_run import WriteRun
from headwater.pipelines.settings import PipelineSettings
from headwater.sinks.contract import Log

SETTINGS = PipelineSettings("p", file="p.py")


@pytest.fixture(autouse=True)
def as_a_query(monkeypatch):
    """Spark is pretended here, so nothing can run in its driver."""

    def not_local(_):
        raise NotLocal("as a query")

    monkeypatch.setattr(write_run, "plan_locally", not_local)


class Machine:
    """A log, a store, and a process that is started again whenever it ends."""

    def __init__(self, directory):
        self.log = []
        self.store = MemoryStore()
        self.environment = Environment(Log("127.0.0.1:1"), {}, directory / "state")
        self.frame = Frame(self.log)
        self.run = None
        self.errors = []

    def start(self):
        write = write_of(self.frame)
        choice = choose(self.environment, "p", write, self.store.versions())
        run = WriteRun(self.environment, SETTINGS, write, choice)
        self.run = run
        run.start()

    def work(self, steps=10_000):
        """What a process does until it is killed, fails, or has read everything."""
        try:
            if self.run is None:
                self.start()
            while steps and self.run.query.step():
                steps -= 1
        except Killed:
            self.end()
        except Exception as error:
            query = self.run.query
            self.errors.append(error if query is None else self.run.error())
            self.end()

    def end(self):
        if self.run is not None:
            self.run.stop()
            self.run = None

    def check(self):
        """Every version has exactly what the log has up to its position."""
        for number, stored in self.store.stored.items():
            assert stored["rows"] == right_rows(self.log, stored["position"]), number

    def check_whole(self):
        position = self.store.stored[self.store.live]["position"]
        assert position.offsets[TOPIC][0] == len(self.log)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setattr(environment, "store_of", lambda *_: made.store)
    quiet = SimpleNamespace(commit=lambda _: None, close=lambda: None)
    monkeypatch.setattr(write_run, "GroupOffsets", lambda *_, **__: quiet)
    monkeypatch.setattr(batch_applier, "_FIRST_PAUSE_S", 0.0)
    yield made
    made.end()


@pytest.mark.parametrize("seed", seeds(12))
def test_whatever_happens_the_store_is_what_the_log_says(machine, tmp_path, seed):
    chance = random.Random(seed)
    state, backup = machine.environment.state_dir, tmp_path / "backup"
    saved_store = None

    def trouble(step):
        if chance.random() < 0.04:
            raise Killed
        if step in ("open", "apply", "applied") and chance.random() < 0.04:
            raise StoreUnreachable("it does not answer")

    for _ in range(60):
        machine.log.extend(chance.choices("abcde", k=chance.randrange(5)))
        machine.store.trouble = machine.frame.trouble = trouble
        machine.work(chance.randrange(4))
        machine.store.trouble = machine.frame.trouble = lambda step: None
        machine.check()
        what = chance.random()
        if what < 0.15:
            machine.end()
        if what < 0.03:
            copied(tmp_path / "nothing", state)  # lost
        elif what < 0.06:
            machine.store.stored, machine.store.live = {}, 1
        elif what < 0.08:
            copied(state, backup)
        elif what < 0.10:
            copied(backup, state)
        elif what < 0.12:
            saved_store = copy.deepcopy((machine.store.stored, machine.store.live))
        elif what < 0.14 and saved_store is not None:
            machine.store.stored, machine.store.live = copy.deepcopy(saved_store)
    for _ in range(3):
        machine.work()
    machine.check()
    machine.check_whole()
    assert len(machine.store.stored) < 12, "no version for nothing"
    assert not [error for error in machine.errors if isinstance(error, Fenced)]


def test_a_version_that_never_began_is_taken_up_again(machine, tmp_path):
    machine.log += "aab"
    machine.work()
    machine.end()
    copied(tmp_path / "nothing", machine.environment.state_dir)

    def killed(step):
        raise Killed

    machine.frame.trouble = killed  # before the first batch is applied, each time
    for _ in range(5):
        machine.work()
    assert sorted(machine.store.stored) == [1, 2]
    machine.frame.trouble = lambda step: None
    machine.work()
    assert machine.store.live == 2
    machine.check_whole()


def test_a_version_is_made_live_though_nothing_new_comes(machine, tmp_path):
    """Killed after the batch that it needed, and in front of the promote."""
    machine.log += "aab"
    machine.work()
    machine.end()
    copied(tmp_path / "nothing", machine.environment.state_dir)

    def trouble(step):
        if step == "promote":
            raise Killed

    machine.store.trouble = trouble
    machine.work()
    assert machine.store.live == 1
    machine.store.trouble = lambda step: None
    machine.start()
    assert machine.store.live == 2


def test_topics_that_are_no_longer_read_are_not_waited_for(machine, tmp_path):
    machine.log += "aab"
    machine.work()
    machine.end()
    position = machine.store.stored[1]["position"]
    position.offsets["gone"] = {0: 100}
    machine.work()
    assert machine.store.live == 2


def test_a_key_that_has_changed_is_reported(machine):
    machine.log += "a"
    machine.work()
    machine.end()
    write = copy.copy(write_of(machine.frame))
    object.__setattr__(write, "key", ("key", "count"))
    with pytest.raises(PipelineError, match="the key of topic/counts has changed: it was key"):
        choose(machine.environment, "p", write, machine.store.versions())


def test_who_was_replaced_while_the_store_did_not_answer_does_not_come_back(machine):
    machine.log += "aabbcc"
    machine.work(2)
    successor = None

    def trouble(step):
        nonlocal successor
        if step == "apply" and successor is None:
            successor = machine.store.writer(1, machine.store.stored[1]["fields"])
            stored = machine.store.stored[1]
            stored["position"] = copy.deepcopy(stored["position"])
            object.__setattr__(stored["position"], "batch", 7)
            raise StoreUnreachable("the connection was ended")

    machine.store.trouble = trouble
    machine.work()
    (error,) = machine.errors
    assert isinstance(error, Fenced)
    assert machine.store.stored[1]["epoch"] == 2  # the successor is not fenced


def test_a_store_that_comes_back_empty_is_not_written_to(machine):
    machine.log += "aabbcc"
    machine.work(2)

    def trouble(step):
        if step == "apply":
            machine.store.stored = {}
            machine.store.trouble = lambda step: None
            raise StoreUnreachable("it is created again")

    machine.store.trouble = trouble
    machine.work()
    assert [type(error).__name__ for error in machine.errors] == ["StoreDiverged"]
    assert machine.store.stored == {}
    machine.work()
    machine.check()
    machine.check_whole()


def test_a_call_of_sparks_that_comes_late_opens_no_writer(machine):
    """Spark does not wait for a foreachBatch that runs when the query is stopped."""
    machine.log += "aab"
    machine.work(1)
    old = machine.run
    machine.end()
    machine.start()
    with pytest.raises(Exception, match="PipelineError"):
        old.query.step()
    assert "stopped" in str(old.error())
    assert machine.store.stored[1]["epoch"] == 2
    machine.work()
    machine.check_whole()


def test_one_checkpoint_has_one_process(machine):
    machine.log += "a"
    machine.work()
    write = write_of(machine.frame)
    other = WriteRun(machine.environment, SETTINGS, write, machine.run.choice)
    with pytest.raises(PipelineError, match=r"run by another process: process \d+ holds"):
        other.start()
    assert machine.store.stored[1]["epoch"] == 1


def test_all_that_are_stopped_share_the_time_for_their_batches(machine, monkeypatch):
    """Stores that do not answer would delay the end of the process one after the other."""
    machine.start()
    waits = []
    machine.run._local = SimpleNamespace(
        stop_soon=lambda: None, stop=lambda timeout_s, then: (waits.append(timeout_s), then())
    )
    monkeypatch.setattr(write_run, "_STOPPING_S", 0.1)
    machine.run.stop_soon()
    time.sleep(0.15)  # of which others have taken all
    machine.run.stop()
    assert waits == [0.0]


OPERATOR = Built("summing-1", 2, (("key",),))


class WithOperator(Machine):
    """The machine, whose write goes through an operator; a worker may find its state missing."""

    def start(self):
        self.frame.sparkSession = SimpleNamespace(
            sparkContext=SimpleNamespace(
                setLocalProperty=lambda *_: None,
                accumulator=lambda value, _: SimpleNamespace(value=value),
            )
        )
        write = dataclasses.replace(write_of(self.frame), operators=(OPERATOR,))
        choice = choose(self.environment, "p", write, self.store.versions())
        self.run = WriteRun(self.environment, SETTINGS, write, choice)
        self.run.start()

    def state_of(self, version):
        directory = self.environment.state_dir / "p" / "topic.counts" / f"v{version}"
        return directory / "checkpoint" / "operators" / OPERATOR.name


@pytest.fixture
def with_operator(machine, tmp_path, monkeypatch):
    made = WithOperator(tmp_path)
    monkeypatch.setattr(environment, "store_of", lambda *_: made.store)
    made.log += "aab"
    made.work()
    yield made
    made.end()


def lost_in_a_worker(step):
    if step == "begun":
        text = "headwater.errors.StateLost: the state of an operator cannot be read: 5.json"
        raise RuntimeError(f"Job aborted due to stage failure: Traceback …\n{text}\n")


def test_state_that_is_there_is_gone_on_with(with_operator):
    assert (with_operator.state_of(1) / "begun").exists()
    with_operator.end()
    with_operator.log += "b"
    with_operator.work()
    assert sorted(with_operator.store.stored) == [1]
    with_operator.check_whole()


@pytest.mark.parametrize("lost", ["", "0", "begun"])
def test_an_operator_whose_state_is_lost_is_derived_again(with_operator, lost):
    """Also one that is new in a pipeline that has run: its directory is not there either."""
    with_operator.end()
    path = with_operator.state_of(1) / lost
    path.unlink() if lost == "begun" else shutil.rmtree(path)
    with_operator.log += "b"
    with_operator.work()
    assert with_operator.store.live == 2
    with_operator.check()
    with_operator.check_whole()
    assert with_operator.errors == []


def test_a_driver_without_a_record_of_the_state_derives_it_again(with_operator):
    with_operator.end()
    for path in with_operator.state_of(1).parent.glob("*.json"):
        path.unlink()
    with_operator.log += "b"
    for _ in range(3):
        with_operator.work()
        with_operator.end()
    assert isinstance(with_operator.errors[0], StateLost)
    assert with_operator.store.live == 2
    with_operator.check_whole()


def test_another_number_of_buckets_is_gone_on_with(with_operator, monkeypatch):
    with_operator.end()
    monkeypatch.setattr(sys.modules[__name__], "OPERATOR", dataclasses.replace(OPERATOR, buckets=3))
    with_operator.log += "b"
    with_operator.work()
    assert with_operator.store.live == 1
    assert begun_buckets(with_operator.state_of(1)) == 3
    with_operator.check_whole()
    assert with_operator.errors == []


def test_state_without_key_groups_is_derived_again(with_operator):
    """As versions wrote it that assigned keys to buckets by the remainder of their hash."""
    with_operator.end()
    (with_operator.state_of(1) / "begun").write_text('{"buckets": 2}')
    with_operator.work()
    assert with_operator.store.live == 2
    with_operator.check_whole()


def test_state_that_a_worker_misses_is_derived_again_once(with_operator):
    with_operator.log += "b"
    with_operator.frame.trouble = lost_in_a_worker
    with_operator.work()
    assert isinstance(with_operator.errors[0], StateLost)
    with_operator.frame.trouble = lambda step: None
    for _ in range(3):
        with_operator.work()
        with_operator.end()
    assert with_operator.store.live == 2
    with_operator.check_whole()
    assert sorted(with_operator.store.stored) == [1, 2]


def test_a_checkpoint_that_is_removed_under_a_worker_is_derived_again(with_operator):
    def removed(step):
        shutil.rmtree(with_operator.state_of(1).parents[1])
        lost_in_a_worker(step)

    with_operator.log += "b"
    with_operator.frame.trouble = removed
    with_operator.work()
    assert isinstance(with_operator.errors[0], StateLost)
    assert "all machines share" in with_operator.errors[0].hint
    with_operator.frame.trouble = lambda step: None
    with_operator.work()
    assert with_operator.store.live == 2
    with_operator.check_whole()


def test_state_that_is_lost_again_and_again_needs_a_person(with_operator):
    with_operator.log += "abcdefgh"
    with_operator.work()
    with_operator.log += "i"
    with_operator.frame.trouble = lost_in_a_worker
    with_operator.work()
    batches = iter(range(100))

    def after_one_batch(step):
        if step == "begun" and next(batches) == 2:
            lost_in_a_worker(step)

    with_operator.frame.trouble = after_one_batch
    with_operator.work()  # of the new version, which is not as far as the old one
    assert sorted(with_operator.store.stored) == [1, 2]
    with_operator.frame.trouble = lambda step: None
    with pytest.raises(StateLost, match="lost again while it was derived again"):
        with_operator.start()
    assert sorted(with_operator.store.stored) == [1, 2]
    assert with_operator.store.live == 1
