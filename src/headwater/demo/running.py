"""One run of the demo, from an empty directory to nothing left running.

1. PostgreSQL, and beside it `headwater up`: broker, console, capture, pipelines on Spark;
2. ready: every derived store has what the tables had at first. From here on the load runs;
3. watched, until it is ended or the time is over;
4. if the time is over: the load ends, the stores catch up, each is verified against the log;
5. stopped: load, `headwater up` with its children in order, PostgreSQL.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import admin as kafka_admin

from headwater import config
from headwater.demo import project
from headwater.demo.processes import Process
from headwater.demo.summary import Summary
from headwater.demo.view import CAPTURE, PIPELINES, POSTGRES, SPARK, View
from headwater.demo.watching import LOOK_S, Store, Watch
from headwater.errors import HeadwaterError, NotReady
from headwater.inspect.kafka_cluster import KafkaCluster, settled
from headwater.inspect.waiting import wait
from headwater.supervisor import status_file
from headwater.supervisor.plan import data_dir_of

_TOPICS: Final = ("searches", "clicks")
_LIVE_S: Final = 0.5  # between two looks while the load runs
_STALLED_S: Final = 300.0  # without any progress: on a busy machine all of it takes longer
_CATCH_UP_S: Final = 600.0
_POSTGRES_S: Final = 60.0
_STOP_LOAD_S: Final = 10.0
_STOP_UP_S: Final = 90.0  # longer than the supervisor gives all of its children

# confluent_kafka's annotations leave it out.
NewTopic: Final[Any] = vars(kafka_admin)["NewTopic"]


class Ended(Exception):
    """A request to end the demo."""


class Demo:
    """The working directory is the demo's. `is_to_end` is asked all the time, so that it ends soon
    at any moment.
    """

    def __init__(
        self, directory: Path, rate: int, view: View, is_to_end: Callable[[], bool]
    ) -> None:
        self._view = view
        self._is_to_end = is_to_end
        self._began_s = time.monotonic()
        self._postgres = project.make(directory)
        self._loaded = config.load(path=str(directory / project.CONFIG), environ={})
        self._up = Process(directory, "up.log", "headwater.cli.main", "up")
        self._load = Process(directory, "load.log", "headwater.demo.load", "--rate", str(rate))
        self._verify = Process(
            directory,
            "verify.log",
            "headwater.cli.main",
            "verify",
            *self._loaded.pipelines,
            "--json",
        )
        self._watch: Watch | None = None
        self._load_began_s: float | None = None
        self._postgres_s = 0.0  # when the database was last seen
        self.summary = Summary()

    def run(self, seconds: int | None) -> None:
        """Nothing that it started runs when this returns or raises (HeadwaterError)."""
        try:
            watch = self._start()
            self._live(watch, seconds)
            if seconds is not None:
                self._finish(watch)
        except Ended:
            pass
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # it ends: nothing is to be left behind
            self._view.ending()
            self._sum_up()
            self._end()

    def _start(self) -> Watch:
        self._view.tick()
        self._up.start()  # takes longer than the database until it needs that
        project.start(self._postgres, self._is_to_end)
        self._check()
        self._view.done(POSTGRES, self._elapsed_s(), f"127.0.0.1:{self._postgres.port}")
        self._await(self._has_broker)
        cluster = KafkaCluster(self._loaded.bootstrap())
        new = [NewTopic(topic, 1, 1) for topic in _TOPICS if topic not in cluster.topics()]
        if new:
            settled(cluster.admin.create_topics(new), "create topics")
        watch = self._watch = Watch(self._loaded)
        self._await(lambda: self._is_ready(watch))
        self.summary.ready_s = self._elapsed_s()
        self._view.ready(self._elapsed_s(), self._children())
        return watch

    def _has_broker(self) -> bool:
        return any(
            child.kind == "broker" and child.state == status_file.READY
            for child in self._look_at_children()
        )

    def _is_ready(self, watch: Watch) -> bool:
        self._look_at_children()
        watch.look()
        stores = watch.stores.values()
        there = [store for store in stores if store.reached and store.lag == 0]
        if stores:
            self._view.done(SPARK, self._elapsed_s())
            self._view.progress(PIPELINES, f"{len(there)} of {len(stores)} stores")
        is_complete = {store.pipeline for store in stores} == set(self._loaded.pipelines)
        if not is_complete or len(there) < len(stores) or not watch.is_fed:
            return False
        self._view.done(PIPELINES, self._elapsed_s(), f"{len(stores)} derived stores")
        return True

    def _look_at_children(self) -> list[status_file.ChildStatus]:
        """Shows their changes in the view."""
        children = self._children()
        for child in children:
            step = CAPTURE if child.kind == "capture" else child.kind
            if child.state == status_file.READY and child.kind != "pipelines":
                self._view.done(step, self._elapsed_s(), _address(child))
            elif child.reason and child.kind != "pipelines":
                self._view.progress(step, child.reason)
        return children

    def _children(self) -> list[status_file.ChildStatus]:
        status = status_file.read(data_dir_of(self._loaded))
        return status.children if status else []

    def _live(self, watch: Watch, seconds: int | None) -> None:
        self._load.start()
        began_s = self._load_began_s = time.monotonic()
        while seconds is None or time.monotonic() - began_s < seconds:
            self._check()
            self._up.keep()
            self._load.keep()
            self._keep_postgres()
            watch.look()
            self._view.show(watch, self._children())
            time.sleep(_LIVE_S)

    def _keep_postgres(self) -> None:
        """What is left of a server that was killed can stand in the way of the next for a while.
        Raises NotReady if it stays so.
        """
        if self._postgres.is_running:
            self._postgres_s = time.monotonic()
            return
        try:
            self._postgres.start(self._is_to_end)
        except NotReady:
            if time.monotonic() - self._postgres_s > _POSTGRES_S:
                raise

    def _finish(self, watch: Watch) -> None:
        """What was committed is derived, and what is derived is right."""
        self._stop_load()
        self._view.phase("the load has ended; the stores catch up …")
        self._in_thread(watch, self._catch_up)
        watch.look(is_last=True)
        watch.count_rows()
        self._view.phase("every store is derived again from the log, and compared …")
        self._verify.start()
        while self._verify.exit_code is None:
            self._check()
            time.sleep(LOOK_S)
        verdicts = self._verify.json_line()
        if verdicts is None:
            raise HeadwaterError("the stores cannot be verified", detail=self._verify.last_line())
        self.summary.verdicts = {
            f"{verdict['name']}/{verdict['write']}": verdict for verdict in verdicts
        }

    def _catch_up(self) -> None:
        for name in self._loaded.pipelines:
            wait(name, timeout_s=_CATCH_UP_S, loaded=self._loaded)

    def _in_thread(self, watch: Watch, work: Callable[[], None]) -> None:
        failures: list[Exception] = []

        def run() -> None:
            try:
                work()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            self._check()
            watch.look()
            thread.join(LOOK_S)
        if failures:
            raise failures[0]

    def _stop_load(self) -> None:
        if self._load_began_s is not None:
            self.summary.seconds = time.monotonic() - self._load_began_s
            self._load_began_s = None
        self._load.stop(_STOP_LOAD_S)
        self.summary.load = self._load.json_line() or {}

    def _sum_up(self) -> None:
        if self._watch is not None:
            self.summary.changes = self._watch.changes.count
            self.summary.stores = list(self._watch.stores.values())
            self._watch.close()

    def _end(self) -> None:
        self._stop_load()
        self._verify.stop(_STOP_LOAD_S)
        self._up.stop(_STOP_UP_S)
        self._postgres.stop()

    def _await(self, condition: Callable[[], bool]) -> None:
        """Raises NotReady if `headwater up` has ended, or nothing gets further any more."""
        furthest, until_s = (-1, 0, 0), 0.0
        while not condition():
            self._check()
            if self._up.exit_code is not None:
                raise NotReady("`headwater up` has ended", detail=self._up.last_line())
            if (far := self._how_far()) > furthest:
                furthest, until_s = far, time.monotonic() + _STALLED_S
            if time.monotonic() > until_s:
                raise NotReady(
                    "the demo does not get ready",
                    detail=_slow(self._children(), self._watch),
                    hint="`headwater demo --data-dir DIR` retains its logs: up.log there",
                )
            self._view.tick()
            time.sleep(LOOK_S)

    def _how_far(self) -> tuple[int, int, int]:
        """Children that are ready, stores that are reported, stores that have everything."""
        ready = [child for child in self._children() if child.state == status_file.READY]
        stores = self._watch.stores.values() if self._watch else ()
        return len(ready), len(stores), sum(store.lag == 0 for store in stores)

    def _check(self) -> None:
        if self._is_to_end():
            raise Ended

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s


def _address(child: status_file.ChildStatus) -> str:
    if child.kind == "console" and child.address:
        return f"http://{child.address}"
    return child.address or "" if child.kind == "broker" else ""


def _slow(children: list[status_file.ChildStatus], watch: Watch | None) -> str:
    """The children that are not ready, and why."""
    waiting = [f"{child.name}: {child.reason or child.state}" for child in children
               if child.state != status_file.READY]  # fmt: skip
    stores: Mapping[str, Store] = watch.stores if watch else {}
    waiting += [f"{name}: {store.state}" for name, store in stores.items() if store.lag != 0]
    return "; ".join(waiting)
